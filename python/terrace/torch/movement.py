"""Loads the parameters of an offloaded model where a forward or a backward uses them, and takes its gradients."""

import contextlib
import os
import warnings
import weakref

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from terrace import library as lib
from terrace.library import BACKWARD, FORWARD
from terrace.torch.compiled_step import CompiledStep, SavedState
from terrace.torch.module_hooks import hook_modules
from terrace.torch.offloaded_gradients import OffloadedGradients
from terrace.torch.parameter_handles import KeptTensor, OthersTensor, ParameterHandle, stale_error
from terrace.torch.recording import Recording, completed, without_backward
from terrace.torch.saved_tensors import SavedTensors
from terrace.torch.uses import Use, graph_task, tensors_in
from terrace.torch.values import MasterValues, ScratchFile, return_free_memory

_EVICTED_BYTES = 128 << 20  # after evicting this much, free memory goes back to the system

# By parameter of an offloaded model, the Movement that moves it.
_movements = WeakTensorKeyDictionary()


def remember(units, movement):
    for slot in units.slots:
        for parameter in slot.parameters:
            _movements[parameter] = weakref.ref(movement)


def movement_of_parameters(groups):
    """Returns the Movement of the offloaded model that has one of these parameters, or None. `groups` has anything
    that an optimizer takes: parameters, (name, parameter) pairs, or groups of them."""
    for item in groups:
        if isinstance(item, dict):
            item["params"] = [item["params"]] if isinstance(item["params"], torch.Tensor) else list(item["params"])
            found = movement_of_parameters(item["params"])
        else:
            parameter = item[1] if isinstance(item, tuple) else item
            known = _movements.get(parameter) if isinstance(parameter, torch.Tensor) else None
            found = known() if known is not None else None
        if found is not None:
            return found
    return None


class Movement(OffloadedGradients):
    """The state of an offloaded model. Its steps run on demand until an optimizer's first step, which compiles what was
    recorded. Later steps run in the order of the compiled one, as long as the trainer keeps to it. A step that takes
    another way is recorded again, and is made up for at its end. Used by one thread at a time."""

    def __init__(self, model, units, options):
        self.model = weakref.ref(model)
        self.units = units
        self.options = options
        self.owner = os.getpid()
        self.optimizer = None        # a weak reference
        self.compiled = None
        self.pending_state = None    # a SavedState that the next compiled step begins with
        self._recording = None       # the step that runs on demand
        self._runs_compiled = False  # whether the step under way is the compiled one
        self._other_way = None       # tasks of the last step that was not the compiled one
        self._fired = set()          # slots that have a gradient in this step
        self._init_gradients()
        self._saved_bytes = {}       # by unit, the most bytes that a forward has saved
        self._waiting = {}           # by (unit, micro-batch), the number of forwards without a backward
        self._micro_batches = 0      # number of this step's forwards that may train
        self._depth = 0
        self._trains = False         # whether the outermost forward may have a backward
        self._uses = []              # forwards under way
        self._alive = weakref.WeakSet()  # uses whose graphs exist
        self._lingering = set()      # idle units that a backward has left in memory for now
        self._watched = set()        # backwards whose end is waited for
        self._in_backward = {}       # by backward, the uses that it has begun
        self._reading_node = None    # the node of autograd that reads parameters
        self._read_units = set()     # the units whose parameters it reads
        self._evicted_bytes = 0      # evicted since free memory last went back to the system
        self._kept = 0               # number of materialize() contexts that are open
        self._is_paused = False
        self.updates = 0             # number of steps and loads of a state, each of which changes the values
        self.units.bind()
        hook_modules(model, self)

    # ---- hooks -------------------------------------------------------------------------------------------

    def check_process(self):
        if os.getpid() != self.owner:
            raise lib.ForkedError("an offloaded model is used in a process that was forked from its own: start workers "
                                  "by 'spawn', and load the model there")
        if self._is_paused:
            raise lib.OrderError("the offloaded model is paused: take its memory again by optimizer.resume()")

    def before(self, module, units, is_inner, inputs):
        self.check_process()
        in_backward = graph_task() != -1
        if self._depth == 0 and not in_backward:
            self._enter_model()
        self._depth += 1
        # A recomputation trains, whether or not the last forward does.
        trains = torch.is_grad_enabled() if in_backward else self._trains
        if is_inner:
            # Its unit's forward or backward has loaded it already, unless that was passed over.
            units = [unit for unit in units if unit.is_idle]
        use = Use(module, units, max(0, self._micro_batches - 1), trains, self.updates)
        self._uses.append(use)
        for unit in use.units:
            self._enter_unit(unit, use, in_backward)
        if not trains or not torch.is_grad_enabled():
            return
        if use.units:
            self._alive.add(use)
            self._watch_inputs(use, inputs)
        if use.units or (is_inner and not SavedTensors.are_on_top()):
            use.saved = SavedTensors(self, use, bool(use.units) and not in_backward)

    def _enter_model(self):
        self._clean_up()
        self._forget_unused_forwards()
        self._trains = torch.is_grad_enabled()
        if self._trains:
            self._forget_given_up()
            if self._fired and (self.optimizer is None or self.optimizer() is None):
                raise lib.OrderError("gradients of the offloaded model were taken, and it has no optimizer that would "
                                     "use them: give its parameters to AdamW, Lion or SGD of terrace.torch (one of "
                                     "torch.optim finds no gradients here)")
            self._micro_batches += 1
            self._watch_gradients()

    def _enter_unit(self, unit, use, in_backward):
        unit.users += 1
        if not use.trains:
            return self._bring_on_demand(unit)
        if in_backward:
            self._drop_lingering(but=unit)
            if unit.is_resident:
                return None
        elif unit.users > 1:
            return None
        return self._task((unit, FORWARD, use.micro_batch))

    def after(self, module, output):
        while self._uses:
            use = self._uses.pop()
            self._depth -= 1
            self._leave_units(use)
            if use.module is module:
                break
        else:
            return
        if use.units and use.trains and torch.is_grad_enabled():
            self._watch_outputs(use, output)

    def _leave_units(self, use):
        in_backward = graph_task() != -1
        use.close()
        for unit in use.units:
            unit.users -= 1
            if not unit.is_idle:
                continue
            if in_backward:
                self._lingering.add(unit)
            else:
                self._evict(unit)
        if use.units and not in_backward and self._runs_compiled:
            self.compiled.leave()

    def _watch_outputs(self, use, output):
        own = weakref.ref(self)

        def begins(gradient):
            if own() is not None:
                own()._begin_backward(use)

        for tensor in tensors_in(output):
            if tensor.requires_grad:
                tensor.register_hook(begins)

    def _watch_inputs(self, use, inputs):
        own = weakref.ref(self)

        def ends(gradient):
            use.inputs_left -= 1
            if use.inputs_left == 0 and own() is not None:
                own()._end_backward(use)

        for tensor in tensors_in(inputs):
            # A leaf's gradient comes too early: nodes of the forward that do not lead to the leaf have not run yet.
            if tensor.requires_grad and not tensor.is_leaf:
                use.inputs += 1
                tensor.register_hook(ends)

    # ---- a backward --------------------------------------------------------------------------------------

    def _begin_backward(self, use):
        task = graph_task()
        if use.graph_task == task:
            return
        if use.updates != self.updates and use.units:
            raise stale_error(use.units[-1])
        use.graph_task = task
        use.inputs_left = use.inputs
        self._in_backward.setdefault(task, []).append(use)
        if task not in self._watched:
            self._watched.add(task)
            own = weakref.ref(self)
            torch.autograd.Variable._execution_engine.queue_callback(
                lambda: own() is not None and own()._end_graph(task))
        for unit in use.units:
            self._lingering.discard(unit)
            unit.backward_uses.add(use)
            unit.fired.clear()
            self._drop_lingering()
            self._task((unit, BACKWARD, use.micro_batch))

    def use_of(self, unit, other):
        """Returns the innermost forward that has loaded a unit, or `other` if there is none."""
        return next((use for use in reversed(self._uses) if unit in use.units), other)

    def _read(self, handle):
        """Returns the parameter that a node of autograd has saved."""
        handle.check(self.updates)
        if graph_task() == -1:
            self.settle()
            return handle.copy(self.read_slot)
        if torch.is_grad_enabled():
            raise lib.UnsupportedError("create_graph=True: an offloaded model has no gradients of gradients")
        node = torch._C._current_autograd_node()
        if node is not self._reading_node:
            self._reading_node = node
            self._read_units.clear()
        self._begin_backward(handle.use)
        unit = handle.slot.unit
        if not handle.slot.is_resident:
            self._bring_back(unit)
        self._read_units.add(unit)
        return handle.view()

    def _bring_back(self, unit):
        """Loads a unit that a backward needs again after it was done with it, or outside of the unit's own use."""
        if self._runs_compiled and not self.compiled.refill(unit):
            self._deviate()
        self._load(unit)
        if unit.is_idle:
            self._lingering.add(unit)

    def _end_backward(self, use):
        for unit in use.units:
            unit.backward_uses.discard(use)
            if unit.is_idle:
                self._evict(unit)

    def _end_graph(self, task):
        self._watched.discard(task)
        self._reading_node = None
        for use in self._in_backward.pop(task, ()):
            self._end_backward(use)
        self._drop_lingering()
        if self._runs_compiled and not self._in_backward:
            self.compiled.leave()

    def _drop_lingering(self, but=None):
        is_reading = self._reading_node is not None and torch._C._current_autograd_node() is self._reading_node
        kept = self._read_units if is_reading else ()
        for unit in [unit for unit in self._lingering if unit is not but and unit not in kept]:
            self._lingering.discard(unit)
            if unit.is_idle:
                self._evict(unit)

    # ---- parameters --------------------------------------------------------------------------------------

    def _task(self, task):
        """Does the next task of the step, in which a unit is used."""
        self._begin_step()
        unit, task_pass, m = task
        waiting = self._waiting.get((unit, m), 0)  # forwards without a backward
        if task_pass == BACKWARD and waiting == 0:
            # A graph that is kept may go backward twice, but in a step each backward has a forward of its own.
            self._task((unit, FORWARD, m))
            waiting = 1
        self._waiting[unit, m] = waiting + (1 if task_pass == FORWARD else -1)
        if self._runs_compiled and not self.compiled.has_next(task):
            self._deviate()
        if self._runs_compiled:
            self.compiled.enter(task)
        else:
            self._recording.tasks.append(task)
            self._load(task[0])

    def _is_last_task(self, unit, task_pass):
        last = self.compiled.last_task if self._runs_compiled else (self._recording.tasks or [None])[-1]
        return last is not None and last[:2] == (unit, task_pass)

    def _begin_step(self):
        if self._runs_compiled or self._recording is not None:
            return
        optimizer = self.optimizer and self.optimizer()
        if self.compiled is not None and optimizer is not None:
            self._renew_if_outgrown(optimizer)
            self.compiled.begin(optimizer.learning_rate)
            self._runs_compiled = True
        else:
            self._recording = Recording(self._scratch())

    def _scratch(self):
        return self.options.gradient_directory

    def _bring_on_demand(self, unit):
        if self._runs_compiled and not unit.is_resident:
            self._deviate()  # the state can be read between steps only
        self._load(unit)

    def _load(self, unit):
        for slot in unit.slots:
            self.load_slot(slot)

    def load_slot(self, slot):
        if slot.is_resident:
            return
        slot.allocate()
        try:
            self.read_slot(slot, 0, slot.count, slot.address)
        except BaseException:
            slot.evict()
            raise

    def read_slot(self, slot, first, count, address):
        """Writes elements of a slot to an address, in the type that a step computes with."""
        if self.compiled is not None and self.compiled.holds(slot):
            self.compiled.read(slot, "parameter", first, count, address, self.units.dtype_name)
        else:
            slot.values.read(first, count, address, slot.dtype)

    def _evict(self, unit):
        if self._kept != 0 or not any(slot.is_resident for slot in unit.slots):
            return
        unit.evict()
        self._evicted_bytes += sum(slot.size for slot in unit.slots)
        if self._evicted_bytes >= _EVICTED_BYTES:
            self._evicted_bytes = 0
            return_free_memory()

    def _clean_up(self):
        """Clears what a failed forward or backward has left behind."""
        self._depth = 0
        self._reading_node = None
        for use in reversed(self._uses):
            use.close()
        self._uses.clear()
        self._lingering.clear()
        self._in_backward.clear()
        self._watched.clear()
        for unit in self.units.units:
            unit.users = 0
            unit.backward_uses.clear()
            self._evict(unit)

    # ---- activations -------------------------------------------------------------------------------------

    def store(self, saved, tensor, task, end):
        """Stores a tensor that a task's forward saves. With it the forward has saved `end` bytes so far."""
        compiled = self.compiled if self._runs_compiled else None
        if compiled is not None and compiled.keep_saved(saved, tensor, task, end):
            return
        directory = self.options.activation_directory
        if compiled is not None or directory is None:
            saved.tensor = tensor  # it exceeds what was recorded, or would be in memory anyway
            return
        if self._recording.saved is None:
            self._recording.saved = ScratchFile(directory)
        saved.file = self._recording.saved
        with torch.no_grad():
            dense = torch.empty_strided(saved.shape, saved.stride, dtype=saved.dtype).copy_(tensor)
        size = saved.count * saved.dtype.itemsize
        saved.offset = saved.file.reserve(size)
        saved.file.write(saved.offset, dense.data_ptr(), size)

    def unpack(self, saved):
        """Returns the tensor that a node of autograd gets for an object that it has saved."""
        if isinstance(saved, ParameterHandle):
            return self._read(saved)
        if isinstance(saved, (KeptTensor, OthersTensor)):
            return saved.get()
        if graph_task() != -1:
            self._begin_backward(saved.use)
        if saved.tensor is not None:
            return saved.tensor
        if saved.file is not None:
            return saved.from_file()
        address = self.compiled.saved_address(saved.task, BACKWARD) if self._runs_compiled else None
        if address is None:
            raise lib.OrderError(f"a backward reads what unit {saved.task[0].name} has saved, and has not reached it: "
                                 "leave its activations with torch, by activations=None")
        return saved.at(address)

    def note_saved(self, unit, size):
        self._saved_bytes[unit] = max(size, self._saved_bytes.get(unit, 0))

    # ---- a step ------------------------------------------------------------------------------------------

    @property
    def has_gradients(self):
        return bool(self._fired)

    def _deviate(self, forget=False):
        """Gives up the compiled step. The rest of the step runs on demand."""
        if self._runs_compiled:
            self._recording = Recording(self._scratch(), self.compiled.tasks[:self.compiled.position])
            self._runs_compiled = False
            self.compiled.abandon(self._recording.sums)
        if forget and self._recording is not None:
            self._recording.forget_gradients(self._scratch())

    def _forget_unused_forwards(self):
        """Removes from the step the forwards that had no backward, and can have none since their graph is gone."""
        if self._recording is None and not self._runs_compiled:
            return
        tasks = self._recording.tasks if self._recording else self.compiled.tasks[:self.compiled.position]
        unused = without_backward(tasks) - {use.micro_batch for use in self._alive}
        if not unused:
            return
        self._deviate()
        self._recording.tasks = [task for task in self._recording.tasks if task[2] not in unused]
        self._recording.saved = None  # the file goes away with the last tensor in it
        for key in [key for key in self._waiting if key[1] in unused]:
            del self._waiting[key]
        if not self._recording.tasks and not self._fired:
            self._end_step()

    def forget_gradients(self):
        self._taken.end()
        if self._fired:
            self._deviate(forget=True)
            self._fired.clear()
            if not any(unit.backward_uses for unit in self.units.units):
                self._end_step()

    def _end_step(self):
        self._recording = None
        self._runs_compiled = False
        self._fired.clear()
        self._waiting.clear()
        self._micro_batches = 0
        return_free_memory()

    def step(self, optimizer):
        """Updates. Returns the step's lib.StepResult, or None if there are no gradients."""
        self.check_process()
        self._forget_given_up()
        if not self._fired:
            return None
        missing = [slot for slot in self.units.slots if slot.trains and slot not in self._fired]
        if missing:
            raise lib.MissingGradientError(f"{missing[0].name} has no gradient in this step, nor have "
                                           f"{len(missing) - 1} more: freeze parameters that a step does not use, by "
                                           "requires_grad_(False)")
        for unit in self.units.units:
            if unit.is_idle:
                self._evict(unit)
        settings = optimizer.unit_settings()
        if self._runs_compiled and (self.compiled.learning_rate != optimizer.learning_rate
                                    or not self.compiled.fits(settings)):
            self._warn_of_changed_settings()
            self._deviate()
        try:
            if self._runs_compiled:
                return self.compiled.end()
            return self._make_up(optimizer, settings)
        finally:
            self.updates += 1
            self._taken.end()
            self._end_step()

    def _warn_of_changed_settings(self):
        if not getattr(self, "_has_warned", False):
            self._has_warned = True
            warnings.warn("the learning rate, or which parameters train, changed between forward and step(), so the "
                          "step is computed a second time: change it before the forward", stacklevel=6)

    def _make_up(self, optimizer, settings):
        """Makes up for a step that was recorded: its gradients go through a compiled step."""
        training = [slot for slot in self.units.slots if slot.trains]
        tasks, sums = completed(self._recording.tasks, training), self._recording.sums
        if (self.compiled is None or not self.compiled.fits(settings)
                or not self.compiled.has_backwards_of(training)):
            self._compile(tasks, settings)
        elif tasks != self.compiled.tasks:
            if tasks == self._other_way:
                self._compile(tasks, settings)
            self._other_way = tasks
        self.compiled.begin(optimizer.learning_rate)
        return self.compiled.end(sums)

    def _renew_if_outgrown(self, optimizer):
        compiled = self.compiled
        if compiled.is_outgrown_by(self._saved_bytes) or self.pending_state is not None:
            self._compile(compiled.tasks, optimizer.unit_settings())

    def load_state(self, loaded, optimizer):
        """Goes on from a SavedState. If it lacks masters, the parameters stay as they are."""
        if self._kept != 0:
            raise lib.OrderError("a state is loaded while materialize() keeps parameters in memory: leave it first")
        self.settle()
        self._taken.drop()
        self.pending_state = loaded
        for slot in self.units.slots if self.compiled is None else ():
            master = loaded.field(slot, "master")
            slot.values = slot.values if master is None else MasterValues(master)
        self._end_step()
        self.updates += 1
        if self.compiled is not None:
            self._compile(self.compiled.tasks, optimizer.unit_settings())

    def _compile(self, tasks, settings):
        """Makes another compiled step, with the state of the last one."""
        state = self.pending_state
        if self.compiled is not None:
            state = SavedState.of(self.compiled, self.options.scratch_directory).replaced_by(state)
            for slot in self.compiled._part_of:
                slot.values = MasterValues(state.field(slot, "master"))
            self.pending_state = state  # it is kept if the next compiled step cannot be made
            self.compiled.close()
            self.compiled = None
        self.compiled = CompiledStep(tasks, settings, self.options.for_units(self.units.dtype_name),
                                     self._saved_bytes, state)
        self.pending_state = None

    # ---- a pause -----------------------------------------------------------------------------------------

    def pause(self, directory):
        self.check_process()
        if self._runs_compiled or self._recording is not None or self._kept != 0 or self.compiled is None:
            raise lib.OrderError("an offloaded model is paused between steps, behind the first one and outside of "
                                 "materialize(): call optimizer.step(), or zero_grad(), before it")
        self._is_paused = True  # before the call: an interrupt may come before it has returned
        try:
            self.compiled.units.pause(directory)
        except lib.TerraceError:
            self._is_paused = False
            raise
        return_free_memory()

    def resume(self):
        if not self._is_paused:
            raise lib.OrderError("the offloaded model is not paused: pause it by optimizer.pause() first")
        with contextlib.suppress(lib.OrderError):  # an interrupted call may have left the units resumed
            self.compiled.units.resume()
        self._is_paused = False

    # ---- all parameters ----------------------------------------------------------------------------------

    def settle(self):
        """Makes the state readable: a compiled step that is under way continues on demand."""
        self.check_process()
        if self._runs_compiled:
            self._deviate()

    @contextlib.contextmanager
    def keep_resident(self, slots):
        self.settle()
        self._kept += 1
        try:
            for slot in slots:
                self.load_slot(slot)
            yield
        finally:
            self._kept -= 1
            for unit in self.units.units:
                if unit.is_idle:
                    self._evict(unit)
