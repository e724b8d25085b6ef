"""Arrays in GPU memory and streams of any library (torch, cupy, ...), without importing one."""

import ctypes
from dataclasses import dataclass, field

# DLPack's type codes and device kinds (dlpack.h): CUDA memory, pinned host memory, managed memory.
_KINDS = {0: "i", 1: "u", 2: "f", 4: "bf"}
_DEVICES = (2, 3, 13)


@dataclass(frozen=True)
class DeviceArray:
    """An address with shape and type. `kind` is "f", "bf" (bfloat16), "i" or "u"; `itemsize` is in bytes, strides are in
    elements. It keeps `owner`, which holds the memory, alive. Other libraries read it through
    `__cuda_array_interface__` (bfloat16 as uint16)."""

    address: int
    shape: tuple
    kind: str
    itemsize: int
    strides: tuple = None  # None: C-contiguous
    owner: object = field(default=None, repr=False, compare=False)

    @property
    def __cuda_array_interface__(self) -> dict:
        kind = "u" if self.kind == "bf" else self.kind
        strides = None if self.strides is None else tuple(s * self.itemsize for s in self.strides)
        return {"shape": self.shape, "typestr": f"<{kind}{self.itemsize}", "data": (self.address, False),
                "strides": strides, "version": 3}

    def row_stride(self, what: str) -> int:
        """Elements from one row to the next; 0: rows follow each other. Raises ValueError unless a row is contiguous."""
        if self.strides is None:
            return 0
        expected = 1
        for size, stride in reversed(list(zip(self.shape[1:], self.strides[1:]))):
            if size != 1 and stride != expected:
                raise ValueError(f"{what} has strides {self.strides} for shape {self.shape}; a row must be contiguous")
            expected *= size
        return self.strides[0] if self.shape[0] > 1 else 0


def device_array(value, what: str) -> DeviceArray:
    """`value` as a DeviceArray: a DeviceArray, or an object in GPU or pinned memory with DLPack or
    __cuda_array_interface__. Raises TypeError naming `what` otherwise, also for an address (int), which has no shape."""
    if isinstance(value, DeviceArray):
        return value
    if hasattr(value, "__dlpack__") and value.__dlpack_device__()[0] in _DEVICES:
        return _from_dlpack(value, what)
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is None:
        raise TypeError(
            f"{what} is {type(value).__name__}; needed is an array in GPU memory (DLPack or __cuda_array_interface__), "
            "an oasiskv.DeviceArray or an address (int)"
        )
    typestr = interface["typestr"]
    itemsize = int(typestr[2:])
    strides = interface.get("strides")
    return DeviceArray(interface["data"][0], tuple(interface["shape"]), typestr[1], itemsize,
                       None if strides is None else tuple(s // itemsize for s in strides), value)


def address(value, what: str) -> int:
    """The address of an int, of None (0), or of anything that device_array takes."""
    if value is None:
        return 0
    return value if isinstance(value, int) else device_array(value, what).address


def stream_handle(stream) -> int:
    """A cudaStream_t as an int: of an int, a stream of torch (cuda_stream) or cupy (ptr), or an object with
    __cuda_stream__. None is the legacy default stream. Raises TypeError otherwise."""
    if stream is None:
        return 0
    if isinstance(stream, int):
        return stream
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    for name in ("cuda_stream", "ptr"):
        if hasattr(stream, name):
            return int(getattr(stream, name))
    raise TypeError(f"the stream is {type(stream).__name__}; an int or a stream of torch or cupy is needed")


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


def _from_dlpack(value, what: str) -> DeviceArray:
    # The capsule is not consumed, so it frees its memory itself; the array keeps it alive. stream=-1: no synchronization,
    # because the caller orders the work.
    capsule = value.__dlpack__(stream=-1)
    tensor = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    if tensor.code not in _KINDS or tensor.lanes != 1 or tensor.bits % 8 != 0:
        raise TypeError(f"{what} has DLPack type {tensor.code} of {tensor.bits} bits, which is not supported")
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else None
    return DeviceArray((tensor.data or 0) + tensor.byte_offset, shape, _KINDS[tensor.code], tensor.bits // 8, strides,
                       capsule)
