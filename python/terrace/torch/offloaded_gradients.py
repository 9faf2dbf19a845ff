"""The gradients of an offloaded model, which are taken as soon as the backward has them."""

import weakref

import torch

from terrace import library as lib
from terrace.library import BACKWARD
from terrace.torch.stand_ins import TakenGradients


class OffloadedGradients:
    """Part of Movement."""

    def _init_gradients(self):
        own = weakref.ref(self)

        def add(parameter, gradient):
            if own() is not None:
                own()._add_to_taken(parameter, gradient)

        def name_of(parameter):
            names = [slot.name for slot in own().units.slots if any(p is parameter for p in slot.parameters)]
            return names[0] if names else "a parameter"

        self._taken = TakenGradients(add, name_of, "Only the optimizer has gradients of an offloaded model.")

    def _watch_gradients(self):
        own = weakref.ref(self)
        for slot in self.units.slots:
            if slot.is_hooked or not slot.trains:
                continue
            slot.is_hooked = True
            for parameter in slot.parameters:
                if parameter.requires_grad:
                    parameter.register_post_accumulate_grad_hook(
                        lambda p, slot=slot: own() is not None and own()._take(slot, p))

    def _take(self, slot, parameter):
        """Takes a gradient as soon as autograd has it."""
        if parameter.grad is None or self._taken.has(parameter):
            return
        gradient = parameter.grad
        if gradient.layout != torch.strided:
            parameter.grad = None
            raise lib.UnsupportedError(f"the gradient of {slot.name} is sparse: use sparse=False in its embedding")
        self._add(slot, parameter, gradient)
        if self.optimizer is not None and self.optimizer() is not None:
            self._taken.note(parameter, gradient)
        else:
            parameter.grad = None  # an optimizer of torch must find none: its parameters have no memory

    def _add_to_taken(self, parameter, gradient):
        self._taken.refuse_used(parameter)
        slot = next(slot for slot in self.units.slots if any(p is parameter for p in slot.parameters))
        self._add(slot, parameter, gradient)

    def _add(self, slot, parameter, gradient):
        self.check_process()
        self._begin_step()
        self._fired.add(slot)
        unit = slot.unit
        with torch.no_grad():
            if not self._is_last_task(unit, BACKWARD):
                # The parameter is a module's own, beside its blocks: its gradient comes after theirs.
                self._task((unit, BACKWARD, max([use.micro_batch for use in unit.backward_uses], default=0)))
                if unit.is_idle:
                    self._lingering.add(unit)
            if self._runs_compiled and not self.compiled.add_gradient(slot, gradient):
                self._deviate()
            if not self._runs_compiled:
                self._recording.sums.add(slot, gradient)
        unit.fired.add(id(parameter))
        if unit.backward_uses and unit.has_fired:
            # Hardly any node needs the unit now. It is evicted when another one comes.
            unit.backward_uses.clear()
            if unit.is_idle:
                self._lingering.add(unit)

    def _forget_given_up(self):
        """Forgets the gradients if somebody has removed all of them from .grad."""
        if self._fired and self._taken.are_given_up():
            self.forget_gradients()
