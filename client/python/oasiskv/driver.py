"""The part of the CUDA driver that a program needs to use a GpuWorkingSet from numpy: pinned arrays, which the GPU reads
in place, and a stream. For tests and tools; an engine on the GPU has its own."""

import ctypes

import numpy as np

from oasiskv.device import DeviceArray


class DriverMissing(RuntimeError):
    """This machine has no GPU, or no driver for it."""


class Driver:
    """The device's primary context, current in the thread that made this. Thread contract: one thread."""

    def __init__(self, device: int = 0):
        try:
            self._lib = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise DriverMissing(f"the NVIDIA driver's libcuda.so.1 cannot be loaded: {error}") from None
        self._call("cuInit", 0)
        handle = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(handle), device)
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
        self._call("cuCtxSetCurrent", context)

    def _call(self, name: str, *args) -> None:
        code = getattr(self._lib, name)(*args)
        if code != 0:
            text = ctypes.c_char_p()
            self._lib.cuGetErrorString(code, ctypes.byref(text))
            raise DriverMissing(f"{name}: {text.value.decode() if text.value else code}")

    def pinned(self, shape, dtype) -> np.ndarray:
        """A zeroed array in pinned memory, which is not freed before the process ends. array.ctypes.data is its address
        for the GPU, too."""
        count = int(np.prod(shape)) * np.dtype(dtype).itemsize
        memory = ctypes.c_void_p()
        portable_and_mapped = 3
        self._call("cuMemHostAlloc", ctypes.byref(memory), ctypes.c_size_t(max(count, 1)), portable_and_mapped)
        buffer = (ctypes.c_char * max(count, 1)).from_address(memory.value)
        array = np.frombuffer(buffer, dtype=dtype, count=int(np.prod(shape))).reshape(shape)
        array[...] = 0
        return array

    def stream(self) -> int:
        """A new cudaStream_t, which does not wait for the default stream."""
        out = ctypes.c_void_p()
        self._call("cuStreamCreate", ctypes.byref(out), 1)
        return out.value

    def read(self, array: DeviceArray) -> np.ndarray:
        """A host copy of a C-contiguous array in GPU memory. Call synchronize() first if a stream still writes it."""
        if array.strides is not None:
            raise ValueError(f"{array} has strides; a C-contiguous array without strides is needed")
        out = np.empty(array.shape, f"{'u' if array.kind == 'bf' else array.kind}{array.itemsize}")
        self._call("cuMemcpyDtoH_v2", ctypes.c_void_p(out.ctypes.data), ctypes.c_uint64(array.address),
                   ctypes.c_size_t(out.nbytes))
        return out

    def synchronize(self, stream: int) -> None:
        self._call("cuStreamSynchronize", ctypes.c_void_p(stream))
