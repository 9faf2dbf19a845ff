"""Units whose parameters, gradients and optimizer state the library owns and moves, following a step that is recorded
before the first one runs. Addresses are plain integers, so this module needs no other package. terrace.torch.offload
is built on it.
"""

import ctypes
import json
import os
import weakref
from ctypes import byref, c_int32, c_void_p

from terrace import library as lib
from terrace.dlpack import Lease
from terrace.session import bytes_of, directories_of
from terrace.wording import UNITS_PHRASES, Wording


def _destroy(library, handle):
    library.terrace_units_destroy(handle)


class Units:
    """Add units, record a step's tasks, and call prepare() and fill(). For each step call begin_step(), then acquire()
    and release() for each task in order, then end_step(). Used by one thread at a time. Raises the errors of
    terrace.library. `tiers` has "parameters", "gradients", "optimizer" and "saved", each "auto", "host" or "nvme".
    `wording` rewords the errors' texts; the default names this class's methods and arguments."""

    def __init__(self, rule, hyperparameters, *, tiers, compute_dtype="float32", micro_batches=1, weight_decay=0.0,
                 max_grad_norm=0.0, host_memory=None, nvme=(), threads=0, wording=Wording(UNITS_PHRASES)):
        self._wording = wording
        directories = directories_of(nvme)
        paths = (lib.NvmeDirectory * max(1, len(directories)))()
        for place, directory in zip(paths, directories):
            place.path = os.fsencode(directory)
        values = (lib.Hyperparameter * max(1, len(hyperparameters)))()
        for place, (name, value) in zip(values, hyperparameters.items()):
            place.name, place.value = name.encode(), value
        options = lib.UnitsOptions(
            threads=threads, host_memory_bytes=bytes_of(host_memory), nvme=paths, nvme_count=len(directories),
            parameter_tier=lib.TIERS[tiers["parameters"]], gradient_tier=lib.TIERS[tiers["gradients"]],
            optimizer_tier=lib.TIERS[tiers["optimizer"]], saved_tier=lib.TIERS[tiers["saved"]],
            compute_dtype=lib.DTYPES[compute_dtype], micro_batches=micro_batches, rule=rule.encode(),
            hyperparameters=values, hyperparameter_count=len(hyperparameters), flags=lib.UNITS_CAN_ABANDON,
            weight_decay=weight_decay, max_grad_norm=max_grad_norm, log=lib.LogCallback())
        handle = c_void_p()
        self._call("terrace_units_create", byref(options), byref(handle))
        self._handle = handle
        self._sink = None
        self._finalizer = weakref.finalize(self, _destroy, lib.library(), handle)

    def _in_words(self, function, *arguments):
        try:
            return function(*arguments)
        except lib.TerraceError as error:
            error.args = (self._wording(str(error)),)
            raise

    def _call(self, name, *arguments):
        self._in_words(lib.call, name, *arguments)

    def close(self):
        """Ends a step that is under way, and gives back memory and files."""
        self._finalizer()
        self._handle = None

    def add(self, name, element_count, *, decayed_elements=0, saved_bytes=0, is_frozen=False):
        """Adds a unit, and returns its number. Weight decay applies to its first `decayed_elements` elements."""
        options = lib.UnitOptions(flags=lib.UNIT_FROZEN if is_frozen else 0, name=name.encode(),
                                  element_count=element_count, decayed_elements=decayed_elements,
                                  saved_bytes=saved_bytes)
        unit = c_int32()
        self._call("terrace_unit_add", self._handle, byref(options), byref(unit))
        return unit.value

    def record(self, unit, task_pass, micro_batch):
        self._call("terrace_units_record", self._handle, unit, task_pass, micro_batch)

    def prepare(self):
        self._call("terrace_units_prepare", self._handle)

    def fill(self, steps, source):
        """Fills the state: source(unit, field, first_element, element_count, address) writes fp32 elements. Several
        threads call it. An exception that it raises is raised here."""
        problems = []

        def ask(_, place):
            asked = place.contents
            try:
                source(asked.unit, asked.field.decode(), asked.first_element, asked.element_count, asked.out)
                return 0
            except BaseException as problem:  # ctypes would print it, and go on
                problems.append(problem)
                return 1

        try:
            self._call("terrace_units_fill", self._handle, steps, lib.StateSource(ask), None)
        except lib.ArgumentError:
            if problems:
                raise problems[0]
            raise

    def begin_step(self, learning_rate):
        self._call("terrace_units_step_begin", self._handle, learning_rate)

    def acquire(self, unit, task_pass, micro_batch):
        """Begins the step's next task, which the arguments name, and returns its lib.UnitMemory."""
        memory = lib.UnitMemory()
        self._call("terrace_unit_acquire", self._handle, unit, task_pass, micro_batch, byref(memory))
        return memory

    def lease(self, unit, part):
        """Returns a part of the unit that is acquired, flat, as a terrace.dlpack.Lease: lib.PARAMETERS, which may only
        be read, or lib.GRADIENT. While a tensor of it exists, release() is refused."""
        def lend():
            lease = c_void_p()
            self._call("terrace_unit_lease", self._handle, unit, part, byref(lease))
            if not lease:
                raise lib.MissingGradientError(f"the task of unit {unit} has no gradient to lease")
            return lease.value

        return Lease(lend)

    def release(self, unit):
        self._call("terrace_unit_release", self._handle, unit)

    def abandon_step(self, sink):
        """Makes the step that is under way update nothing: its end_step() calls sink(unit, first_element,
        element_count, address) with the gradients instead. The sink must not raise."""
        self._sink = lib.GradientSink(lambda _, *gradient: sink(*gradient))
        self._call("terrace_units_step_abandon", self._handle, self._sink, None)

    def end_step(self):
        """Returns the step's lib.StepResult."""
        result = lib.StepResult()
        self._call("terrace_units_step_end", self._handle, byref(result))
        return result

    def read_state(self, unit, field, out, first_element=0):
        """Fills `out`, a buffer of terrace.session, from "parameter", "master" or from state that the rule keeps."""
        self._call("terrace_units_state_read", self._handle, unit, field.encode(), first_element, byref(out))

    def pause(self, directory=None):
        """Gives back all memory that the units hold. May be called between steps. The content goes to files without a
        name in `directory`, or else in the units' own NVMe directories. Until resume() only close() may be called."""
        self._call("terrace_units_pause", self._handle, None if directory is None else os.fsencode(directory))

    def resume(self):
        """Takes the memory back, with every bit as it was. After an error the units stay paused."""
        self._call("terrace_units_resume", self._handle)

    def ledger(self):
        return json.loads(self._in_words(lib.text_of, "terrace_units_ledger_json", self._handle))
