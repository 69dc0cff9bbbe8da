"""The operators ``rowmill::lookup`` and ``rowmill::rows``, by which torch.compile and torch.export see lookups.

They are functions of their tensors: a graph may drop one whose result nobody uses, and merge equal ones. Models are named, and
features described, by text, so that an exported program finds its client wherever it is loaded (``rowmill.torch.register``).
"""

from __future__ import annotations

from typing import Any, Iterator, List, NamedTuple, Optional, Tuple

import torch

import rowmill
from rowmill.torch import gpu
from rowmill.torch.models import Model, model_of

# A result that is held keeps its memory from the pool, which has room for 32 at the least. From here on they are copied.
_HELD_AT_MOST = 16
# Most ids of a bag, as the protocol has it.
_MAX_IDS_PER_BAG = 8192
# Most ids of a feature in a request for rows, by which room for them is set aside; the smallest that is enough is taken.
# One bag always fits.
_BLOCKS = (256, 2048, 16384)

_tags = [torch.Tag.pt2_compliant_tag]
if hasattr(torch.Tag, "cudagraph_unsafe"):
    _tags.append(torch.Tag.cudagraph_unsafe)

_library = torch.library.Library("rowmill", "DEF")
_library.define(
    "lookup(Tensor ids, Tensor? lengths, Tensor? offsets, Tensor? weights, int[] columns, int column_count, str model, "
    "str plan, int width, Device? device=None) -> Tensor",
    tags=_tags,
)
_library.define(
    "rows(Tensor ids, Tensor? lengths, Tensor? offsets, int[] columns, int column_count, str model, str plan, int width, "
    "Device? device=None) -> Tensor",
    tags=_tags,
)


class _Batch(NamedTuple):
    """Jagged ids of some columns, one behind the other, in dense memory of the host."""

    ids: torch.Tensor
    lengths: Optional[torch.Tensor]
    offsets: Optional[torch.Tensor]
    weights: Optional[torch.Tensor]
    columns: List[int]
    column_count: int
    bags: int
    # The ids of each of ``columns`` that come before it in the batch that it is a part of.
    before: Optional[List[int]] = None

    def ends(self) -> torch.Tensor:
        """How many ids each column has before each of its bags and after the last one, shape ``[columns, bags + 1]``.

        Raises:
            rowmill.InputError: Lengths or offsets contradict themselves or the ids.
        """
        if self.offsets is not None and int(self.offsets[0]) != 0:
            raise rowmill.InputError(
                f"offsets begin with {int(self.offsets[0])}; give offsets from 0 on, and the ids that they divide"
            )
        lengths = torch.diff(self.offsets) if self.lengths is None else self.lengths
        wrong = torch.nonzero((lengths < 0) | (lengths > _MAX_IDS_PER_BAG))
        if len(wrong) > 0:
            column, bag = divmod(int(wrong[0]), self.bags)
            raise rowmill.InputError(
                f"bag {bag} of key {column} of the batch (both from 0 on) has a length of {int(lengths[wrong[0]])}; lengths are "
                f"from 0 to {_MAX_IDS_PER_BAG}, and offsets never fall"
            )
        ends = torch.nn.functional.pad(lengths.view(self.column_count, self.bags).cumsum(1), (1, 0))
        count = int(ends[:, -1].sum())
        if count != self.ids.numel():
            raise rowmill.InputError(
                f"the lengths of {self.column_count * self.bags} bags add up to {count}, and there are {self.ids.numel()} ids; "
                "give a length for each bag, and an id for each of them"
            )
        return ends

    def parts(self, ends: torch.Tensor, model: Model, block: Optional[int] = None) -> "Iterator[_Batch]":
        """Parts that are requests of their own, in the order of their bags."""
        counts = ends[:, -1]
        starts = counts.cumsum(0) - counts
        spans = [(0, self.bags)]
        while spans:
            first, last = spans.pop()
            taken = ends[:, last] - ends[:, first]
            fits = last - first <= model.max_batch and int(taken.sum()) <= model.max_ids
            if last - first == 1 or (fits and (block is None or int(taken.max()) <= block)):
                yield self._part(starts, ends, first, last)
            else:
                middle = (first + last) // 2
                spans += [(middle, last), (first, middle)]

    def _part(self, starts: torch.Tensor, ends: torch.Tensor, first: int, last: int) -> "_Batch":
        begin, end = (starts + ends[:, first]).tolist(), (starts + ends[:, last]).tolist()
        ranges = [slice(*range) for range in zip(begin, end)]
        return self._replace(
            ids=torch.cat([self.ids[range] for range in ranges]),
            lengths=torch.diff(ends[:, first : last + 1]).flatten(),
            offsets=None,
            weights=None if self.weights is None else torch.cat([self.weights[range] for range in ranges]),
            bags=last - first,
            before=ends[self.columns, first].tolist(),
        )

    def flat(self) -> Tuple[Any, ...]:
        """The arguments of ``_lookup_flat`` that tell of it."""
        division = self.offsets if self.lengths is None else self.lengths
        return (
            _flat(self.ids),
            _flat(division),
            self.lengths is None,
            0 if self.weights is None else self.weights.data_ptr(),
            self.columns,
            self.column_count,
        )

    def lookup(self, model: Model, schema: rowmill.Schema) -> rowmill.Result:
        """Sends it, and waits for the result."""
        return model.client._lookup_flat(schema, *self.flat(), before=self.before)


def _flat(numbers: torch.Tensor) -> tuple[int, int, int]:
    return numbers.data_ptr(), numbers.numel(), 8 * numbers.element_size()


def _dense(what: str, tensor: Optional[torch.Tensor], *dtypes: torch.dtype) -> Optional[torch.Tensor]:
    """A tensor as requests take it; a copy only of one elsewhere or with gaps."""
    if tensor is None:
        return None
    if tensor.dtype not in dtypes:
        wanted = " or ".join(str(dtype) for dtype in dtypes)
        raise rowmill.DtypeError(f"{what} are {tensor.dtype} and have to be {wanted}; convert them with .to()")
    if tensor.dim() != 1:
        raise rowmill.InputError(f"{what} have the shape {list(tensor.shape)} and need one dimension; call .flatten()")
    return tensor.cpu().contiguous()


_WHOLE = (torch.int64, torch.int32)


def _batch(
    ids: torch.Tensor,
    lengths: Optional[torch.Tensor],
    offsets: Optional[torch.Tensor],
    weights: Optional[torch.Tensor],
    columns: List[int],
    column_count: int,
) -> _Batch:
    division = offsets if lengths is None else lengths
    if division is None:
        raise rowmill.InputError("there are neither lengths nor offsets; give one of them")
    spare = 0 if lengths is not None else 1
    bags, rest = divmod(division.numel() - spare, column_count)
    if rest != 0 or bags < 0:
        raise rowmill.InputError(
            f"{division.numel()} {'offsets' if spare else 'lengths'} for {column_count} keys can't be as many for each; give as "
            f"many as bags times keys{', and one more' if spare else ''}"
        )
    if weights is not None and weights.numel() != ids.numel():
        raise rowmill.InputError(f"{weights.numel()} weights for {ids.numel()} ids; give one for each id")
    return _Batch(
        _dense("ids", ids, *_WHOLE),
        _dense("lengths", lengths, *_WHOLE),
        _dense("offsets", None if lengths is not None else offsets, *_WHOLE),
        _dense("weights", weights, torch.float32),
        columns,
        column_count,
        bags,
    )


def _values(model: Model, result: rowmill.Result) -> torch.Tensor:
    """A result as a tensor that sees its memory, or a copy where many are held already."""
    tensor = result.torch()
    return tensor.clone() if model.client.stats()["held"] > _HELD_AT_MOST else tensor


def _lookup(ids, lengths, offsets, weights, columns, column_count, model, plan, width, device=None):
    batch = _batch(ids, lengths, offsets, weights, columns, column_count)
    served = model_of(model)
    device = ids.device if device is None else device
    if batch.bags == 0:
        if ids.numel() > 0:
            raise rowmill.InputError(f"there are {ids.numel()} ids and no bags; give a length for each bag")
        # Offsets of no bags may be wrong, too.
        batch.ends()
        return torch.empty((0, width), device=device)
    schema = served.schema(plan)
    is_one = batch.bags <= served.max_batch and ids.numel() <= served.max_ids
    requests = [batch] if is_one else batch.parts(batch.ends(), served)
    if device.type == "cuda":
        return gpu.lookup(requests, served, schema, batch.bags, width, device)
    if is_one:
        values = _values(served, batch.lookup(served, schema))
    else:
        values = torch.empty((batch.bags, width))
        first = 0
        for part in requests:
            # Copied at once, so that there is no more than one result however many parts there are.
            values[first : first + part.bags] = part.lookup(served, schema).torch()
            first += part.bags
    return values.to(device)


def _rows(ids, lengths, offsets, columns, column_count, model, plan, width, device=None):
    batch = _batch(ids, lengths, offsets, None, columns, column_count)
    served = model_of(model)
    device = ids.device if device is None else device
    pieces: List[List[torch.Tensor]] = [[] for _ in columns]
    ends = batch.ends()
    if ids.numel() > 0:
        if device.type == "cuda":
            values = gpu.rows(batch, ends, served, plan, _BLOCKS, width, device)
            if values is not None:
                return values
        most = int(ends[:, -1].max())
        block = next((block for block in _BLOCKS if most <= block), _BLOCKS[-1])
        schema = served.schema(plan, block)
        for part in batch.parts(ends, served, block):
            result = part.lookup(served, schema)
            for name, own in zip(schema.features, pieces):
                vectors = result[name].torch()
                own.append(vectors if part.bags == batch.bags else vectors.clone())
    found = [piece for own in pieces for piece in own]
    values = torch.cat(found) if found else torch.empty((0, width))
    return values.to(device)


def _any_size(size):
    """A size that may be 0 or 1 in the example that a program is exported with, as one that says nothing of that.

    torch takes these for sizes that are always so. Those of tensors that come from outside it fixes itself; this is of a tensor of ours.
    """
    is_exporting = getattr(torch.compiler, "is_exporting", None)
    if is_exporting is None or not is_exporting() or not isinstance(size, torch.SymInt):
        return size
    node = size.node
    # Looked at without a guard, which would fix it.
    if not node.has_hint() or node.hint > 1:
        return size
    return torch.library.get_ctx().new_dynamic_size()


def _lookup_fake(ids, lengths, offsets, weights, columns, column_count, model, plan, width, device=None):
    bags = _any_size((offsets.numel() - 1 if lengths is None else lengths.numel()) // column_count)
    return ids.new_empty((bags, width), dtype=torch.float32, device=ids.device if device is None else device)


def _rows_fake(ids, lengths, offsets, columns, column_count, model, plan, width, device=None):
    if sorted(columns) == list(range(column_count)):
        count = ids.numel()
    else:
        count = torch.library.get_ctx().new_dynamic_size()
    return ids.new_empty((count, width), dtype=torch.float32, device=ids.device if device is None else device)


for _name, _kernel, _fake in (("lookup", _lookup, _lookup_fake), ("rows", _rows, _rows_fake)):
    for _key in ("CPU", "CUDA"):
        _library.impl(_name, _kernel, _key)
    torch.library.register_fake(f"rowmill::{_name}", _fake, lib=_library)
