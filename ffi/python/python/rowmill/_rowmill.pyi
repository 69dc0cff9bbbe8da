"""Types of what is written in Rust; its docstrings tell the rest."""

import os
import sys
from collections.abc import Generator, Sequence
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeAlias, final

import numpy as np
import numpy.typing as npt
import torch  # type: ignore[import-not-found, unused-ignore]
from typing_extensions import Buffer as _AnyBuffer

from rowmill.errors import Error

__all__ = [
    "Array",
    "Buffer",
    "Client",
    "Feature",
    "Future",
    "Gpu",
    "GpuMemory",
    "Jagged",
    "Result",
    "Schema",
    "Table",
    "_Bell",
    "__version__",
    "connect",
    "write_generation",
]

__version__: str

_Tensor: TypeAlias = torch.Tensor
_Numbers: TypeAlias = npt.NDArray[Any] | _Tensor | _AnyBuffer
_Pooling: TypeAlias = Literal["sum", "mean", "weighted_sum", "weighted_mean", "max", "none"]
_Output: TypeAlias = Literal["float32", "float16", "bfloat16"]

class _Keyed(Protocol):
    def keys(self) -> Sequence[str]: ...
    def values(self) -> _Numbers: ...
    def lengths_or_none(self) -> _Numbers | None: ...
    def offsets_or_none(self) -> _Numbers | None: ...
    def weights_or_none(self) -> _Numbers | None: ...

_OfFeature: TypeAlias = tuple[_Numbers, _Numbers] | tuple[_Numbers, _Numbers, _Numbers] | Jagged
_Batch: TypeAlias = Jagged | dict[str, _OfFeature] | _Keyed

@final
class Table:
    @property
    def name(self) -> str: ...
    @property
    def rows(self) -> int: ...
    @property
    def dim(self) -> int: ...
    @property
    def format(self) -> str: ...
    @property
    def kind(self) -> str: ...

@final
class Feature:
    def __new__(cls, name: str, table: str, pooling: _Pooling = "sum", max_ids: int | None = None) -> Self: ...
    @property
    def name(self) -> str: ...
    @property
    def table(self) -> str: ...
    @property
    def pooling(self) -> _Pooling: ...
    @property
    def max_ids(self) -> int | None: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class Schema:
    @property
    def features(self) -> list[str]: ...
    @property
    def dims(self) -> list[int]: ...
    @property
    def width(self) -> int: ...
    @property
    def max_batch(self) -> int: ...
    @property
    def output(self) -> _Output: ...
    def result_bytes(self, bags: int) -> int: ...

@final
class Jagged:
    def __new__(
        cls,
        ids: _Numbers,
        lengths: _Numbers | None = None,
        *,
        offsets: _Numbers | None = None,
        weights: _Numbers | None = None,
        keys: Sequence[str] | None = None,
    ) -> Self: ...

@final
class Array:
    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def dtype(self) -> _Output: ...
    def numpy(self) -> npt.NDArray[np.floating[Any]]: ...
    def torch(self) -> _Tensor: ...
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[np.floating[Any]]: ...
    if sys.version_info >= (3, 12):
        def __buffer__(self, flags: int, /) -> memoryview: ...

    def __len__(self) -> int: ...

@final
class Result:
    @property
    def values(self) -> Array: ...
    @property
    def bags(self) -> int: ...
    @property
    def generation(self) -> int: ...
    @property
    def service_s(self) -> float: ...
    def keys(self) -> list[str]: ...
    def __getitem__(self, feature: str, /) -> Array: ...
    def numpy(self) -> npt.NDArray[np.floating[Any]]: ...
    def torch(self) -> _Tensor: ...
    def release(self) -> None: ...
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[np.floating[Any]]: ...
    if sys.version_info >= (3, 12):
        def __buffer__(self, flags: int, /) -> memoryview: ...


@final
class Buffer:
    @property
    def nbytes(self) -> int: ...
    if sys.version_info >= (3, 12):
        def __buffer__(self, flags: int, /) -> memoryview: ...

    def __len__(self) -> int: ...

@final
class Future:
    @property
    def _client(self) -> Client: ...
    def result(self, timeout: float | None = None) -> Result: ...
    def exception(self, timeout: float | None = None) -> Error | None: ...
    def done(self) -> bool: ...
    def cancel(self) -> bool: ...
    def _ring(self, bell: _Bell, token: int) -> None: ...
    def __await__(self) -> Generator[Any, None, Result]: ...

@final
class _Bell:
    def fileno(self) -> int: ...
    def heard(self) -> list[int]: ...

@final
class Gpu:
    def lookup(
        self,
        schema: Schema,
        batch: _Batch,
        *,
        out: _Tensor | tuple[int, int],
        stream: torch.cuda.Stream | int | None = None,
        weights: _Numbers | None = None,
        generation: int = 0,
        deadline: float | None = None,
        timeout: float = 10.0,
    ) -> None: ...
    def _lookup_flat(
        self,
        schema: Schema,
        ids: tuple[int, int, int],
        division: tuple[int, int, int],
        is_offsets: bool,
        weights: int,
        columns: Sequence[int] | None,
        column_count: int,
        out: tuple[int, int],
        stream: int,
    ) -> None: ...
    def register(self, memory: _Tensor | tuple[int, int]) -> GpuMemory: ...
    def check(self, stream: torch.cuda.Stream | int | None = None) -> None: ...
    def check_all(self) -> None: ...
    def synchronize(self, stream: torch.cuda.Stream | int | None = None) -> None: ...
    @property
    def way(self) -> Literal["dma-buf", "nvidia-peermem", "staging"]: ...
    @property
    def report(self) -> list[str]: ...
    @property
    def staged_instead(self) -> int: ...
    @property
    def ordinal(self) -> int: ...
    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        *_exception: type[BaseException] | BaseException | TracebackType | None,
    ) -> None: ...

@final
class GpuMemory:
    @property
    def nbytes(self) -> int: ...
    @property
    def way(self) -> Literal["dma-buf", "nvidia-peermem", "staging"]: ...
    @property
    def report(self) -> list[str]: ...

@final
class Client:
    def tables(self) -> list[Table]: ...
    def bind(self, features: Sequence[Feature], *, max_batch: int = 1024, output: _Output = "float32") -> Schema: ...
    def lookup(
        self,
        schema: Schema,
        batch: _Batch,
        *,
        weights: _Numbers | None = None,
        out: Buffer | npt.NDArray[Any] | _Tensor | None = None,
        generation: int = 0,
        deadline: float | None = None,
        timeout: float | None = None,
    ) -> Result: ...
    def submit(
        self,
        schema: Schema,
        batch: _Batch,
        *,
        weights: _Numbers | None = None,
        out: Buffer | npt.NDArray[Any] | _Tensor | None = None,
        generation: int = 0,
        deadline: float | None = None,
    ) -> Future: ...
    def _lookup_flat(
        self,
        schema: Schema,
        ids: tuple[int, int, int],
        division: tuple[int, int, int],
        is_offsets: bool,
        weights: int,
        columns: Sequence[int] | None,
        column_count: int,
        out: Buffer | npt.NDArray[Any] | _Tensor | None = None,
        generation: int = 0,
        deadline: float | None = None,
        timeout: float | None = None,
    ) -> Result: ...
    def buffer(self, nbytes: int) -> Buffer: ...
    def gpu(
        self,
        ordinal: int = 0,
        *,
        allow_staging: bool = True,
        library: str | os.PathLike[str] | None = None,
        staging_bytes: int = 64 << 20,
        requests: int = 16,
        limit: float = 10.0,
    ) -> Gpu: ...
    def _bell(self) -> _Bell: ...
    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...
    @property
    def generation(self) -> int: ...
    def stats(self) -> dict[str, int]: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        *_exception: type[BaseException] | BaseException | TracebackType | None,
    ) -> None: ...

def connect(
    url: str,
    *,
    name: str = "python",
    credits: int = 8,
    source_bytes: int = 16 << 20,
    pool_bytes: int | None = None,
    wait: Literal["block", "sleep", "poll"] = "block",
    reply_limit: float = 10.0,
) -> Client: ...
def write_generation(path: str, number: int, tables: list[tuple[str, int, int, str, int, str]]) -> None: ...
