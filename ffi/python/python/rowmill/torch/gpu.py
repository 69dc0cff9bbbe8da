"""Results of operators in a GPU's memory: written in the order of torch's current stream, and waited for by nobody."""

from __future__ import annotations

import threading
import weakref
from typing import Dict, Iterable, Protocol, Tuple

import torch

import rowmill
from rowmill.torch.models import Model, model_of

# The GPUs that models have results on, by their numbers. With a model its GPUs are given up.
_GPUS: weakref.WeakKeyDictionary[Model, Dict[int, rowmill.Gpu]] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


class Request(Protocol):
    """A batch that is a request of its own."""

    @property
    def bags(self) -> int:
        """Its bags a feature."""

    def flat(self) -> tuple:
        """What ``_lookup_flat`` takes between the schema and the place of the result."""


def gpu_of(model: Model, ordinal: int) -> rowmill.Gpu:
    """A model's GPU, opened when it is first asked for.

    Raises:
        rowmill.DeviceError: There is no driver, or memory can't be pinned for it.
    """
    with _LOCK:
        gpus = _GPUS.setdefault(model, {})
        if ordinal not in gpus:
            gpus[ordinal] = model.client.gpu(ordinal)
        return gpus[ordinal]


def lookup(
    requests: Iterable[Request], model: Model, schema: rowmill.Schema, bags: int, width: int, device: torch.device
) -> torch.Tensor:
    """Sends requests, whose results are the rows of a matrix one after another, and returns the matrix at once.

    Args:
        requests: The requests.
        model: The model that they are for.
        schema: Their schema, all of whose features are pooled.
        bags: Bags of all requests together.
        width: Elements of a row.
        device: The GPU.

    Raises:
        rowmill.DeviceError: An earlier result did not come; see :func:`check`.
    """
    out, ordinal, stream = _place(bags, width, device)
    gpu = gpu_of(model, ordinal)
    first = 0
    for request in requests:
        rows = out[first : first + request.bags]
        gpu._lookup_flat(schema, *request.flat(), (rows.data_ptr(), rows.nbytes), stream)
        first += request.bags
    return out


def _place(bags: int, width: int, device: torch.device) -> Tuple[torch.Tensor, int, int]:
    """A matrix on the GPU, the GPU's number, and the stream that is torch's current one there."""
    # Of the current stream, so that nothing else uses its memory before the result was there.
    out = torch.empty((bags, width), dtype=torch.float32, device=device)
    return out, out.device.index, torch.cuda.current_stream(out.device).cuda_stream


def check(model: str = "default") -> None:
    """Asks whether results on GPUs have not come, since this was asked last. Does not wait.

    Modules return tensors on a GPU before their results are there, and the stream waits for these. Where one does not come, the
    stream goes on with NaNs, and the next lookup of the model, or this, raises: call it after ``torch.cuda.synchronize()``,
    or when results were copied to the host, to know that they are good.

    Args:
        model: The model's name, as modules have it in ``model=``.

    Raises:
        rowmill.DeviceError: One has not come, with the reason of the first one.
        rowmill.InputError: No client is registered for the model.
    """
    with _LOCK:
        gpus = list(_GPUS.get(model_of(model), {}).values())
    for gpu in gpus:
        gpu.check()
