"""The library libterrace.so, loaded with ctypes: the functions and structs of runtime/capi/terrace.h.

A call that fails raises TerraceError, or its subclass for an error that a program may want to catch. Every
call releases the interpreter to other threads while it runs.
"""

import ctypes
import os
from ctypes import POINTER, byref, c_char_p, c_double, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from pathlib import Path

ABI_VERSION = 1
FILE_NAME = "libterrace.so.1"


class TerraceError(RuntimeError):
    """An error that says what happened, where, and what to do about it. `code` is the error's code in terrace.h."""

    code = 0


class ArgumentError(TerraceError, ValueError):
    code = 1


class OrderError(TerraceError):
    code = 2


class DTypeError(TerraceError, TypeError):
    code = 3


class UnsupportedError(TerraceError):
    code = 4


class DoesNotFitError(TerraceError, MemoryError):
    code = 5


class UnsuitableSystemError(TerraceError):
    code = 6


class StorageError(TerraceError, OSError):
    code = 7


class FullDiskError(StorageError):
    code = 8


class CorruptStateError(TerraceError):
    code = 9


class StateMismatchError(TerraceError, ValueError):
    code = 10


class MissingGradientError(TerraceError):
    code = 11


class ParameterChangedError(TerraceError):
    code = 12


class NotFiniteError(TerraceError, ArithmeticError):
    code = 13


class ForkedError(TerraceError):
    code = 14


class FailedSessionError(TerraceError):
    code = 15


_ERRORS = {error.code: error for error in (
    ArgumentError, OrderError, DTypeError, UnsupportedError, DoesNotFitError, UnsuitableSystemError, StorageError,
    FullDiskError, CorruptStateError, StateMismatchError, MissingGradientError, ParameterChangedError,
    NotFiniteError, ForkedError, FailedSessionError)}

DTYPES = {"float32": 1, "bfloat16": 2, "float16": 3}
TIERS = {"auto": 0, "host": 1, "nvme": 2}
DEVICES = {"cpu": 1, "cuda": 2}
STEP_SKIP_MISSING = 1
STEP_GRADIENTS_ARRIVE = 2
UNITS_CAN_ABANDON = 1
UNIT_FROZEN = 1
FORWARD, BACKWARD = 0, 1
PARAMETERS, GRADIENT = 0, 1

LogCallback = ctypes.CFUNCTYPE(None, c_int32, c_char_p, c_void_p)


class Buffer(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("element_count", c_int64), ("dtype", c_int32), ("device_type", c_int32),
                ("device_id", c_int32), ("reserved", c_int32), ("stream", c_void_p)]


class NvmeDirectory(ctypes.Structure):
    _fields_ = [("path", c_char_p), ("budget_bytes", c_uint64)]


class Hyperparameter(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("value", c_double)]


class Sized(ctypes.Structure):
    """A struct that begins with its own size."""

    def __init__(self, **values):
        super().__init__(struct_size=ctypes.sizeof(type(self)), **values)


class SessionOptions(Sized):
    _fields_ = [("struct_size", c_uint32), ("threads", c_int32), ("host_memory_bytes", c_uint64),
                ("state_tier", c_int32), ("io_engine", c_int32), ("nvme", POINTER(NvmeDirectory)),
                ("nvme_count", c_uint32), ("reserved", c_uint32), ("log", LogCallback), ("log_user", c_void_p)]


class GroupOptions(Sized):
    _fields_ = [("struct_size", c_uint32), ("hyperparameter_count", c_uint32), ("rule", c_char_p),
                ("hyperparameters", POINTER(Hyperparameter)), ("weight_decay", c_double)]


class TensorOptions(Sized):
    _fields_ = [("struct_size", c_uint32), ("flags", c_uint32), ("name", c_char_p), ("parameter", Buffer),
                ("shape", POINTER(c_int64)), ("dimension_count", c_int32), ("reserved", c_int32)]


class StepOptions(Sized):
    _fields_ = [("struct_size", c_uint32), ("flags", c_uint32), ("learning_rates", POINTER(c_double)),
                ("learning_rate_count", c_uint32), ("reserved", c_uint32), ("max_grad_norm", c_double),
                ("gradient_scale", c_double), ("known_norm", c_double)]


class StepResult(Sized):
    _fields_ = [("struct_size", c_uint32), ("skipped_tensors", c_uint32), ("step", c_int64),
                ("gradient_norm", c_double), ("clip_coefficient", c_double)]


GradientSink = ctypes.CFUNCTYPE(None, c_void_p, c_int32, c_int64, c_int64, c_void_p)


class UnitsOptions(Sized):
    _fields_ = [("struct_size", c_uint32), ("threads", c_int32), ("host_memory_bytes", c_uint64),
                ("nvme", POINTER(NvmeDirectory)), ("nvme_count", c_uint32), ("io_engine", c_int32),
                ("parameter_tier", c_int32), ("gradient_tier", c_int32), ("optimizer_tier", c_int32),
                ("saved_tier", c_int32), ("compute_dtype", c_int32), ("micro_batches", c_int32), ("rule", c_char_p),
                ("hyperparameters", POINTER(Hyperparameter)), ("hyperparameter_count", c_uint32),
                ("flags", c_uint32), ("weight_decay", c_double), ("max_grad_norm", c_double),
                ("log", LogCallback), ("log_user", c_void_p)]


class UnitOptions(Sized):
    _fields_ = [("struct_size", c_uint32), ("flags", c_uint32), ("name", c_char_p), ("element_count", c_int64),
                ("decayed_elements", c_int64), ("saved_bytes", c_uint64)]


class UnitMemory(Sized):
    _fields_ = [("struct_size", c_uint32), ("dtype", c_int32), ("parameters", c_void_p), ("gradient", c_void_p),
                ("saved", c_void_p), ("adds_gradient", c_int32), ("reserved", c_int32)]


class StateRange(ctypes.Structure):
    _fields_ = [("unit", c_int32), ("reserved", c_int32), ("field", c_char_p), ("first_element", c_int64),
                ("element_count", c_int64), ("out", c_void_p)]


StateSource = ctypes.CFUNCTYPE(c_int32, c_void_p, POINTER(StateRange))

_FUNCTIONS = {
    "terrace_session_create": [POINTER(SessionOptions), POINTER(c_void_p)],
    "terrace_session_destroy": [c_void_p],
    "terrace_group_add": [c_void_p, POINTER(GroupOptions), POINTER(c_int32)],
    "terrace_tensor_add": [c_void_p, c_int32, POINTER(TensorOptions), POINTER(c_int32)],
    "terrace_session_prepare": [c_void_p],
    "terrace_gradient_add": [c_void_p, c_int32, POINTER(Buffer)],
    "terrace_gradient_view": [c_void_p, c_int32, POINTER(Buffer)],
    "terrace_gradient_borrow": [c_void_p, c_int32, POINTER(Buffer), POINTER(c_int32)],
    "terrace_gradient_lease": [c_void_p, c_int32, POINTER(c_void_p)],
    "terrace_lease_unversioned": [c_void_p, POINTER(c_void_p)],
    "terrace_gradient_complete": [c_void_p, c_int32],
    "terrace_gradient_square_sum": [c_void_p, c_int32, POINTER(c_double)],
    "terrace_gradients_discard": [c_void_p],
    "terrace_step_begin": [c_void_p, POINTER(StepOptions)],
    "terrace_wait_parameter": [c_void_p, c_int32],
    "terrace_wait_norm": [c_void_p, POINTER(c_double)],
    "terrace_step_end": [c_void_p, POINTER(StepResult)],
    "terrace_step_count": [c_void_p, POINTER(c_int64)],
    "terrace_parameter_adopt": [c_void_p, c_int32],
    "terrace_state_read": [c_void_p, c_int32, c_char_p, c_int64, POINTER(Buffer)],
    "terrace_state_write": [c_void_p, c_int32, c_char_p, c_int64, POINTER(Buffer)],
    "terrace_tensor_updates": [c_void_p, c_int32, POINTER(c_int64)],
    "terrace_tensor_set_updates": [c_void_p, c_int32, c_int64],
    "terrace_save": [c_void_p, c_char_p],
    "terrace_load": [c_void_p, c_char_p],
    "terrace_pause": [c_void_p, c_char_p],
    "terrace_resume": [c_void_p],
    "terrace_ledger_json": [c_void_p, c_char_p, c_uint64, POINTER(c_uint64)],
    "terrace_metrics_json": [c_void_p, c_char_p, c_uint64, POINTER(c_uint64)],
    "terrace_units_create": [POINTER(UnitsOptions), POINTER(c_void_p)],
    "terrace_units_destroy": [c_void_p],
    "terrace_unit_add": [c_void_p, POINTER(UnitOptions), POINTER(c_int32)],
    "terrace_units_record": [c_void_p, c_int32, c_int32, c_int32],
    "terrace_units_prepare": [c_void_p],
    "terrace_units_fill": [c_void_p, c_int64, StateSource, c_void_p],
    "terrace_units_step_begin": [c_void_p, c_double],
    "terrace_unit_acquire": [c_void_p, c_int32, c_int32, c_int32, POINTER(UnitMemory)],
    "terrace_unit_release": [c_void_p, c_int32],
    "terrace_unit_lease": [c_void_p, c_int32, c_int32, POINTER(c_void_p)],
    "terrace_units_step_abandon": [c_void_p, GradientSink, c_void_p],
    "terrace_units_step_end": [c_void_p, POINTER(StepResult)],
    "terrace_units_state_read": [c_void_p, c_int32, c_char_p, c_int64, POINTER(Buffer)],
    "terrace_units_pause": [c_void_p, c_char_p],
    "terrace_units_resume": [c_void_p],
    "terrace_units_ledger_json": [c_void_p, c_char_p, c_uint64, POINTER(c_uint64)],
}


def _open():
    named = os.environ.get("TERRACE_LIBRARY")
    bundled = Path(__file__).parent / "lib" / FILE_NAME
    path = named or (str(bundled) if bundled.exists() else FILE_NAME)
    try:
        return ctypes.CDLL(path)
    except OSError as problem:
        raise ImportError(f"the library of Terrace cannot be loaded: {problem}; build the target terrace_c, and "
                          f"name its {FILE_NAME} by TERRACE_LIBRARY, or install Terrace") from problem


def _check_version(library):
    """Refuses a library that is older than this package. One of the same ABI may still lack new functions."""
    lacking = [name for name in ("terrace_abi_version", "terrace_capsule_end", *_FUNCTIONS) if not hasattr(library, name)]
    found = "one that lacks terrace_abi_version()"
    if "terrace_abi_version" not in lacking:
        library.terrace_abi_version.restype = c_int32
        found = f"{library.terrace_abi_version()}"
        if library.terrace_abi_version() >= ABI_VERSION and not lacking:
            return
        found += f" without {lacking[0]}()" if lacking else ""
    raise ImportError(f"this package needs a library of ABI {ABI_VERSION} or later, and found {found}: install both "
                      "of one version")


def _load():
    library = _open()
    _check_version(library)
    for name, arguments in _FUNCTIONS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, c_int32
    library.terrace_last_error.restype = c_char_p
    library.terrace_version.restype = c_char_p
    library.terrace_capsule_end.argtypes, library.terrace_capsule_end.restype = [c_void_p], None
    return library


_library = None


def library():
    """Returns the library, which the first call loads. Raises ImportError."""
    global _library
    if _library is None:
        _library = _load()
    return _library


def call(name, *arguments):
    """Calls a function that returns a terrace_error, and raises the error that it returns, if any."""
    code = getattr(library(), name)(*arguments)
    if code == 0:
        return
    raise _ERRORS.get(code, TerraceError)(library().terrace_last_error().decode(errors="replace"))


def text_of(name, handle):
    """Returns the text that a function writes into a buffer."""
    size = c_uint64()
    call(name, handle, None, 0, byref(size))
    text = ctypes.create_string_buffer(size.value)
    call(name, handle, text, size, byref(size))
    return text.value.decode()
