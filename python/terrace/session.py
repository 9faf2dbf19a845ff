"""A session of the library: exact updates of parameters that the caller owns, with state in host memory or on
NVMe. Addresses are whole numbers, so this needs no other package; terrace.torch is made of it.
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
    """Elements in memory, dense. `dtype` is "float32", "bfloat16" or "float16"."""
    if dtype not in lib.DTYPES:
        raise lib.DTypeError(f"tensors of {dtype} are not taken: use float32, bfloat16 or float16")
    if device not in lib.DEVICES:
        raise lib.UnsupportedError(f"tensors on {device} are not taken: use cpu or cuda")
    return lib.Buffer(data=address, element_count=element_count, dtype=lib.DTYPES[dtype],
                      device_type=lib.DEVICES[device], device_id=device_index, stream=stream)


def bytes_of(size):
    """A number of bytes, or a text such as "4GiB" or "500MB"; None is 0, no limit."""
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
    """A directory, several, or None, as a list."""
    return [nvme] if isinstance(nvme, (str, bytes, os.PathLike)) else list(nvme or ())


def _destroy(library, handle, lent):
    library.terrace_session_destroy(handle)  # waits for what may still read gradients that are lent
    lent.clear()


class Session:
    """Add groups and tensors, prepare(), and for each step gradients and a step. Used by one thread at a time,
    except wait_parameter(). What is raised is of terrace.library; `wording` says it in other words than those of
    this class."""

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
        # At the end of the interpreter too: the session's files are removed there.
        self._lent = {}  # number of a tensor: the owner of a gradient that the library reads where it is
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
        """Waits for a step under way, and gives back memory and files."""
        self._finalizer()
        self._handle = None

    def add_group(self, rule, hyperparameters, weight_decay=0.0):
        """Returns the number of the group. Hyperparameters that are not named have their standard values."""
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
        """Returns the number of the tensor, which is another's where the two share their memory. The memory stays
        the caller's, and stays where it is until the session is closed."""
        sizes = (c_int64 * max(1, len(shape)))(*shape)
        options = lib.TensorOptions(name=name.encode(), parameter=buffer, shape=sizes, dimension_count=len(shape))
        tensor = c_int32()
        self._call("terrace_tensor_add", self._handle, group, byref(options), byref(tensor))
        return tensor.value

    def prepare(self):
        self._call("terrace_session_prepare", self._handle)

    def add_gradient(self, tensor, buffer, owner=None):
        """Added in fp32, in the order of the calls; read before this returns. With an `owner` of the memory the first
        gradient of a tensor, of float32 on the CPU, is not copied: the owner is kept until the next step has ended, or
        until it is copied or forgotten after all, and nobody writes there meanwhile."""
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
        """Whether the library reads the gradient of a tensor where its owner has it."""
        return tensor in self._lent

    def gradient(self, tensor):
        """What was added since the last step, as a ctypes array of floats that is good until the next one begins;
        None where nothing was."""
        view = lib.Buffer()
        self._call("terrace_gradient_view", self._handle, tensor, byref(view))
        return (ctypes.c_float * view.element_count).from_address(view.data) if view.data else None

    def lease_gradient(self, tensor):
        """The same as a terrace.dlpack.Lease, in the tensor's shape: torch.from_dlpack() of it has the memory itself,
        also after close(). What is written there before the next step counts in it. While a tensor of it is there,
        pause() is refused."""
        def lend():
            lease = c_void_p()
            self._call("terrace_gradient_lease", self._handle, tensor, byref(lease))
            if not lease:
                raise lib.MissingGradientError(f"tensor {tensor} has no gradient to lease: call add_gradient() first")
            return lease.value

        return Lease(lend)

    def complete_gradient(self, tensor):
        """Nothing more is added to it in the step under way, which was begun with gradients_arrive=True."""
        self._call("terrace_gradient_complete", self._handle, tensor)

    def square_sum(self, tensor):
        """The sum of squares of what was added since the last step."""
        sum_of_squares = c_double()
        self._call("terrace_gradient_square_sum", self._handle, tensor, byref(sum_of_squares))
        return sum_of_squares.value

    def discard_gradients(self):
        self._call("terrace_gradients_discard", self._handle)
        self._lent.clear()

    def begin_step(self, learning_rates, *, max_grad_norm=0.0, gradient_scale=1.0, known_norm=0.0, skip_missing=False,
                   gradients_arrive=False):
        """Starts a step, which runs on threads of the session. Until end_step() nothing may write a parameter, and
        nothing may read one before wait_parameter() of it. gradients_arrive: add_gradient() goes on, and each
        tensor's update waits for its complete_gradient(), or for end_step(). known_norm: the norm over all gradients,
        scaled, from who has taken it and found it finite; 0: it is taken."""
        flags = lib.STEP_SKIP_MISSING * skip_missing | lib.STEP_GRADIENTS_ARRIVE * gradients_arrive
        rates = (c_double * max(1, len(learning_rates)))(*learning_rates)
        options = lib.StepOptions(flags=flags, learning_rates=rates,
                                  learning_rate_count=len(learning_rates), max_grad_norm=max_grad_norm,
                                  gradient_scale=gradient_scale, known_norm=known_norm)
        self._call("terrace_step_begin", self._handle, byref(options))

    def wait_parameter(self, tensor):
        self._call("terrace_wait_parameter", self._handle, tensor)

    def wait_norm(self):
        """The norm over all gradients of the step that is under way, before clipping."""
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
        """Gives back all memory that the session holds; what is in it goes to files without a name in `directory`,
        or else in the session's own NVMe directories. Until resume() only close() may be called."""
        self._call("terrace_pause", self._handle, None if directory is None else os.fsencode(directory))
        self._lent.clear()

    def resume(self):
        """Takes the memory again, with every bit as it was."""
        self._call("terrace_resume", self._handle)

    def step_count(self):
        count = c_int64()
        self._call("terrace_step_count", self._handle, byref(count))
        return count.value

    def adopt_parameter(self, tensor):
        """Takes what the caller has written into a parameter of 16 bits for its fp32 master."""
        self._call("terrace_parameter_adopt", self._handle, tensor)

    def read_state(self, tensor, field, out, first_element=0):
        """Fills `out`, an fp32 buffer, from "master" or what the rule keeps, such as "exp_avg"."""
        self._call("terrace_state_read", self._handle, tensor, field.encode(), first_element, byref(out))

    def write_state(self, tensor, field, values, first_element=0):
        """Sets what read_state() reads; a new master changes the parameter too."""
        self._call("terrace_state_write", self._handle, tensor, field.encode(), first_element, byref(values))

    def updates(self, tensor):
        """How often the tensor was updated."""
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
