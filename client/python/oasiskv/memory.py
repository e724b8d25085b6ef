"""Addresses of the caller's memory: numpy arrays, other buffers, plain integers."""

import ctypes

import numpy as np


def address_of(memory, nbytes: int, writable: bool, what: str) -> int:
    """The address of `memory`: an int (not checked), or a C-contiguous buffer of at least `nbytes` bytes.

    Raises ValueError naming `what` when it is too small, not contiguous, or read-only and `writable` is true.
    """
    if isinstance(memory, int):
        return memory
    array = memory if isinstance(memory, np.ndarray) else np.frombuffer(memory, dtype=np.uint8)
    if not array.flags.c_contiguous:
        raise ValueError(f"{what} must be C-contiguous; pass numpy.ascontiguousarray(...)")
    if writable and not array.flags.writeable:
        raise ValueError(f"{what} is read-only but would be written")
    if array.nbytes < nbytes:
        raise ValueError(f"{what} holds {array.nbytes} bytes; {nbytes} are needed")
    return array.ctypes.data


def as_array(values, dtype, shape, what: str) -> np.ndarray:
    """`values` as a C-contiguous array of `dtype` and `shape` (None: any length). Raises ValueError naming `what`."""
    array = np.ascontiguousarray(values, dtype=dtype)
    if array.ndim != len(shape) or any(w is not None and w != h for w, h in zip(shape, array.shape)):
        wanted = "[" + ", ".join("any" if w is None else str(w) for w in shape) + "]"
        raise ValueError(f"{what} has shape {list(array.shape)}; {wanted} is needed")
    return array


def whole_numbers(values, dtype, what: str) -> np.ndarray:
    """`values` (one number or many) as a C-contiguous array of the integer type `dtype`. A conversion that changes a number
    would name another block or slot: it raises TypeError or ValueError naming `what`."""
    array = np.atleast_1d(values)
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"{what} holds {array.dtype}; whole numbers are needed")
    limits = np.iinfo(dtype)
    if array.size and (array.min() < limits.min or array.max() > limits.max):
        raise ValueError(f"{what} holds {array.min()} to {array.max()}; numbers from {limits.min} to {limits.max} are needed")
    return np.ascontiguousarray(array, dtype=dtype)


def view_at(address: int, shape, dtype, owner) -> np.ndarray:
    """A read-only array over memory of the library; it keeps `owner` alive."""
    count = int(np.prod(shape))
    buffer = (ctypes.c_char * (count * np.dtype(dtype).itemsize)).from_address(address)
    buffer._oasiskv_owner = owner
    array = np.frombuffer(buffer, dtype=dtype, count=count).reshape(shape)
    array.flags.writeable = False
    return array
