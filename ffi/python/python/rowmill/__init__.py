"""Client of rowmill, which serves embedding lookups for recommendation models.

A :class:`Client` is a connection to a dataplane. It binds a :class:`Schema` of features, and looks batches of jagged ids up in the
model's tables; each :class:`Result` holds the pooled vectors in memory that the dataplane wrote them to, which NumPy arrays and
torch tensors see without a copy.
"""

try:
    from rowmill._rowmill import (
        Array,
        Buffer,
        Client,
        Feature,
        Future,
        Gpu,
        GpuMemory,
        Jagged,
        Result,
        Schema,
        Table,
        __version__,
        connect,
    )
except ImportError as error:
    if "libibverbs" in str(error) or "librdmacm" in str(error):
        raise ImportError(f"{error}; run: apt install libibverbs1 librdmacm1, or build rowmill without RDMA") from error
    raise
from rowmill import _copies  # noqa: F401  (tells copy and pickle)
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
    ReplyTimeout,
    RowUnavailableError,
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
    "Gpu",
    "GpuMemory",
    "IdError",
    "InputError",
    "Jagged",
    "OverloadedError",
    "RefusedError",
    "ReplyTimeout",
    "Result",
    "RowUnavailableError",
    "Schema",
    "Table",
    "WaitTimeout",
    "__version__",
    "connect",
]
