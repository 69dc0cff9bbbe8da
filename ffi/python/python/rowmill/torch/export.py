"""A model's embedding tables as a generation that a service loads."""

from __future__ import annotations

import os
import re
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple, Union

import torch
from torch import nn

import rowmill
from rowmill import _rowmill
from rowmill.torch.names import generation_name

_ELEMENTS = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
_GATHER = (
    "gather it first: torch.distributed.checkpoint.state_dict.get_model_state_dict(model, "
    "options=StateDictOptions(full_state_dict=True)) on rank 0, or .full_tensor()"
)


def export_tables(
    model: Union[nn.Module, Mapping[str, torch.Tensor]],
    path: Union[str, os.PathLike],
    *,
    format: Union[str, Mapping[str, str]] = "f32",
    generation: int = 1,
    names: Optional[Mapping[str, str]] = None,
) -> Dict[str, str]:
    """Writes the embedding tables of a model as a generation.

    Rows are written from the tensors' own memory, a block at a time; a tensor elsewhere than in dense memory of the host is
    copied first. Ctrl-C ends it, and nothing is left behind.

    Args:
        model: A module: the tables of its TorchRec collections, by the names of their configurations, and its
            ``nn.EmbeddingBag`` and ``nn.Embedding``, by their qualified names. Or a state dict: the tables in keys of
            TorchRec's form, ``...embedding_bags.TABLE.weight`` and ``...embeddings.TABLE.weight``, and those that ``names``
            has, by their keys. Weights are float32, float16 or bfloat16 ``[rows, dim]``, with a dim that is a multiple of 4
            from 4 to 2048.
        path: The generation's folder, which must not exist.
        format: How rows are stored: ``"f32"``, ``"f16"``, ``"bf16"``, ``"int8"``, ``"int8-f16"`` or ``"int4"``. Or one for
            each table by its name in the model; ``"f32"`` for those that it lacks.
        generation: The generation's number.
        names: Names in the generation for tables, by those in the model. Of others, what is not one of ``A-Z a-z 0-9 _ - .``
            becomes ``_``. Of a state dict, also which other keys are tables.

    Returns:
        dict[str, str]: The name in the generation of each table of the model.

    Raises:
        rowmill.InputError: There are no tables; one is sharded, has no memory, looks ids up as no service does
            (``padding_idx``, ``max_norm``), or has values or a shape that can't be stored; two have one name; there is
            something at ``path``.
        rowmill.DtypeError: A table's weights have another type.
        rowmill.Error: The generation can't be written.
    """
    tables = dict(_of_module(model) if isinstance(model, nn.Module) else _of_state(model, names or {}))
    if not tables:
        raise rowmill.InputError(
            "the model has no embedding tables: no TorchRec collection, nn.EmbeddingBag or nn.Embedding, nor a key like "
            "embedding_bags.TABLE.weight; name those of a state dict in names="
        )
    formats = {name: format for name in tables} if isinstance(format, str) else {name: "f32" for name in tables} | dict(format)
    _known("format", formats, tables)
    _known("names", names or {}, tables)
    weights = {name: _dense(name, weight) for name, weight in tables.items()}
    chosen = {name: generation_name(name, names) for name in tables}
    _rowmill.write_generation(
        os.fspath(path),
        generation,
        [
            (chosen[name], *weight.shape, _ELEMENTS[weight.dtype], weight.data_ptr(), formats[name])
            for name, weight in weights.items()
        ],
    )
    return chosen


def _known(argument: str, given: Mapping[str, Any], tables: Mapping[str, Any]) -> None:
    unknown = [name for name in given if name not in tables]
    if unknown:
        raise rowmill.InputError(f"{argument} names {', '.join(unknown)}, and the model's tables are {', '.join(tables)}")


def _of_module(model: nn.Module) -> Iterator[Tuple[str, torch.Tensor]]:
    """The tables of a module, each once."""
    seen: Dict[str, str] = {}
    collections: List[str] = []
    for path, module in model.named_modules():
        if any(path.startswith(prefix) for prefix in collections):
            continue
        tables = _of_collection(module)
        if tables is not None:
            collections.append(f"{path}." if path else "")
        elif isinstance(module, (nn.EmbeddingBag, nn.Embedding)):
            _looks_up_plainly(path, module)
            tables = {path or "weight": module.weight}
        for name, weight in (tables or {}).items():
            if name in seen:
                raise rowmill.InputError(f"{seen[name]} and {path} both have a table {name}; export them one by one")
            seen[name] = path
            yield name, weight


def _of_collection(module: nn.Module) -> Optional[Dict[str, torch.Tensor]]:
    """The tables of a collection of TorchRec's, by the names of their configurations."""
    for configs, children in (("embedding_bag_configs", "embedding_bags"), ("embedding_configs", "embeddings")):
        if callable(getattr(module, configs, None)) and isinstance(getattr(module, children, None), nn.ModuleDict):
            held = getattr(module, children)
            return {config.name: held[config.name].weight for config in getattr(module, configs)()}
    return None


def _looks_up_plainly(path: str, module: Union[nn.EmbeddingBag, nn.Embedding]) -> None:
    """That a lookup is no more than the rows of its ids."""
    if module.max_norm is not None:
        raise rowmill.InputError(
            f"{path or 'the module'} scales rows down to max_norm={module.max_norm} when it looks them up, and a service does not; do it once, "
            f"module.weight.data.copy_(module.weight.data.renorm({module.norm_type}, 0, {module.max_norm})), and set "
            "module.max_norm = None"
        )
    # nn.Embedding looks up the row of padding_idx like any other.
    if isinstance(module, nn.EmbeddingBag) and module.padding_idx is not None:
        raise rowmill.InputError(
            f"{path or 'the module'} leaves the id padding_idx={module.padding_idx} out of bags, and a service does not; leave it out of the "
            "batches, and set module.padding_idx = None"
        )


def _of_state(state: Mapping[str, torch.Tensor], names: Mapping[str, str]) -> Iterator[Tuple[str, torch.Tensor]]:
    seen: Dict[str, str] = {}
    for key, weight in state.items():
        match = re.search(r"(?:^|\.)(?:embedding_bags|embeddings)\.([^.]+)\.weight$", key)
        name = key if key in names else match and match[1]
        if name is None:
            continue
        if name in seen:
            raise rowmill.InputError(f"the keys {seen[name]} and {key} are both a table {name}; export them one by one")
        seen[name] = key
        yield name, weight


def _dense(name: str, weight: Any) -> torch.Tensor:
    """A table's weights in memory of the host, row after row."""
    if not isinstance(weight, torch.Tensor) or hasattr(weight, "full_tensor") or hasattr(weight, "local_shards"):
        raise rowmill.InputError(f"table {name} is a {type(weight).__name__}, of which this process has a part; {_GATHER}")
    if weight.dtype not in _ELEMENTS:
        raise rowmill.DtypeError(f"table {name} is {weight.dtype}; convert it to torch.float32, float16 or bfloat16")
    if weight.dim() != 2:
        raise rowmill.InputError(f"table {name} has the shape {list(weight.shape)}; a table has rows and dimensions")
    if weight.device.type == "meta":
        raise rowmill.InputError(f"table {name} is on the meta device, without values; load the model's weights first")
    return weight.detach().cpu().contiguous().resolve_neg()
