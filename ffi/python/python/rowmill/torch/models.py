"""Which client serves which model: the registry by which operators in graphs find theirs at run time."""

from __future__ import annotations

import json
from typing import Dict, NamedTuple, Tuple

import rowmill


class Lookup(NamedTuple):
    """A feature of a plan.

    Attributes:
        name: The name by which errors tell of it, unique in its plan.
        table: The table that its ids are looked up in.
        pooling: As ``rowmill.Feature`` has it: ``"sum"``, ``"mean"``, ``"weighted_sum"`` or ``"none"``.
        dim: The dimensions that the table has to have.
        rows: The rows that it has to have.
    """

    name: str
    table: str
    pooling: str
    dim: int
    rows: int


def plan_of(lookups: Tuple[Lookup, ...]) -> str:
    """A plan: the features of a request as text, which stays in a graph when that is exported and saved."""
    return json.dumps(lookups, separators=(",", ":"))


class Model:
    """A model that a client serves, with the schemas that were bound for it."""

    def __init__(self, name: str, client: rowmill.Client, max_batch: int, max_ids: int) -> None:
        self.name = name
        self.client = client
        self.max_batch = max_batch
        self.max_ids = max_ids
        self._plans: Dict[str, Tuple[Lookup, ...]] = {}
        self._schemas: Dict[Tuple[str, int], rowmill.Schema] = {}

    def lookups(self, plan: str) -> Tuple[Lookup, ...]:
        """The features of a plan, once it was checked against the model's tables.

        Raises:
            rowmill.InputError: The model has no such table, or one of another shape.
        """
        lookups = self._plans.get(plan)
        if lookups is None:
            lookups = tuple(Lookup(*fields) for fields in json.loads(plan))
            self._check(lookups)
            self._plans[plan] = lookups
        return lookups

    def schema(self, plan: str, block: int = 0) -> rowmill.Schema:
        """The schema of a plan, bound when it is first asked for.

        Args:
            plan: The plan.
            block: Most ids of a feature in a request, where features are not pooled.

        Raises:
            rowmill.Error: As ``rowmill.Client.bind``, and as :meth:`lookups`.
        """
        schema = self._schemas.get((plan, block))
        if schema is None:
            features = [
                rowmill.Feature(lookup.name, lookup.table, lookup.pooling, block or None) for lookup in self.lookups(plan)
            ]
            # Where another thread has bound it meanwhile, it is the same one, and counted once.
            schema = self.client.bind(features, max_batch=self.max_batch)
            self._schemas[plan, block] = schema
        return schema

    def _check(self, lookups: Tuple[Lookup, ...]) -> None:
        tables = {table.name: table for table in self.client.tables()}
        for lookup in lookups:
            table = tables.get(lookup.table)
            if table is None:
                raise rowmill.InputError(
                    f"the model {self.name!r} has no table {lookup.table!r} for the feature {lookup.name!r}; it has "
                    f"{', '.join(tables)}"
                )
            found, wanted = (table.rows, table.dim), (lookup.rows, lookup.dim)
            if found != wanted:
                raise rowmill.InputError(
                    f"table {lookup.table!r} of the model {self.name!r} is {found[0]} rows of {found[1]} dimensions, and the "
                    f"module is configured for {wanted[0]} of {wanted[1]}; export the model again, or correct the configuration"
                )


_MODELS: Dict[str, Model] = {}


def register(name: str, client: rowmill.Client, *, max_batch: int = 1024, max_ids: int = 1 << 17) -> None:
    """Says which client serves a model, for modules and exported programs of this process that name it.

    Args:
        name: The model's name, as modules have it in ``model=``.
        client: Its client. One that was registered before under the name is used no more.
        max_batch: Most bags a feature of a request; batches of more are looked up in parts. At most 65,536.
        max_ids: Most ids of a request; batches of more are looked up in parts. The dataplane's limit for each of its workers
            is 262,144, if it is not configured otherwise.
    """
    _MODELS[name] = Model(name, client, max_batch, max_ids)


def unregister(name: str) -> None:
    """Forgets a model. The client stays open.

    Args:
        name: Its name. It need not be registered.
    """
    _MODELS.pop(name, None)


def client_of(name: str) -> rowmill.Client:
    """The client that was registered for a model.

    Args:
        name: The model's name.

    Raises:
        rowmill.InputError: No client was.
    """
    return model_of(name).client


def registered(name: str) -> bool:
    """Whether a model is registered whose client is open."""
    return name in _MODELS and not _MODELS[name].client.closed


def model_of(name: str) -> Model:
    """A registered model.

    Raises:
        rowmill.InputError: None was registered under that name.
    """
    model = _MODELS.get(name)
    if model is None:
        known = ", ".join(repr(known) for known in _MODELS) or "none"
        raise rowmill.InputError(
            f"no client is registered for the model {name!r} in this process (registered: {known}); call "
            f"rowmill.torch.register({name!r}, rowmill.connect(URL))"
        )
    return model
