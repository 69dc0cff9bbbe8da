"""Jagged and keyed tensors and table configurations with the fields and methods of TorchRec's that serving needs.

They are for programs without TorchRec. Modules of this package take TorchRec's own just as well, and return what belongs
to what they were given.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Dict, List, Optional, Tuple

import torch
from torch.utils import _pytree


class PoolingType(enum.Enum):
    """How the rows of a bag become one vector.

    Attributes:
        SUM: Their sum, weighted where the collection is.
        MEAN: Their sum divided by their number.
        NONE: Each row by itself, as ``EmbeddingCollection`` returns them.
    """

    SUM = "SUM"
    MEAN = "MEAN"
    NONE = "NONE"


@dataclass
class EmbeddingConfig:
    """A table of an ``EmbeddingCollection``.

    Args:
        num_embeddings: Rows; ids go from 0 to one less.
        embedding_dim: Dimensions of a row, a multiple of 4 from 4 to 2048.
        name: The table's name in the generation.
        feature_names: Keys whose ids are looked up here; ``[name]`` where there are none.
    """

    num_embeddings: int
    embedding_dim: int
    name: str = ""
    feature_names: List[str] = field(default_factory=list)


@dataclass
class EmbeddingBagConfig(EmbeddingConfig):
    """A table of an ``EmbeddingBagCollection``.

    Args:
        num_embeddings: Rows; ids go from 0 to one less.
        embedding_dim: Dimensions of a row, a multiple of 4 from 4 to 2048.
        name: The table's name in the generation.
        feature_names: Keys whose bags are looked up here; ``[name]`` where there are none.
        pooling: ``PoolingType.SUM`` or ``PoolingType.MEAN``.
    """

    pooling: PoolingType = PoolingType.SUM


class JaggedTensor:
    """Bags of values of different lengths, one after another.

    Args:
        values: Shape ``[N, ...]``: the values of all bags.
        weights: Shape ``[N]``, f32, or None.
        lengths: Shape ``[B]``, int32 or int64: values of each bag. This or ``offsets`` is needed.
        offsets: Shape ``[B + 1]``, int32 or int64: where each bag begins, and where the last one ends.

    Raises:
        ValueError: If neither lengths nor offsets are given.
    """

    def __init__(
        self,
        values: torch.Tensor,
        weights: Optional[torch.Tensor] = None,
        lengths: Optional[torch.Tensor] = None,
        offsets: Optional[torch.Tensor] = None,
    ) -> None:
        if lengths is None and offsets is None:
            raise ValueError("bags need lengths or offsets; give one of them")
        self._values = values
        self._weights = weights
        self._lengths = lengths
        self._offsets = offsets

    def values(self) -> torch.Tensor:
        """The values of all bags, shape ``[N, ...]``."""
        return self._values

    def weights(self) -> torch.Tensor:
        """A weight for each value, shape ``[N]``.

        Raises:
            ValueError: If there are none.
        """
        if self._weights is None:
            raise ValueError("there are no weights here; ask weights_or_none()")
        return self._weights

    def weights_or_none(self) -> Optional[torch.Tensor]:
        """A weight for each value, shape ``[N]``, or None."""
        return self._weights

    def lengths(self) -> torch.Tensor:
        """The length of each bag, shape ``[B]``."""
        if self._lengths is None:
            self._lengths = torch.diff(self._offsets)
        return self._lengths

    def lengths_or_none(self) -> Optional[torch.Tensor]:
        """The length of each bag if they were given or asked for, shape ``[B]``."""
        return self._lengths

    def offsets(self) -> torch.Tensor:
        """Where each bag begins and where the last one ends, shape ``[B + 1]``."""
        if self._offsets is None:
            self._offsets = torch.nn.functional.pad(self._lengths.cumsum(0), (1, 0)).to(self._lengths.dtype)
        return self._offsets

    def offsets_or_none(self) -> Optional[torch.Tensor]:
        """Where each bag begins if that was given or asked for, shape ``[B + 1]``."""
        return self._offsets

    def to_dense(self) -> List[torch.Tensor]:
        """The values of each bag by themselves."""
        return list(torch.split(self._values, self.lengths().tolist()))


class KeyedJaggedTensor:
    """Bags of ids for each of some keys, with the same number of bags.

    Args:
        keys: The features, each once.
        values: Shape ``[N]``, int32 or int64: the ids of all bags of the first key, then of the second, and so on.
        weights: Shape ``[N]``, f32, or None.
        lengths: Shape ``[len(keys) * B]``, int32 or int64: ids of each bag. This or ``offsets`` is needed.
        offsets: Shape ``[len(keys) * B + 1]``, int32 or int64: where each bag begins, and where the last one ends.

    Raises:
        ValueError: If neither lengths nor offsets are given.
    """

    def __init__(
        self,
        keys: List[str],
        values: torch.Tensor,
        weights: Optional[torch.Tensor] = None,
        lengths: Optional[torch.Tensor] = None,
        offsets: Optional[torch.Tensor] = None,
    ) -> None:
        if lengths is None and offsets is None:
            raise ValueError("bags need lengths or offsets; give one of them")
        self._keys = keys
        self._values = values
        self._weights = weights
        self._lengths = lengths
        self._offsets = offsets

    @staticmethod
    def from_jagged(features: Dict[str, JaggedTensor]) -> "KeyedJaggedTensor":
        """Puts jagged tensors with the same number of bags together; weights are kept where all have them."""
        parts = list(features.values())
        weights = [part.weights_or_none() for part in parts]
        return KeyedJaggedTensor(
            list(features),
            torch.cat([part.values() for part in parts]),
            None if any(w is None for w in weights) else torch.cat(weights),
            torch.cat([part.lengths() for part in parts]),
        )

    def keys(self) -> List[str]:
        """The features."""
        return self._keys

    def values(self) -> torch.Tensor:
        """All ids, shape ``[N]``."""
        return self._values

    def weights_or_none(self) -> Optional[torch.Tensor]:
        """A weight for each id, shape ``[N]``, or None."""
        return self._weights

    def lengths(self) -> torch.Tensor:
        """The length of each bag, shape ``[len(keys) * B]``."""
        if self._lengths is None:
            self._lengths = torch.diff(self._offsets)
        return self._lengths

    def lengths_or_none(self) -> Optional[torch.Tensor]:
        """The length of each bag if they were given or asked for."""
        return self._lengths

    def offsets_or_none(self) -> Optional[torch.Tensor]:
        """Where each bag begins if that was given."""
        return self._offsets

    def stride(self) -> int:
        """How many bags each key has."""
        if self._lengths is not None:
            return self._lengths.numel() // len(self._keys)
        return (self._offsets.numel() - 1) // len(self._keys)

    def __getitem__(self, key: str) -> JaggedTensor:
        """The bags of one key.

        Raises:
            KeyError: If there is no such key.
        """
        if key not in self._keys:
            raise KeyError(f"there is no key {key!r}; the keys are {', '.join(self._keys)}")
        at, stride = self._keys.index(key), self.stride()
        lengths = self.lengths()
        before = int(lengths[: at * stride].sum())
        own = lengths[at * stride : (at + 1) * stride]
        until = before + int(own.sum())
        weights = None if self._weights is None else self._weights[before:until]
        return JaggedTensor(self._values[before:until], weights, own)


class KeyedTensor:
    """Vectors for each of some keys, side by side.

    Args:
        keys: The features.
        length_per_key: Dimensions of each key's vectors.
        values: Shape ``[B, sum(length_per_key)]``.
    """

    def __init__(self, keys: List[str], length_per_key: List[int], values: torch.Tensor) -> None:
        self._keys = keys
        self._length_per_key = length_per_key
        self._values = values

    def keys(self) -> List[str]:
        """The features."""
        return self._keys

    def values(self) -> torch.Tensor:
        """All vectors, shape ``[B, sum(length_per_key)]``."""
        return self._values

    def length_per_key(self) -> List[int]:
        """Dimensions of each key's vectors."""
        return self._length_per_key

    def offset_per_key(self) -> List[int]:
        """The first dimension of each key, and the end of the last one."""
        offsets = [0]
        for length in self._length_per_key:
            offsets.append(offsets[-1] + length)
        return offsets

    def __getitem__(self, key: str) -> torch.Tensor:
        """The vectors of one key, shape ``[B, dim]``.

        Raises:
            KeyError: If there is no such key.
        """
        if key not in self._keys:
            raise KeyError(f"there is no key {key!r}; the keys are {', '.join(self._keys)}")
        at = self._keys.index(key)
        return self._values.narrow(1, sum(self._length_per_key[:at]), self._length_per_key[at])

    def to_dict(self) -> Dict[str, torch.Tensor]:
        """The vectors of each key, shapes ``[B, dim]``."""
        return dict(zip(self._keys, self._values.split(self._length_per_key, dim=1)))


_TENSORS = ("_values", "_weights", "_lengths", "_offsets")


def _fields(tensor) -> List[Optional[torch.Tensor]]:
    return [getattr(tensor, name) for name in _TENSORS]


def _named_fields(tensor) -> List[Tuple[_pytree.KeyEntry, Optional[torch.Tensor]]]:
    return [(_pytree.GetAttrKey(name), getattr(tensor, name)) for name in _TENSORS]


# So that torch.compile and torch.export look into them.
_pytree.register_pytree_node(
    JaggedTensor,
    lambda tensor: (_fields(tensor), None),
    lambda tensors, _: JaggedTensor(*tensors),
    flatten_with_keys_fn=lambda tensor: (_named_fields(tensor), None),
    serialized_type_name="rowmill.torch.JaggedTensor",
)
_pytree.register_pytree_node(
    KeyedJaggedTensor,
    lambda tensor: (_fields(tensor), tensor._keys),
    lambda tensors, keys: KeyedJaggedTensor(keys, *tensors),
    flatten_with_keys_fn=lambda tensor: (_named_fields(tensor), tensor._keys),
    serialized_type_name="rowmill.torch.KeyedJaggedTensor",
)
_pytree.register_pytree_node(
    KeyedTensor,
    lambda tensor: ([tensor._values], [tensor._keys, tensor._length_per_key]),
    lambda tensors, context: KeyedTensor(context[0], context[1], *tensors),
    flatten_with_keys_fn=lambda tensor: ([(_pytree.GetAttrKey("_values"), tensor._values)], [tensor._keys, tensor._length_per_key]),
    serialized_type_name="rowmill.torch.KeyedTensor",
)
