"""Hands out memory of the library by DLPack, to torch.from_dlpack(), numpy.from_dlpack() and others.

The struct that the library makes has a deleter in C, which the consumer of a capsule calls. If nobody consumes the
capsule, its destructor calls the deleter. The destructor is a function of the library too, since it may run while
Python raises an exception, and at the end of the interpreter.
"""

import ctypes
from ctypes import POINTER, byref, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p

from terrace import library as lib

_CPU = 1
_READ_ONLY = 1
_VERSIONED, _UNVERSIONED = b"dltensor_versioned", b"dltensor"  # a capsule only points to its name


class _Tensor(ctypes.Structure):
    """The struct DLTensor of dlpack.h."""
    _fields_ = [("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32), ("ndim", c_int32),
                ("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16), ("shape", POINTER(c_int64)),
                ("strides", POINTER(c_int64)), ("byte_offset", c_uint64)]


_Deleter = ctypes.CFUNCTYPE(None, c_void_p)  # called without the GIL, so that other threads run


class _ManagedVersioned(ctypes.Structure):
    """The struct DLManagedTensorVersioned of dlpack.h."""
    _fields_ = [("major", c_uint32), ("minor", c_uint32), ("context", c_void_p), ("deleter", _Deleter),
                ("flags", c_uint64), ("tensor", _Tensor)]


_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, c_void_p, c_char_p, c_void_p)(("PyCapsule_New", ctypes.pythonapi))


def _capsule_of(address, name):
    return _new_capsule(address, name, ctypes.cast(lib.library().terrace_capsule_end, c_void_p))


class Lease:
    """Memory of a session or of units that has `__dlpack__`. Each call of that makes a capsule with a lease of its own,
    which ends with the tensor that is made from the capsule. `lend` returns the address of a lease of the library."""

    def __init__(self, lend):
        self._lend = lend

    def __dlpack_device__(self):
        return _CPU, 0

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        if stream is not None:
            raise BufferError(f"stream={stream!r}: memory on the CPU has no stream")
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"dl_device={dl_device!r}: the memory is on the CPU; copy what is made of it")
        if copy:
            raise BufferError("copy=True: a lease is the memory itself; copy what is made of it")
        address = self._lend()
        try:
            if max_version is not None and max_version[0] >= 1:
                return _capsule_of(address, _VERSIONED)
            plain = c_void_p()
            lib.call("terrace_lease_unversioned", address, byref(plain))
            return _capsule_of(plain, _UNVERSIONED)
        except BaseException as problem:
            _ManagedVersioned.from_address(address).deleter(address)
            if isinstance(problem, lib.UnsupportedError):
                raise BufferError(str(problem)) from problem
            raise
