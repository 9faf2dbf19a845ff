"""A recorded step that the library has compiled. Its program moves parameters, gradients and state."""

import weakref

import torch

from terrace.library import BACKWARD, FORWARD
from terrace.session import buffer_of
from terrace.torch.values import PIECE_BYTES, FileValues, ScratchFile, tensor_at
from terrace.units import Units


def _read_rounded(slot, first, count, address):
    """Writes values of a slot, in the precision of the model's type, to an fp32 array."""
    for begin in range(0, count, PIECE_BYTES // 4):
        piece = torch.empty(min(PIECE_BYTES // 4, count - begin), dtype=slot.dtype)
        slot.values.read(first + begin, piece.numel(), piece.data_ptr(), slot.dtype)
        tensor_at(address + 4 * begin, piece.numel(), torch.float32).copy_(piece)


class UnitPart:
    """The slots of a unit that train, or the slots that do not. To the library they are one flat sequence."""

    def __init__(self, unit, slots, decays):
        self.unit = unit
        self.is_frozen = not slots[0].trains
        self.slots = sorted(slots, key=lambda slot: not decays(slot))  # slots with weight decay first
        self.offsets = {}
        self.elements = 0
        for slot in self.slots:
            self.offsets[slot] = self.elements
            self.elements += slot.count
        self.decayed_elements = 0 if self.is_frozen else sum(slot.count for slot in slots if decays(slot))
        self.number = None
        self.saved_bytes = 0
        self.keeps_saved = False  # the library keeps what a forward saves for its backward

    def ranges(self, first, count):
        """Yields the parts of slots that are in a range of the sequence: (slot, first element in the slot, number of
        elements, first element in the range)."""
        for slot in self.slots:
            begin = max(first, self.offsets[slot])
            end = min(first + count, self.offsets[slot] + slot.count)
            if begin < end:
                yield slot, begin - self.offsets[slot], end - begin, begin - first


def _parts_of(units, decays):
    parts = {}
    for unit in units:
        groups = ([slot for slot in unit.slots if not slot.trains], [slot for slot in unit.slots if slot.trains])
        parts[unit] = [UnitPart(unit, slots, decays) for slots in groups if slots]
    return parts


class CompiledStep:
    """A compiled step. `settings` has the rule, its hyperparameters, weight_decay and max_grad_norm. `options` are
    arguments of Units. `saved_bytes` has, by unit, the number of bytes that its forward saves for its backward.
    `state` is a SavedState, or None at the start."""

    def __init__(self, tasks, settings, options, saved_bytes, state=None):
        self.tasks = list(tasks)
        self.settings = settings
        self.fields = settings.fields
        used = dict.fromkeys(unit for unit, _, _ in self.tasks)
        self.parts = _parts_of(used, settings.decays)
        self._part_of = {slot: part for parts in self.parts.values() for part in parts for slot in part.slots}
        self._numbered = []
        self._position = 0
        self._held = None          # the task that is acquired: (part, pass, micro_batch, memory)
        self._written = set()      # slots whose gradient was written in the held task
        self.learning_rate = 0.0
        self._saved = {}           # by task, the saved tensors in its memory
        self._last_backward = {unit: i for i, (unit, task_pass, _) in enumerate(self.tasks) if task_pass == BACKWARD}
        self.units = Units(settings.rule, settings.hyperparameters, weight_decay=settings.weight_decay,
                           max_grad_norm=settings.max_grad_norm,
                           micro_batches=1 + max(m for _, _, m in self.tasks), **options)
        try:
            self._prepare(saved_bytes)
            self._fill(state)
        except BaseException:
            self.units.close()
            raise

    def _prepare(self, saved_bytes):
        pairs = {}
        for unit, task_pass, m in self.tasks:
            pairs.setdefault((unit, m), [0, 0])[task_pass] += 1
        unpaired = {unit for (unit, _), (forward, backward) in pairs.items() if forward != 1 or backward != 1}
        for unit, parts in self.parts.items():
            # A unit that is used twice in a micro-batch, or has no backward, leaves its saved tensors with torch.
            parts[-1].keeps_saved = unit not in unpaired
            parts[-1].saved_bytes = saved_bytes.get(unit, 0) if parts[-1].keeps_saved else 0
            for part in parts:
                part.number = self.units.add(unit.name + (" (frozen)" if part.is_frozen else ""), part.elements,
                                             decayed_elements=part.decayed_elements, is_frozen=part.is_frozen,
                                             saved_bytes=part.saved_bytes)
                self._numbered.append(part)
        for unit, task_pass, m in self.tasks:
            for part in self.parts[unit]:
                self.units.record(part.number, task_pass, m)
        self.units.prepare()

    def _fill(self, state):
        def source(number, field, first, count, address):
            out = tensor_at(address, count, torch.float32)
            for slot, begin, size, place in self._numbered[number].ranges(first, count):
                kept = None if state is None else state.field(slot, field)
                target = address + 4 * place
                if kept is not None:
                    kept.read(begin, size, target, torch.float32)
                elif field == "master":
                    _read_rounded(slot, begin, size, target)
                else:
                    out[place:place + size].zero_()

        self.steps = 0 if state is None else state.steps
        self.units.fill(self.steps, source)
        for slot in self._part_of:
            slot.values = None

    # ---- a step ------------------------------------------------------------------------------------------

    @property
    def position(self):
        return self._position

    @property
    def last_task(self):
        return self.tasks[self._position - 1] if self._position > 0 else None

    def fits(self, settings):
        """Returns whether the settings are these, and the same slots train."""
        return (self.settings == settings
                and all(slot.trains != part.is_frozen for slot, part in self._part_of.items()))

    def has_backwards_of(self, slots):
        return all(slot.unit in self._last_backward for slot in slots)

    def is_outgrown_by(self, saved_bytes):
        """Returns whether a unit's forward saves more than there is room for."""
        return any(parts[-1].keeps_saved and saved_bytes.get(unit, 0) > parts[-1].saved_bytes
                   for unit, parts in self.parts.items())

    def begin(self, learning_rate):
        self.units.begin_step(learning_rate)
        self.learning_rate = learning_rate
        self._position = 0

    def has_next(self, task):
        return self._position < len(self.tasks) and self.tasks[self._position] == task

    def enter(self, task):
        """Loads the unit of the next task into its slots that are not resident. The task is held until leave() if it
        has a gradient or saved tensors."""
        self.leave()
        unit, task_pass, m = task
        self._position += 1
        for part in self.parts[unit]:
            memory = self.units.acquire(part.number, task_pass, m)
            self._held = (part, task_pass, m, memory)
            for slot in part.slots:
                if not slot.is_resident:
                    slot.allocate()
                    slot.fill_from(memory.parameters + part.offsets[slot] * slot.dtype.itemsize)
            if part is not self.parts[unit][-1] or not self._is_of_use(part, task_pass):
                self.leave()

    def refill(self, unit):
        """Loads a unit again while its task is held. Returns False if the held task is another unit's."""
        if self._held is None or self._held[0].unit is not unit:
            return False
        part, _, _, memory = self._held
        for slot in part.slots:
            if not slot.is_resident:
                slot.allocate()
                slot.fill_from(memory.parameters + part.offsets[slot] * slot.dtype.itemsize)
        return unit.is_resident

    @staticmethod
    def _is_of_use(part, task_pass):
        return part.saved_bytes > 0 or (task_pass == BACKWARD and not part.is_frozen)

    def pass_through(self, gradients=None):
        """Goes through the next task without a use of the unit. If `gradients`, the GradientSums of the step, are
        given, the last backward of a unit gets its gradients from there."""
        self.leave()
        unit, task_pass, m = self.tasks[self._position]
        is_last = self._last_backward.get(unit) == self._position
        self._position += 1
        for part in self.parts[unit]:
            self._held = (part, task_pass, m, self.units.acquire(part.number, task_pass, m))
            if is_last and gradients is not None and not part.is_frozen:
                for slot in part.slots:
                    self.add_gradient(slot, gradients.read(slot))
            self.leave()

    def saved_address(self, task, task_pass):
        """Returns the address of the memory that keeps what a unit saves from its forward to its backward, while the
        unit's task of this pass is held; else None."""
        if self._held is None:
            return None
        part, held_pass, m, memory = self._held
        return memory.saved if (part.unit, m) == task and held_pass == task_pass and part.saved_bytes else None

    def keep_saved(self, saved, tensor, task, end):
        """Copies a tensor into a forward's memory. Returns False if that has no room, or the forward is not held."""
        address = self.saved_address(task, FORWARD)
        if address is None or end > self._held[0].saved_bytes:
            return False
        with torch.no_grad():
            saved.at(address).copy_(tensor)
        saved.task = task
        self._saved.setdefault(task, weakref.WeakSet()).add(saved)
        return True

    def _keep_unread(self, task):
        """Copies the saved tensors that are still to be read from a backward's memory, which goes away. There are such
        tensors if a step is given up, or a graph is kept for another backward."""
        address = self.saved_address(task, BACKWARD)
        for saved in self._saved.pop(task, ()) if address else ():
            saved.tensor = saved.at(address).clone()

    def leave(self):
        """Releases the task that is held."""
        if self._held is None:
            return
        part, task_pass, m, memory = self._held
        self._keep_unread((part.unit, m))
        if task_pass == BACKWARD and not part.is_frozen and not memory.adds_gradient:
            for slot in part.slots:
                if slot not in self._written:
                    self._gradient(part, memory, slot).zero_()
        self._held = None
        self._written.clear()
        self.units.release(part.number)

    def add_gradient(self, slot, gradient):
        """Adds to the gradient of the backward that is held. Returns False if the held task is another one."""
        if self._held is None:
            return False
        part, task_pass, _, memory = self._held
        if task_pass != BACKWARD or self._part_of.get(slot) is not part or part.is_frozen:
            return False
        target = self._gradient(part, memory, slot)
        if memory.adds_gradient or slot in self._written:
            target.add_(gradient.reshape(-1))
        else:
            target.copy_(gradient.reshape(-1))
        self._written.add(slot)
        return True

    @staticmethod
    def _gradient(part, memory, slot):
        return tensor_at(memory.gradient + 4 * part.offsets[slot], slot.count, torch.float32)

    def end(self, gradients=None):
        """Goes through the remaining tasks of the step, and updates. Returns a lib.StepResult."""
        while self._position < len(self.tasks):
            self.pass_through(gradients)
        self.leave()
        result = self.units.end_step()
        self.steps = result.step
        return result

    def abandon(self, sums):
        """Ends the step without an update. The gradients that it has so far go to `sums`, a GradientSums."""
        problems = []

        def sink(number, first, count, address):
            try:
                for slot, begin, size, place in self._numbered[number].ranges(first, count):
                    sums.set_range(slot, begin, size, address + 4 * place)
            except BaseException as problem:  # a full disk, for instance
                problems.append(problem)

        self.units.abandon_step(sink)
        self.end()
        if problems:
            raise problems[0]

    # ---- state, between steps ----------------------------------------------------------------------------

    def holds(self, slot):
        return slot in self._part_of

    def read(self, slot, field, first, count, address, dtype_name):
        part = self._part_of[slot]
        self.units.read_state(part.number, field, buffer_of(address, count, dtype_name), part.offsets[slot] + first)

    def close(self):
        self.units.close()


class SavedState:
    """The state of slots in a file without a name, from which another compiled step is filled."""

    def __init__(self, steps):
        self.steps = steps
        self._fields = {}   # by (slot, field), its values

    def field(self, slot, field):
        return self._fields.get((slot, field))

    def set(self, slot, field, values):
        self._fields[slot, field] = values

    def replaced_by(self, other):
        """Takes over the fields of another state, if there is one. Returns this state."""
        if other is not None:
            self.steps = other.steps
            self._fields.update(other._fields)
        return self

    @classmethod
    def of(cls, compiled, directory):
        """Copies all state of a compiled step, in pieces."""
        state = cls(compiled.steps)
        file = ScratchFile(directory)
        piece = torch.empty(1 << 20)
        for part in compiled._numbered:
            for slot in part.slots:
                for field in ("master",) + (() if part.is_frozen else compiled.fields):
                    offset = file.reserve(4 * slot.count)
                    for first in range(0, slot.count, piece.numel()):
                        count = min(piece.numel(), slot.count - first)
                        compiled.read(slot, field, first, count, piece.data_ptr(), "float32")
                        file.write(offset + 4 * first, piece.data_ptr(), 4 * count)
                    state.set(slot, field, FileValues(file, offset, torch.float32))
        return state


