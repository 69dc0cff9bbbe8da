"""Results of operators in a GPU's memory: written in the order of torch's current stream, and waited for by nobody."""

from __future__ import annotations

import weakref
from typing import Dict, Iterable, Iterator, List, Optional, Protocol, Sequence, Tuple

import torch

import rowmill
from rowmill.torch.models import Model, model_of

# The GPUs that models have results on, by their numbers. With a model its GPUs are given up.
_GPUS: weakref.WeakKeyDictionary[Model, Dict[int, rowmill.Gpu]] = weakref.WeakKeyDictionary()
# Bytes of the largest result for rows: as many as a GPU has for results on their way.
_PART_BYTES = 64 << 20


class Request(Protocol):
    """A batch that is a request of its own."""

    @property
    def bags(self) -> int:
        """Its bags a feature."""

    def flat(self) -> tuple:
        """What ``_lookup_flat`` takes between the schema and the place of the result."""


class Batch(Protocol):
    """A batch that can be sent in parts, each of which is a :class:`Request` with lengths of its own."""

    columns: List[int]
    column_count: int
    lengths: Optional[torch.Tensor]

    def flat(self) -> tuple:
        """As :class:`Request` has it."""

    def parts(self, ends: torch.Tensor, model: Model, block: Optional[int]) -> "Iterator[Batch]":
        """Its parts, of at most ``block`` ids a column where one bag does not have more."""


def gpu_of(model: Model, ordinal: int) -> rowmill.Gpu:
    """A model's GPU, opened when it is first asked for.

    Raises:
        rowmill.DeviceError: There is no driver, or memory can't be pinned for it.
    """
    # Without a lock, under which a signal's handler may come here again while the GPU is opened.
    gpus = _GPUS.setdefault(model, {})
    known = gpus.get(ordinal)
    if known is None:
        opened = model.client.gpu(ordinal)
        known = gpus.setdefault(ordinal, opened)
        if known is not opened:
            opened.close()
    return known


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


def rows(
    batch: Batch, ends: torch.Tensor, model: Model, plan: str, blocks: Sequence[int], width: int, device: torch.device
) -> Optional[torch.Tensor]:
    """Sends a batch whose features are not pooled, in parts of at most 64 MiB, and returns the rows at once.

    Args:
        batch: The batch. It has ids.
        ends: How many ids each column has before each of its bags and after the last one, shape ``[columns, bags + 1]``.
        model: The model that it is for.
        plan: Its features, none of which are pooled.
        blocks: Rows of a feature that requests can have room for, the smallest first.
        width: Elements of a row.
        device: The GPU.

    Returns:
        The rows of the first feature, then those of the next; None where a bag has so many ids that its rows and the room for those of
        the other features take more than 64 MiB.

    Raises:
        rowmill.DeviceError: An earlier result did not come; see :func:`check`.
    """
    features = len(batch.columns)
    known = [block for block in blocks if 4 * block * features * width <= _PART_BYTES]
    if not known or int(torch.diff(ends).max()) > known[-1]:
        return None
    most = int(ends[:, -1].max())
    block = next((block for block in known if most <= block), known[-1])
    schema = model.schema(plan, block)
    pieces: List[List[torch.Tensor]] = [[] for _ in batch.columns]
    for part in batch.parts(ends, model, block):
        out, ordinal, stream = _place(features * block, width, device)
        gpu_of(model, ordinal)._lookup_flat(schema, *part.flat(), (out.data_ptr(), out.nbytes), stream)
        counts = part.lengths.view(part.column_count, -1).sum(1).tolist()
        for own, column, room in zip(pieces, batch.columns, out.split(block)):
            own.append(room[: counts[column]])
    return _joined([piece for own in pieces for piece in own])


def _joined(pieces: List[torch.Tensor]) -> torch.Tensor:
    """Rows one behind the other, copied by the stream that the pieces come to."""
    return torch.cat(pieces)


def _place(bags: int, width: int, device: torch.device) -> Tuple[torch.Tensor, int, int]:
    """A matrix on the GPU, the GPU's number, and the stream that is torch's current one there."""
    # Of the current stream, so that nothing else uses its memory before the result was there.
    out = torch.empty((bags, width), dtype=torch.float32, device=device)
    return out, out.device.index, torch.cuda.current_stream(out.device).cuda_stream


def check(model: str = "default") -> None:
    """Asks whether results on GPUs have not come, since this was asked last. Does not wait.

    Modules return tensors on a GPU before their results are there, and the stream waits for these. Where one does not come, the
    stream goes on with NaNs, and the next lookup of the model in that stream, or this, raises: call it after ``torch.cuda.synchronize()``,
    or when results were copied to the host, to know that they are good.

    Args:
        model: The model's name, as modules have it in ``model=``.

    Raises:
        rowmill.DeviceError: One has not come, with the reason of the first one.
        rowmill.InputError: No client is registered for the model.
    """
    for gpu in list(_GPUS.get(model_of(model), {}).values()):
        gpu.check_all()
