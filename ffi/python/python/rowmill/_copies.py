"""What can't be copied or pickled says what to do instead."""

import copyreg
from collections.abc import Callable
from typing import NoReturn

from rowmill._rowmill import Array, Buffer, Client, Future, Gpu, GpuMemory, Result, Schema, Table

_INSTEAD: dict[type, str] = {
    Array: "it sees a result's memory; copy what it shows, such as .numpy().copy()",
    Buffer: "it is memory that is registered for a client; make another one (Client.buffer), and copy the bytes",
    Client: "it is a connection of this process; pass the URL on, and connect again",
    Future: "it is a request in flight; pass its result on, or submit the batch again",
    Gpu: "it belongs to a client of this process; open it again (Client.gpu)",
    GpuMemory: "it is registered for a client; register the memory again (Gpu.register)",
    Result: "it sees memory of its client; copy what it shows, such as .numpy().copy()",
    Schema: "it is bound for a client; bind its features again (Client.bind)",
    Table: "it tells of the model that a client is connected to; ask there (Client.tables)",
}


def _refusal(instead: str) -> Callable[[object], NoReturn]:
    def refuse(thing: object) -> NoReturn:
        raise TypeError(f"a rowmill.{type(thing).__name__} can't be copied or pickled: {instead}")

    return refuse


for _class, _instead in _INSTEAD.items():
    copyreg.pickle(_class, _refusal(_instead))  # type: ignore[arg-type]
