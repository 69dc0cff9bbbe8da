"""Client of rowmill, which serves embedding lookups for recommendation models.

A :class:`Client` is a connection to a dataplane. It binds a :class:`Schema` of features, and looks batches of jagged ids up in the
model's tables; each :class:`Result` holds the pooled vectors in memory that the dataplane wrote them to, which NumPy arrays and
torch tensors see without a copy.
"""

from rowmill._rowmill import (
    Array,
    Buffer,
    Client,
    Feature,
    Future,
    Jagged,
    Result,
    Schema,
    Table,
    connect,
)
from rowmill.errors import (
    BusyError,
    CancelledError,
    ClosedError,
    ConnectError,
    DeviceError,
    DtypeError,
    Error,
    ExpiredError,
    FeatureError,
    IdError,
    InputError,
    OverloadedError,
    RefusedError,
    WaitTimeout,
)

__all__ = [
    "Array",
    "Buffer",
    "BusyError",
    "CancelledError",
    "Client",
    "ClosedError",
    "ConnectError",
    "DeviceError",
    "DtypeError",
    "Error",
    "ExpiredError",
    "Feature",
    "FeatureError",
    "Future",
    "IdError",
    "InputError",
    "Jagged",
    "OverloadedError",
    "RefusedError",
    "Result",
    "Schema",
    "Table",
    "WaitTimeout",
    "connect",
]
