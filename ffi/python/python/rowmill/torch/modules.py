"""Modules that take the place of TorchRec's embedding collections in a model that serves."""

from __future__ import annotations

import sys
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import torch
from torch import nn

import rowmill
from rowmill.torch import op as _op  # noqa: F401  (registers the operators)
from rowmill.torch.models import Lookup, client_of, model_of, plan_of, register, registered
from rowmill.torch.names import embedding_names, generation_name


class _Keyed:
    """What a batch is made of, whatever class brings it."""

    def __init__(self, features: Any) -> None:
        if hasattr(features, "lengths_or_none"):
            self.keys: List[str] = features.keys()
            self.ids: torch.Tensor = features.values()
            self.weights: Optional[torch.Tensor] = features.weights_or_none()
            self.lengths: Optional[torch.Tensor] = features.lengths_or_none()
            self.offsets: Optional[torch.Tensor] = features.offsets_or_none()
        elif hasattr(features, "keys") and hasattr(features, "batch_size"):
            # A TensorDict of jagged tensors.
            self.keys = list(features.keys())
            parts = [features[key] for key in self.keys]
            self.ids = torch.cat([part._values for part in parts])
            self.weights = None
            self.lengths = torch.cat([torch.diff(part._offsets) if part._lengths is None else part._lengths for part in parts])
            self.offsets = None
        else:
            raise rowmill.DtypeError(
                f"features are a {type(features).__name__}; give a KeyedJaggedTensor of TorchRec or of rowmill.torch, or a "
                "TensorDict of jagged tensors"
            )

    def column(self, wanted: Sequence[str]) -> List[int]:
        """Which column each wanted feature takes."""
        at = {key: column for column, key in enumerate(self.keys)}
        missing = [feature for feature in wanted if feature not in at]
        if missing:
            raise rowmill.FeatureError(
                f"the batch lacks {', '.join(missing)}; its keys are {', '.join(self.keys)}, and the module looks up "
                f"{', '.join(wanted)}"
            )
        return [at[feature] for feature in wanted]

    def bags_per_column(self) -> torch.Tensor:
        """The lengths of each column's bags, shape ``[columns, bags]``."""
        lengths = torch.diff(self.offsets) if self.lengths is None else self.lengths
        return lengths.view(len(self.keys), lengths.numel() // len(self.keys))


def _result_class(features: Any, name: str) -> Any:
    """The class of that name that belongs to what the caller gave: TorchRec's where it is TorchRec's."""
    for module in ("torchrec.sparse.jagged_tensor", "rowmill.torch.types"):
        family = sys.modules.get(module)
        if family is not None and isinstance(features, (family.KeyedJaggedTensor, *_tensor_dict(module))):
            return getattr(family, name)
    return getattr(sys.modules["rowmill.torch.types"], name)


def _tensor_dict(module: str) -> Tuple[type, ...]:
    """TorchRec's collections take these, too."""
    tensordict = sys.modules.get("tensordict")
    return (tensordict.TensorDict,) if tensordict is not None and module.startswith("torchrec") else ()


class _Collection(nn.Module):
    """What both collections have in common: tables, features, and the client that serves them."""

    _prefix: str

    def __init__(
        self,
        tables: Sequence[Any],
        poolings: Sequence[str],
        device: Optional[Union[torch.device, str]],
        client: Optional[rowmill.Client],
        url: Optional[str],
        model: str,
        table_names: Optional[Mapping[str, str]],
    ) -> None:
        super().__init__()
        if not tables:
            raise rowmill.InputError("there are no tables; give the configuration of one at the least")
        if client is not None and url is not None:
            raise rowmill.InputError("both client and url are given; give one of them")
        self._tables = list(tables)
        self._device = None if device is None else torch.device(device)
        self._model = model
        for config in tables:
            _check(config)
            if not config.feature_names:
                config.feature_names = [config.name]
        names = [config.name for config in tables]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise rowmill.InputError(f"two tables are named {', '.join(sorted(twice))}; give each table one configuration")
        self._embedding_names_by_table = embedding_names(tables)
        self._feature_names = [feature for config in tables for feature in config.feature_names]
        self._dims = [config.embedding_dim for config in tables for _ in config.feature_names]
        lookups = [
            Lookup(embedding, generation_name(config.name, table_names), pooling, config.embedding_dim, config.num_embeddings)
            for config, pooling, embeddings in zip(tables, poolings, self._embedding_names_by_table)
            for embedding in embeddings
        ]
        self._plan = plan_of(tuple(lookups))
        if url is not None:
            client = rowmill.connect(url)
        if client is not None:
            if registered(model) and client_of(model) is not client:
                raise rowmill.InputError(
                    f"another client is registered for the model {model!r}; give this module another model=, or call "
                    "rowmill.torch.unregister first"
                )
            if not registered(model):
                register(model, client)
            model_of(model).lookups(self._plan)

    @property
    def device(self) -> torch.device:
        """Where results are; that of the ids where none was given."""
        return self._device or torch.device("cpu")

    @property
    def client(self) -> rowmill.Client:
        """The client that serves it.

        Raises:
            rowmill.InputError: None is registered for its model.
        """
        return client_of(self._model)

    def extra_repr(self) -> str:
        return f"{', '.join(config.name for config in self._tables)}; model={self._model!r}"

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
    ) -> None:
        """Takes the tables' weights of a checkpoint as known. They are not kept: rows come from the generation that is served."""
        shapes = {
            f"{prefix}{self._prefix}.{config.name}.weight": (config.num_embeddings, config.embedding_dim)
            for config in self._tables
        }
        for key, tensor in state_dict.items():
            if key in shapes:
                found = tuple(tensor.shape)
                if found != shapes[key]:
                    error_msgs.append(
                        f"size mismatch for {key}: the checkpoint has {found}, and the module is configured for {shapes[key]}"
                    )
            elif strict and key.startswith(prefix):
                unexpected_keys.append(key)


def _check(config: Any) -> None:
    dim = config.embedding_dim
    if dim % 4 != 0 or not 4 <= dim <= 2048:
        raise rowmill.InputError(
            f"table {config.name} has {dim} dimensions, and rows have a multiple of 4 from 4 to 2048; pad the table's rows with "
            "zeros, and cut the vectors behind the module"
        )


class EmbeddingBagCollection(_Collection):
    """Pooled embeddings from a rowmill service, in the place of ``torchrec.EmbeddingBagCollection``.

    It serves: there are no parameters, and nothing is trained. Rows are those of the generation that the service has, which
    :func:`export_tables` writes. It can be compiled, exported and saved; a program that loads it calls :func:`register` first.

    Args:
        tables: ``EmbeddingBagConfig``\\ s of TorchRec or of ``rowmill.torch``. Sum and mean pooling; ``num_embeddings`` and
            ``embedding_dim`` have to be those of the service's tables.
        is_weighted: Whether the ids have weights. With sum pooling only, as in torch.
        device: Where results are to be; where the ids are if not given.
        client: The client of the service. Without it and ``url``, the one that is registered for ``model`` when the module is
            called.
        url: Instead of a client: where to connect, such as ``shm:/run/rowmill/demo.sock``.
        model: The name by which graphs find the client; modules of one client share it.
        table_names: The service's names of tables that are called otherwise in ``tables``, as :func:`export_tables` returns
            them.

    Raises:
        rowmill.InputError: The service has no such tables; a table has a number of dimensions that rows can't have; two tables
            have one name; weights are asked for with mean pooling.
        rowmill.ConnectError: There is no service at ``url``.
    """

    _prefix = "embedding_bags"

    def __init__(
        self,
        tables: Sequence[Any],
        is_weighted: bool = False,
        device: Optional[Union[torch.device, str]] = None,
        *,
        client: Optional[rowmill.Client] = None,
        url: Optional[str] = None,
        model: str = "default",
        table_names: Optional[Mapping[str, str]] = None,
    ) -> None:
        poolings = [_pooling(config, is_weighted) for config in tables]
        super().__init__(tables, poolings, device, client, url, model, table_names)
        self._is_weighted = is_weighted
        self._embedding_names = [name for names in self._embedding_names_by_table for name in names]

    def forward(self, features: Any) -> Any:
        """Looks a batch up.

        Args:
            features: A ``KeyedJaggedTensor`` of TorchRec or of ``rowmill.torch``: ids and lengths (or offsets) are int32 or
                int64, weights float32. Its keys may be more than the features, and in any order. A batch may be empty, and have
                a number of bags of its own for each key where it brings ``inverse_indices``. Or a ``TensorDict`` of jagged
                tensors.

        Returns:
            A ``KeyedTensor`` of the same library: values float32 ``[B, sum of dims]``, keys the features table by table,
            ``feature@table`` where a feature is in several tables.

        Raises:
            rowmill.InputError: The batch contradicts itself, lacks weights, or they require a gradient.
            rowmill.FeatureError: It lacks features.
            rowmill.DtypeError: A tensor has another type.
            rowmill.IdError: An id is not in its table.
            rowmill.ClosedError: The connection has ended.
        """
        batch = _Keyed(features)
        columns = batch.column(self._feature_names)
        weights = batch.weights if self._is_weighted else None
        if self._is_weighted and weights is None:
            raise rowmill.InputError("the module is weighted and the batch has no weights; give some, or is_weighted=False")
        if weights is not None and weights.requires_grad and torch.is_grad_enabled():
            raise rowmill.InputError("weights require a gradient, and lookups have none; call under torch.no_grad(), or .detach() them")
        variable = _call(features, "variable_stride_per_key", False)
        inverse = _call(features, "inverse_indices_or_none", None)
        lengths = _same_number_of_bags(features, batch, inverse) if variable else batch.lengths
        values = torch.ops.rowmill.lookup(
            batch.ids,
            lengths,
            batch.offsets if lengths is None else None,
            weights,
            columns,
            len(batch.keys),
            self._model,
            self._plan,
            sum(self._dims),
            self._device,
        )
        if inverse is not None:
            of_key = {key: row for row, key in enumerate(inverse[0])}
            vectors = values.split(self._dims, dim=1)
            rows = [inverse[1][of_key[feature]] for feature in self._feature_names]
            values = torch.cat([own.index_select(0, row) for own, row in zip(vectors, rows)], dim=1)
        return _result_class(features, "KeyedTensor")(self._embedding_names, self._dims, values)

    def embedding_bag_configs(self) -> List[Any]:
        """The tables' configurations."""
        return self._tables

    def is_weighted(self) -> bool:
        """Whether ids have weights."""
        return self._is_weighted


class EmbeddingCollection(_Collection):
    """Rows from a rowmill service, not pooled, in the place of ``torchrec.EmbeddingCollection``.

    Args:
        tables: ``EmbeddingConfig``\\ s of TorchRec or of ``rowmill.torch``, all with the same ``embedding_dim``.
        device: Where results are to be; where the ids are if not given.
        need_indices: Whether results bring the ids, as their weights.
        client, url, model, table_names: As :class:`EmbeddingBagCollection` has them.

    Raises:
        rowmill.InputError: As :class:`EmbeddingBagCollection`; tables differ in their dimensions.
        rowmill.ConnectError: There is no service at ``url``.
    """

    _prefix = "embeddings"

    def __init__(
        self,
        tables: Sequence[Any],
        device: Optional[Union[torch.device, str]] = None,
        need_indices: bool = False,
        *,
        client: Optional[rowmill.Client] = None,
        url: Optional[str] = None,
        model: str = "default",
        table_names: Optional[Mapping[str, str]] = None,
    ) -> None:
        dims = {config.embedding_dim for config in tables}
        if len(dims) > 1:
            raise rowmill.InputError(
                f"tables have {', '.join(str(dim) for dim in sorted(dims))} dimensions; give a collection to those of each number"
            )
        super().__init__(tables, ["none"] * len(tables), device, client, url, model, table_names)
        self._need_indices = need_indices

    def forward(self, features: Any) -> Dict[str, Any]:
        """Looks the rows of a batch up.

        Args:
            features: As :meth:`EmbeddingBagCollection.forward` takes them, with as many bags for each key. Weights are ignored.

        Returns:
            For each feature (``feature@table`` where it is in several tables) a ``JaggedTensor`` of the same library: values
            float32 ``[ids of the feature, dim]``, and its lengths.

        Raises:
            rowmill.Error: As :meth:`EmbeddingBagCollection.forward`.
        """
        batch = _Keyed(features)
        columns = batch.column(self._feature_names)
        if _call(features, "variable_stride_per_key", False):
            raise rowmill.InputError("the batch has a number of bags of its own for each key; give one with as many for each")
        rows = torch.ops.rowmill.rows(
            batch.ids,
            batch.lengths,
            batch.offsets if batch.lengths is None else None,
            columns,
            len(batch.keys),
            self._model,
            self._plan,
            self.embedding_dim(),
            self._device,
        )
        lengths = batch.bags_per_column()
        if len(batch.keys) == 1 and len(columns) == 1:
            by_feature, by_column = [rows], [batch.ids]
        else:
            counts = lengths.sum(1).tolist()
            for count in counts:
                torch._check(count >= 0)
            by_feature = torch.split(rows, [counts[column] for column in columns])
            by_column = torch.split(batch.ids, counts)
        jagged = _result_class(features, "JaggedTensor")
        names = [name for names in self._embedding_names_by_table for name in names]
        return {
            name: jagged(own, by_column[column] if self._need_indices else None, lengths[column])
            for name, own, column in zip(names, by_feature, columns)
        }

    def embedding_configs(self) -> List[Any]:
        """The tables' configurations."""
        return self._tables

    def need_indices(self) -> bool:
        """Whether results bring the ids."""
        return self._need_indices

    def embedding_dim(self) -> int:
        """Dimensions of all rows."""
        return self._dims[0]

    def embedding_names_by_table(self) -> List[List[str]]:
        """The names of results, table by table."""
        return self._embedding_names_by_table


def _pooling(config: Any, is_weighted: bool) -> str:
    name = config.pooling.name
    if name == "SUM":
        return "weighted_sum" if is_weighted else "sum"
    if name == "MEAN" and not is_weighted:
        return "mean"
    if name == "MEAN":
        raise rowmill.InputError(
            f"table {config.name}: torch has no mean of weighted rows; take sum pooling, or is_weighted=False"
        )
    raise rowmill.InputError(f"table {config.name}: pooling {name} gives no bags; take an EmbeddingCollection")


def _call(features: Any, method: str, otherwise: Any) -> Any:
    """What a method says that only TorchRec's batches have."""
    return getattr(features, method)() if hasattr(features, method) else otherwise


def _same_number_of_bags(features: Any, batch: _Keyed, inverse: Any) -> torch.Tensor:
    """The lengths of a batch with a number of bags of its own for each key, with empty bags put behind those of shorter ones."""
    strides = features.stride_per_key()
    if inverse is None and len(set(strides)) > 1:
        raise rowmill.InputError(
            f"the keys have {', '.join(str(stride) for stride in strides)} bags, and there are no inverse_indices that make them "
            "as many; give these, or as many bags for each key"
        )
    lengths = torch.diff(batch.offsets) if batch.lengths is None else batch.lengths
    return nn.utils.rnn.pad_sequence(lengths.split(strides), batch_first=True).flatten()
