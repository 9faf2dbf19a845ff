"""Memory of the library for those who take tensors by DLPack: torch.from_dlpack(), numpy.from_dlpack() and others.

The struct that the library makes has a deleter in C, which whoever consumes a capsule calls; a capsule that nobody has
consumed calls it at its own end.
"""

import ctypes
from ctypes import POINTER, byref, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p

from terrace import library as lib

_CPU = 1
_READ_ONLY = 1
_VERSIONED, _UNVERSIONED = b"dltensor_versioned", b"dltensor"  # a capsule borrows its name


class _Tensor(ctypes.Structure):
    """DLTensor of dlpack.h."""
    _fields_ = [("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32), ("ndim", c_int32),
                ("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16), ("shape", POINTER(c_int64)),
                ("strides", POINTER(c_int64)), ("byte_offset", c_uint64)]


_Deleter = ctypes.CFUNCTYPE(None, c_void_p)  # which lets other threads run


class _Managed(ctypes.Structure):
    """DLManagedTensor."""
    _fields_ = [("tensor", _Tensor), ("context", c_void_p), ("deleter", _Deleter)]


class _ManagedVersioned(ctypes.Structure):
    """DLManagedTensorVersioned."""
    _fields_ = [("major", c_uint32), ("minor", c_uint32), ("context", c_void_p), ("deleter", _Deleter),
                ("flags", c_uint64), ("tensor", _Tensor)]


def _function(name, result, *arguments):
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_Destructor = ctypes.CFUNCTYPE(None, c_void_p)
_new_capsule = _function("PyCapsule_New", ctypes.py_object, c_void_p, c_char_p, _Destructor)
# A capsule at its end is no object that may be referred to: its address is given.
_is_valid = _function("PyCapsule_IsValid", c_int32, c_void_p, c_char_p)
_pointer_of = _function("PyCapsule_GetPointer", c_void_p, c_void_p, c_char_p)


@_Destructor
def _end_capsule(capsule, is_valid=_is_valid, pointer_of=_pointer_of, of_type=((_VERSIONED, _ManagedVersioned),
                                                                              (_UNVERSIONED, _Managed))):
    """Of one that was consumed the name is another. What it uses is its own: at the end of the interpreter the names
    of a module may be gone."""
    for name, struct in of_type:
        if is_valid(capsule, name):
            address = pointer_of(capsule, name)
            struct.from_address(address).deleter(address)


# A capsule may be the last object of the interpreter that goes, and its end calls this: it is never freed.
_function("Py_IncRef", None, ctypes.py_object)(_end_capsule)


class Lease:
    """Memory of a session or of units that has `__dlpack__`; each call of it makes a capsule with a lease of its own,
    which ends with the tensor that is made of it. `lend` returns the address of a lease of the library."""

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
        if max_version is not None and max_version[0] >= 1:
            return _new_capsule(address, _VERSIONED, _end_capsule)
        try:
            plain = c_void_p()
            lib.call("terrace_lease_unversioned", address, byref(plain))
        except lib.UnsupportedError as problem:
            _ManagedVersioned.from_address(address).deleter(address)
            raise BufferError(str(problem)) from problem
        return _new_capsule(plain, _UNVERSIONED, _end_capsule)
