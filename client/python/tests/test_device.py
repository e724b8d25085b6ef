"""Arrays of other libraries, and the GPU working set where there is no GPU."""

import unittest

import numpy as np

import oasiskv
from oasiskv.device import device_array, stream_handle


class Interface:
    """What cupy and torch give."""

    def __init__(self, address, shape, typestr, strides=None):
        self.__cuda_array_interface__ = {
            "data": (address, False), "shape": shape, "typestr": typestr, "strides": strides, "version": 3}


class Pinned:
    """A numpy array that says of itself that it lies in pinned memory."""

    def __init__(self, array):
        self.array = array

    def __dlpack_device__(self):
        return (3, 0)

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__()


class DeviceArrayTest(unittest.TestCase):
    def test_the_array_interface_is_read(self):
        array = device_array(Interface(4096, (3, 4, 8), "<f2", (128, 16, 2)), "queries")
        self.assertEqual((array.address, array.shape, array.kind, array.itemsize), (4096, (3, 4, 8), "f", 2))
        self.assertEqual(array.row_stride("queries"), 64)
        self.assertEqual(device_array(Interface(1, (3, 4), "<f4"), "x").row_stride("x"), 0)

    def test_a_row_with_gaps_is_refused(self):
        with self.assertRaisesRegex(ValueError, "keys.*contiguous"):
            device_array(Interface(4096, (3, 4, 8), "<f2", (256, 32, 2)), "keys").row_stride("keys")

    def test_dlpack_is_read(self):
        memory = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
        array = device_array(Pinned(memory[:, 1:]), "queries")
        self.assertEqual(array.address, memory.ctypes.data + 16)
        self.assertEqual((array.shape, array.kind, array.itemsize), ((2, 2, 4), "f", 4))
        self.assertEqual(array.row_stride("queries"), 12)

    def test_its_own_interface_says_the_same(self):
        one = device_array(Interface(4096, (3, 8), "<i4", (64, 4)), "topk")
        self.assertEqual(device_array(Interface(4096, (3, 8), "<i4", (64, 4)), "topk").__cuda_array_interface__,
                         one.__cuda_array_interface__)
        self.assertEqual(one.__cuda_array_interface__["strides"], (64, 4))

    def test_ordinary_memory_is_refused(self):
        for value in (np.zeros(3), [1, 2], "x"):
            with self.assertRaisesRegex(TypeError, "queries.*GPU memory"):
                device_array(value, "queries")

    def test_streams(self):
        class Torch:
            cuda_stream = 7

        class Cupy:
            ptr = 8

        class Protocol:
            def __cuda_stream__(self):
                return (0, 9)

        self.assertEqual([stream_handle(s) for s in (None, 5, Torch(), Cupy(), Protocol())], [0, 5, 7, 8, 9])
        with self.assertRaisesRegex(TypeError, "stream"):
            stream_handle("0")


class WithoutGpuTest(unittest.TestCase):
    def test_the_reason_is_named(self):
        geometry = oasiskv.Geometry(layers=1, kv_heads=1, head_dim=16)
        built_with_cuda = True
        try:
            oasiskv.GpuWorkingSet(geometry, 1).close()
        except oasiskv.Unsupported as error:
            self.assertRegex(str(error), "OASISKV_CUDA|no GPU can be used")
            built_with_cuda = "built without its cuda backend" not in str(error)
        # Options are looked at before the device, but only by a library that has the backend.
        refusal = oasiskv.InvalidArgument if built_with_cuda else oasiskv.Unsupported
        with self.assertRaises(refusal):
            oasiskv.GpuWorkingSet(geometry, 1, resident_blocks=0x10000)


if __name__ == "__main__":
    unittest.main()
