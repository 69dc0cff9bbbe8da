"""The stand-in for libcuda, whose memory is this machine's, as the driver of a GPU."""

import ctypes
import pathlib
import shutil

import numpy as np

NOT_READY = 600


class Driver:
    """A copy of the stand-in with a state of its own, called as programs call CUDA."""

    def __init__(self, library: pathlib.Path, folder: pathlib.Path, options: str = "") -> None:
        self.path = shutil.copy(library, folder)
        self.calls = ctypes.CDLL(self.path)
        self.calls.rowmill_stand_in_options(options.encode())
        self("cuInit", 0)
        self.context = ctypes.c_void_p()
        self("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)
        self("cuCtxPushCurrent_v2", self.context)

    def __call__(self, name: str, *arguments: object) -> None:
        assert getattr(self.calls, name)(*arguments) == 0, name

    def stream(self) -> int:
        stream = ctypes.c_void_p()
        self("cuStreamCreate", ctypes.byref(stream), 1)
        assert stream.value
        return stream.value

    def is_idle(self, stream: int) -> bool:
        code = self.calls.cuStreamQuery(ctypes.c_void_p(stream))
        assert code in (0, NOT_READY)
        return code == 0

    def memory(self, nbytes: int) -> tuple[int, int]:
        """Memory of the GPU, all ones."""
        address = ctypes.c_uint64()
        self("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(nbytes))
        self("cuMemsetD8_v2", address, ctypes.c_ubyte(1), ctypes.c_size_t(nbytes))
        return address.value, nbytes

    def copy(self, to: tuple[int, int], source: tuple[int, int], stream: int) -> None:
        """Has the stream copy one to the other."""
        to_address, from_address = ctypes.c_uint64(to[0]), ctypes.c_uint64(source[0])
        self("cuMemcpyDtoDAsync_v2", to_address, from_address, ctypes.c_size_t(to[1]), ctypes.c_void_p(stream))

    def read(self, memory: tuple[int, int]) -> np.ndarray:
        """What is there now, whatever streams have to do."""
        out = np.empty(memory[1] // 4, np.float32)
        self("cuMemcpyDtoH_v2", ctypes.c_void_p(out.ctypes.data), ctypes.c_uint64(memory[0]), ctypes.c_size_t(memory[1]))
        return out
