"""The optimizers of terrace.torch over the parameters of an offloaded model."""

import dataclasses
import math
import weakref

import torch

from terrace import library as lib
from terrace.torch.compiled_step import SavedState
from terrace.torch.mapped_tensors import mapped_tensor
from terrace.torch.values import MemoryValues, tensor_at

_FOREIGN = "a parameter is none of the offloaded model's: give each model an optimizer of its own"


@dataclasses.dataclass
class UnitSettings:
    """The settings that a compiled step is made with."""

    rule: str
    fields: tuple
    hyperparameters: dict
    weight_decay: float
    max_grad_norm: float
    decayed: frozenset      # slots with weight decay

    def decays(self, slot):
        return slot in self.decayed


def _write_zeros(first, count, address):
    tensor_at(address, count, torch.float32).zero_()


def offloaded_class(optimizer_class):
    """Returns the class of an optimizer over offloaded parameters, which is an AdamW, Lion or SGD too."""
    return type(f"Offloaded{optimizer_class.__name__}", (OffloadedOptimizer, optimizer_class), {})


class OffloadedOptimizer:
    """Replaces what TieredOptimizer does for parameters in the trainer's memory. There is one rule and one set of
    hyperparameters. Groups may differ in weight_decay if that is 0 in one of them. lr may change in each step, and
    must be set before the forward."""

    def _init_offloaded(self, movement, params, defaults, max_grad_norm, given):
        standard = {"state": "host", "host_memory": None, "nvme": (), "updates": "step", "take_gradients": None,
                    "threads": 0}
        for name, value in given.items():
            if name in standard and value != standard[name]:
                raise lib.ArgumentError(f"{name}={value!r} is of no use with an offloaded model: give "
                                        "terrace.torch.offload() what says where state lives")
        self.max_grad_norm = float(max_grad_norm or 0.0)
        if not 0 <= self.max_grad_norm < math.inf:
            raise lib.ArgumentError(f"max_grad_norm={max_grad_norm}: give more than 0, or 0 for no clipping")
        self._own_settings = tuple(defaults)
        self._grad_norm = None
        torch.optim.Optimizer.__init__(self, params, defaults)
        self._movement = movement
        self.unit_settings()  # refuses wrong settings at once
        other = movement.optimizer and movement.optimizer()
        if other is not None and other is not self and movement.compiled is not None:
            raise lib.OrderError("the offloaded model was trained by another optimizer that still exists: delete that "
                                 "one first")
        movement.optimizer = weakref.ref(self)

    def add_param_group(self, param_group):
        movement = getattr(self, "_movement", None)  # None while the optimizer is being made
        if movement is not None and movement.compiled is not None:
            raise lib.OrderError("a group cannot be added after the first step: make a new optimizer")
        torch.optim.Optimizer.add_param_group(self, param_group)
        if movement is None:
            return
        slots = self._slots_by_id()
        if any(id(parameter) not in slots for parameter in self.param_groups[-1]["params"]):
            self.param_groups.pop()
            raise lib.ArgumentError(_FOREIGN)

    # ---- settings ----------------------------------------------------------------------------------------

    @property
    def learning_rate(self):
        rates = {float(group["lr"]) for group in self.param_groups}
        if len(rates) > 1:
            raise lib.UnsupportedError(f"groups have several learning rates, {sorted(rates)}: an offloaded model has "
                                       "one")
        return rates.pop()

    def _slots_by_id(self):
        """Returns the slot of each parameter of the model, by the parameter's id."""
        return {id(parameter): slot for slot in self._movement.units.slots for parameter in slot.parameters}

    def unit_settings(self):
        """Returns the UnitSettings that the groups have now. Raises UnsupportedError that names what differs."""
        values = [{name: float(value) for name, value in self.hyperparameters_of(group).items()}
                  for group in self.param_groups]
        for other in values[1:]:
            for name, value in other.items():
                if value != values[0][name]:
                    raise lib.UnsupportedError(f"groups differ in {name} ({values[0][name]} and {value}): groups of an "
                                               "offloaded model may differ in weight_decay alone, 0 in some")
        decays = sorted({float(group["weight_decay"]) for group in self.param_groups} - {0.0})
        if len(decays) > 1:
            raise lib.UnsupportedError(f"groups have weight_decay {decays[0]} and {decays[1]}: an offloaded model has "
                                       "one value, and 0")
        self.learning_rate
        slots = self._slots_by_id()
        decay_of = {}
        for group in self.param_groups:
            for parameter in group["params"]:
                slot = slots.get(id(parameter))
                if slot is None:
                    raise lib.ArgumentError(_FOREIGN)
                decay_of[slot] = float(group["weight_decay"])
        left = [slot for slot in self._movement.units.slots if slot.trains and slot not in decay_of]
        if left:
            raise lib.UnsupportedError(f"{left[0].name} trains and is in no group: freeze it by requires_grad_(False)")
        return UnitSettings(self.rule, self.fields, values[0], decays[0] if decays else 0.0, self.max_grad_norm,
                            frozenset(slot for slot, decay in decay_of.items() if decay > 0))

    # ---- a step ------------------------------------------------------------------------------------------

    def set_is_last_backward(self, last):
        """Does nothing: a step updates when all of its backwards are over."""

    def wait_for(self, parameters):
        """Does nothing: a parameter that a forward uses is updated, and a parameter not in use has no values."""

    @torch.no_grad()
    def step(self, closure=None):
        """Updates all parameters that train. Raises MissingGradientError if one has no gradient, and NotFiniteError if
        a gradient is infinite or NaN. Then nothing was updated."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        result = self._movement.step(self)
        if result is not None:
            self._grad_norm = result.gradient_norm
        return loss

    def finish_step(self):
        """Does nothing: a step is complete when step() returns, as far as anybody can see."""

    @property
    def takes_gradients(self):
        return True

    @property
    def grad_norm(self):
        """Norm over all gradients of the last step, before clipping; None before the first."""
        return self._grad_norm

    def zero_grad(self, set_to_none=True):
        """Forgets the gradients since the last step. They do not become zeros: every parameter that trains needs a
        gradient in each step."""
        torch.optim.Optimizer.zero_grad(self)
        self._movement.forget_gradients()

    def adopt(self, parameters):
        raise lib.UnsupportedError("parameters of an offloaded model cannot be changed from outside: change them "
                                   "before terrace.torch.offload()")

    def pause(self, directory=None):
        """Gives back all memory that Terrace has of the model's parameters, gradients and state. May be called between
        steps, after the first one. The content goes to files without a name in `directory`, or else in the `nvme`
        directories of offload(). Until resume() the model and the optimizer refuse everything else."""
        self._movement.pause(directory)

    def resume(self):
        """Takes the memory back, with every bit as it was. After an error the model stays paused."""
        self._movement.resume()

    # ---- state -------------------------------------------------------------------------------------------

    def _fill_state(self):
        """Fills self.state for TieredOptimizer's state_dict()."""
        movement = self._movement
        movement.settle()
        if self._steps_of_state() == 0:
            return
        directory = movement.options.scratch_directory
        names = self.fields + (() if movement.units.dtype == torch.float32 else ("master",))
        for slot in movement.units.slots:
            readers = {name: self._reader_of(slot, name) for name in names}
            if not slot.trains or all(readers[name] is None for name in self.fields):
                continue
            fields = {"step": torch.tensor(float(self._steps_of_state()))}
            for name, read in readers.items():
                fields[name] = mapped_tensor(slot.shape, torch.float32, read or _write_zeros, directory)
            for parameter in slot.parameters:
                self.state[parameter] = fields

    def _steps_of_state(self):
        """Returns how many steps the state has, which waits for the next compiled step or is in the current one."""
        kept = self._movement.pending_state or self._movement.compiled
        return 0 if kept is None else kept.steps

    def _reader_of(self, slot, name):
        """Returns a function (first, count, address) that writes elements of a field to an address, or None if there
        is no such field, which then begins with zeros."""
        pending, compiled = self._movement.pending_state, self._movement.compiled
        values = pending and pending.field(slot, name)
        if values is not None:
            return lambda first, count, address: values.read(first, count, address, torch.float32)
        if compiled is not None:
            if not compiled.holds(slot):
                return None
            return lambda first, count, address: compiled.read(slot, name, first, count, address, "float32")
        return self._rounded_reader_of(slot) if name == "master" else None

    def _rounded_reader_of(self, slot):
        """Returns a function that writes a parameter's values, in the precision of its type, to an fp32 array."""
        def read(first, count, address):
            piece = torch.empty(count, dtype=slot.dtype)
            self._movement.read_slot(slot, first, count, piece.data_ptr())
            tensor_at(address, count, torch.float32).copy_(piece)

        return read

    def load_state_dict(self, state_dict):
        """Takes a state_dict() of this class, or of torch.optim's class of the same rule, with the parameters that the
        model has. The next step reads the tensors; if there was a step already, they are read at once."""
        self._movement.check_process()
        groups = state_dict["param_groups"]
        if [len(group["params"]) for group in groups] != [len(group["params"]) for group in self.param_groups]:
            raise lib.StateMismatchError("the state is of other groups of parameters")
        loaded, slots = None, self._slots_by_id()
        for group, saved in zip(self.param_groups, groups):
            self._check_settings(saved)
            for parameter, place in zip(group["params"], saved["params"]):
                fields = state_dict["state"].get(place)
                if fields:
                    loaded = self._take_fields(loaded, slots[id(parameter)], fields)
        torch.optim.Optimizer.load_state_dict(self, {**state_dict, "state": {}})
        self.unit_settings()
        if loaded is not None:
            self._movement.load_state(loaded, self)

    def _take_fields(self, loaded, slot, fields):
        steps = int(fields.get("step", 1))
        loaded = loaded or SavedState(steps)
        if steps != loaded.steps:
            raise lib.UnsupportedError(f"{slot.name} was updated {steps} times and another parameter {loaded.steps} "
                                       "times: parameters of an offloaded model are updated together")
        for name in self.fields + (("master",) if "master" in fields else ()):
            values = fields.get(name)
            if values is None:
                raise lib.StateMismatchError(f"the state of {slot.name} has no {name}: it is of another optimizer")
            if tuple(values.shape) != slot.shape:
                raise lib.StateMismatchError(f"{name} of {slot.name} is of shape {tuple(values.shape)}, not "
                                             f"{slot.shape}")
            loaded.set(slot, name, MemoryValues(values.contiguous()))
        return loaded

    def save(self, directory):
        raise lib.UnsupportedError("the state of an offloaded model is saved by state_dict(), whose tensors are "
                                   "in files and not in memory: torch.save(optimizer.state_dict(), path)")

    def load(self, directory):
        raise lib.UnsupportedError("the state of an offloaded model is loaded by load_state_dict()")

    def metrics(self):
        raise lib.UnsupportedError("an offloaded model keeps no metrics: see ledger()")

    def ledger(self):
        """Returns what the compiled step uses host memory and drives for, and the budgets."""
        if self._movement.compiled is None:
            raise lib.OrderError("there is no ledger before the first step, which is recorded")
        return self._movement.compiled.units.ledger()
