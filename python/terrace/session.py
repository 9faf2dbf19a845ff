"""A session of the library: exact updates of parameters that the caller owns, with state in host memory or on
NVMe. Addresses are plain integers, so this module needs no other package. terrace.torch is built on it.
"""

import ctypes
import json
import os
import weakref
from ctypes import byref, c_double, c_int32, c_int64, c_void_p

from terrace import library as lib
from terrace.dlpack import Lease
from terrace.wording import SESSION_PHRASES, Wording


def buffer_of(address, element_count, dtype, device="cpu", device_index=0, stream=None):
    """Returns a lib.Buffer of dense elements in memory. `dtype` is "float32", "bfloat16" or "float16"."""
    if dtype not in lib.DTYPES:
        raise lib.DTypeError(f"tensors of {dtype} are not taken: use float32, bfloat16 or float16")
    if device not in lib.DEVICES:
        raise lib.UnsupportedError(f"tensors on {device} are not taken: use cpu or cuda")
    return lib.Buffer(data=address, element_count=element_count, dtype=lib.DTYPES[dtype],
                      device_type=lib.DEVICES[device], device_id=device_index, stream=stream)


def bytes_of(size):
    """Returns a size in bytes, given as a number or as a text such as "4GiB" or "500MB"; for None, 0: no limit."""
    if size is None:
        return 0
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return size
    units = {"": 1, "B": 1}
    for power, letter in enumerate("KMGT", start=1):
        units[letter + "iB"], units[letter + "B"] = 1024 ** power, 1000 ** power
    if isinstance(size, str):
        number = size.rstrip("KMGTiB")
        unit = size[len(number):]
        try:
            if unit in units and 0 < float(number) < 2 ** 62:
                return int(float(number) * units[unit])
        except ValueError:
            pass
    raise lib.ArgumentError(f"{size!r} is no size: give a text such as '4GiB', or a number of bytes")


def directories_of(nvme):
    """Returns a directory, several, or None as a list."""
    return [nvme] if isinstance(nvme, (str, bytes, os.PathLike)) else list(nvme or ())


def _destroy(library, handle, lent):
    library.terrace_session_destroy(handle)  # waits for updates that may still read lent gradients
    lent.clear()


class Session:
    """A session. Add groups and tensors, and call prepare(). For each step add gradients, begin the step, and end it.
    Used by one thread at a time, except wait_parameter(). Raises the errors of terrace.library. `wording` rewords their
    texts; the default names this class's methods and arguments."""

    def __init__(self, *, state="host", host_memory=None, nvme=(), threads=0, log=None,
                 wording=Wording(SESSION_PHRASES)):
        self._wording = wording
        self._handle = None
        if state not in lib.TIERS:
            raise lib.ArgumentError(f"state={state!r}: give one of {', '.join(lib.TIERS)}")
        directories = directories_of(nvme)
        paths = (lib.NvmeDirectory * max(1, len(directories)))()
        for place, directory in zip(paths, directories):
            place.path = os.fsencode(directory)
        self._log = lib.LogCallback(lambda level, line, _: log(level, line.decode())) if log else lib.LogCallback()
        options = lib.SessionOptions(threads=threads, host_memory_bytes=bytes_of(host_memory),
                                     state_tier=lib.TIERS[state], nvme=paths, nvme_count=len(directories),
                                     log=self._log)
        handle = c_void_p()
        self._call("terrace_session_create", byref(options), byref(handle))
        self._handle = handle
        self._groups = 0
        # The finalizer runs at the end of the interpreter too, and removes the session's files there.
        self._lent = {}  # by number of a tensor, the owner of a gradient that the library reads in place
        self._finalizer = weakref.finalize(self, _destroy, lib.library(), handle, self._lent)

    def _call(self, name, *arguments):
        try:
            lib.call(name, *arguments)
        except lib.TerraceError as error:
            error.args = (self._wording(str(error)),)
            raise

    def _text_of(self, name):
        try:
            return lib.text_of(name, self._handle)
        except lib.TerraceError as error:
            error.args = (self._wording(str(error)),)
            raise

    def close(self):
        """Waits for a step that is under way, and gives back memory and files."""
        self._finalizer()
        self._handle = None

    def add_group(self, rule, hyperparameters, weight_decay=0.0):
        """Adds a group, and returns its number. Hyperparameters that are not named have their standard values."""
        values = (lib.Hyperparameter * max(1, len(hyperparameters)))()
        for place, (name, value) in zip(values, hyperparameters.items()):
            place.name, place.value = name.encode(), value
        options = lib.GroupOptions(hyperparameter_count=len(hyperparameters), rule=rule.encode(),
                                   hyperparameters=values, weight_decay=weight_decay)
        group = c_int32()
        self._call("terrace_group_add", self._handle, byref(options), byref(group))
        self._groups += 1
        return group.value

    def add_tensor(self, group, name, buffer, shape):
        """Adds a tensor, and returns its number. Tensors that share their memory have the same number. The caller
        keeps the memory, and must not move it until the session is closed."""
        sizes = (c_int64 * max(1, len(shape)))(*shape)
        options = lib.TensorOptions(name=name.encode(), parameter=buffer, shape=sizes, dimension_count=len(shape))
        tensor = c_int32()
        self._call("terrace_tensor_add", self._handle, group, byref(options), byref(tensor))
        return tensor.value

    def prepare(self):
        self._call("terrace_session_prepare", self._handle)

    def add_gradient(self, tensor, buffer, owner=None):
        """Adds to a tensor's gradient in fp32, in the order of the calls. The buffer is read before this returns. If
        an `owner` of its memory is given, the first gradient of a tensor is not copied if it is float32 on the CPU.
        The owner is then kept until the next step has ended, or until the gradient is copied or forgotten after all,
        and nobody may write to the memory meanwhile."""
        if owner is None:
            self._call("terrace_gradient_add", self._handle, tensor, byref(buffer))
            self._lent.pop(tensor, None)
            return
        is_borrowed = c_int32()
        self._call("terrace_gradient_borrow", self._handle, tensor, byref(buffer), byref(is_borrowed))
        if is_borrowed.value:
            self._lent[tensor] = owner
        else:
            self._lent.pop(tensor, None)

    def is_lent(self, tensor):
        """Returns whether the library reads the gradient of a tensor in the owner's memory."""
        return tensor in self._lent

    def gradient(self, tensor):
        """Returns the gradient that was added since the last step, as a ctypes array of floats that is valid until
        the next step begins; None if nothing was added."""
        view = lib.Buffer()
        self._call("terrace_gradient_view", self._handle, tensor, byref(view))
        return (ctypes.c_float * view.element_count).from_address(view.data) if view.data else None

    def lease_gradient(self, tensor):
        """Returns the same gradient as a terrace.dlpack.Lease, in the tensor's shape. torch.from_dlpack() of it has the
        memory itself, also after close(). Values that are written there before the next step count in that step. While
        such a tensor exists, pause() is refused."""
        def lend():
            lease = c_void_p()
            self._call("terrace_gradient_lease", self._handle, tensor, byref(lease))
            if not lease:
                raise lib.MissingGradientError(f"tensor {tensor} has no gradient to lease: call add_gradient() first")
            return lease.value

        return Lease(lend)

    def complete_gradient(self, tensor):
        """Says that nothing more is added to a gradient in the step under way, begun with gradients_arrive=True."""
        self._call("terrace_gradient_complete", self._handle, tensor)

    def square_sum(self, tensor):
        """Returns the sum of squares of the gradient that was added since the last step."""
        sum_of_squares = c_double()
        self._call("terrace_gradient_square_sum", self._handle, tensor, byref(sum_of_squares))
        return sum_of_squares.value

    def discard_gradients(self):
        self._call("terrace_gradients_discard", self._handle)
        self._lent.clear()

    def begin_step(self, learning_rates, *, max_grad_norm=0.0, gradient_scale=1.0, known_norm=0.0, skip_missing=False,
                   gradients_arrive=False):
        """Starts a step, which runs on threads of the session. Until end_step() nothing may write a parameter, and
        nothing may read one before wait_parameter() of it. With gradients_arrive, add_gradient() goes on, and each
        tensor's update waits for its complete_gradient(), or for end_step(). known_norm is the norm over all
        gradients, scaled, if the caller has computed it and found it finite; 0: the session computes it."""
        flags = lib.STEP_SKIP_MISSING * skip_missing | lib.STEP_GRADIENTS_ARRIVE * gradients_arrive
        rates = (c_double * max(1, len(learning_rates)))(*learning_rates)
        options = lib.StepOptions(flags=flags, learning_rates=rates,
                                  learning_rate_count=len(learning_rates), max_grad_norm=max_grad_norm,
                                  gradient_scale=gradient_scale, known_norm=known_norm)
        self._call("terrace_step_begin", self._handle, byref(options))

    def wait_parameter(self, tensor):
        self._call("terrace_wait_parameter", self._handle, tensor)

    def wait_norm(self):
        """Returns the norm over all gradients of the step that is under way, before clipping."""
        norm = c_double()
        self._call("terrace_wait_norm", self._handle, byref(norm))
        return norm.value

    def end_step(self):
        """Returns the step's lib.StepResult."""
        result = lib.StepResult()
        self._call("terrace_step_end", self._handle, byref(result))
        self._lent.clear()
        return result

    def pause(self, directory=None):
        """Gives back all memory that the session holds. Its content goes to files without a name in `directory`,
        or else in the session's own NVMe directories. Until resume() only close() may be called."""
        self._call("terrace_pause", self._handle, None if directory is None else os.fsencode(directory))
        self._lent.clear()

    def resume(self):
        """Takes the memory back, with every bit as it was."""
        self._call("terrace_resume", self._handle)

    def step_count(self):
        count = c_int64()
        self._call("terrace_step_count", self._handle, byref(count))
        return count.value

    def adopt_parameter(self, tensor):
        """Sets the fp32 master of a 16-bit parameter to the values that the caller has written into the parameter."""
        self._call("terrace_parameter_adopt", self._handle, tensor)

    def read_state(self, tensor, field, out, first_element=0):
        """Fills `out`, an fp32 buffer, from "master" or from state that the rule keeps, such as "exp_avg"."""
        self._call("terrace_state_read", self._handle, tensor, field.encode(), first_element, byref(out))

    def write_state(self, tensor, field, values, first_element=0):
        """Sets the values that read_state() reads. A new master changes the parameter too."""
        self._call("terrace_state_write", self._handle, tensor, field.encode(), first_element, byref(values))

    def updates(self, tensor):
        """Returns how often the tensor was updated."""
        count = c_int64()
        self._call("terrace_tensor_updates", self._handle, tensor, byref(count))
        return count.value

    def set_updates(self, tensor, count):
        self._call("terrace_tensor_set_updates", self._handle, tensor, count)

    def save(self, directory):
        self._call("terrace_save", self._handle, os.fsencode(directory))

    def load(self, directory):
        self._call("terrace_load", self._handle, os.fsencode(directory))
        self._lent.clear()

    def ledger(self):
        return json.loads(self._text_of("terrace_ledger_json"))

    def metrics(self):
        return json.loads(self._text_of("terrace_metrics_json"))
