"""The gradients of a step: where they are before the step, and how the session gets them."""

import sys
import weakref

import torch

from terrace import library as lib
from terrace.torch.gradients import tensor_buffer
from terrace.torch.shards import is_shared, local_gradient
from terrace.torch.stand_ins import GradientStandIn, LentGradient, TakenGradients


def _is_alone_in_its_storage(tensor):
    """Returns whether a tensor's memory is no part of a larger buffer, which may be used again for something else."""
    return tensor.untyped_storage().nbytes() == tensor.nbytes


def _is_in_grad_only(parameter):
    """Returns whether nobody but .grad has the gradient, or a view of it."""
    gradient = parameter.grad
    if not hasattr(gradient, "_use_count"):
        return False
    storages = torch._C._storage_Use_Count(gradient.untyped_storage()._cdata)
    # The counts include: the call below and the name here; .grad and its Python object; the object of the storage.
    return sys.getrefcount(gradient) <= 3 and gradient._use_count() <= 2 and storages <= 2


class StepGradients:
    """Part of TieredOptimizer. Gradients stay in .grad, as torch has them, until step() tells the session of them. With
    take_gradients=True the session gets each gradient as soon as the backward has it."""

    def _init_gradients(self):
        own = weakref.ref(self)

        def add(parameter, gradient):
            if own() is not None:
                own()._add_to_taken(parameter, gradient)

        def name_of(parameter):
            return own()._name_of(parameter) if own() is not None else "a parameter"

        remedy = ("updates='step' and take_gradients=False leave gradients in .grad" if self._updates == "backward"
                  else "take_gradients=False leaves gradients in .grad")
        self._taken = TakenGradients(add, name_of, remedy)
        self._lent = []          # (parameter, stand-in) of gradients that a step under way reads
        self._seen_backward = None

    # ---- under the backward, with take_gradients=True ----------------------------------------------------

    def _take(self, parameter):
        """Is called when the backward has set .grad, or added to it."""
        if id(parameter) in self._unwaited:
            self._waits.refuse_unwaited(parameter, self._name_of(parameter))
        if not self._takes_gradients:
            return
        self._forget_given_up()
        if parameter.grad is None or self._taken.has(parameter):
            return
        gradient = parameter.grad
        if not isinstance(gradient, GradientStandIn):  # else another optimizer has taken it, and has said so
            self._add(parameter, gradient, may_borrow=True)
            self._taken.note(parameter, gradient)

    def _forget_given_up(self):
        """Forgets gradients that somebody has removed since they were taken. Looks once in a backward."""
        backward = torch._C._current_graph_task_id()
        if backward == -1 or backward != self._seen_backward:
            self._seen_backward = backward
            if self._taken.are_given_up():
                if self._under_backward is not None:
                    self._under_backward.refuse_giving_up()
                self._forget_gradients()

    def _add_to_taken(self, parameter, gradient):
        self.finish_step()
        self._forget_given_up()
        self._taken.refuse_used(parameter)
        self._add(parameter, gradient, may_borrow=False)

    # ---- in step() ---------------------------------------------------------------------------------------

    def _collect_gradients(self):
        """Adds the gradients that are in .grad to the session's."""
        self._check_not_offloaded(p for group in self.param_groups for p in group["params"])
        if self._takes_gradients:
            self._seen_backward = None
            self._forget_given_up()
        else:
            self._forget_gradients()  # a failed step has left some, which are in .grad
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None or self._taken.has(parameter):
                    continue
                if isinstance(parameter.grad, GradientStandIn):
                    parameter.grad.source.real("step()")  # raises if it is used up, or another optimizer's
                    self._return_lent()
                self._collect(parameter)

    def _collect(self, parameter):
        # If the update overlaps with the next forward, nobody else may write into the gradient meanwhile.
        may_borrow = self._updates != "forward" or _is_in_grad_only(parameter)
        gradient = parameter.grad
        number = self._add(parameter, gradient, may_borrow)
        if self._takes_gradients and number is not None:
            self._taken.note(parameter, gradient)
        elif self._updates == "forward" and self._session.is_lent(number):
            self._lend(parameter, gradient)

    def _lend(self, parameter, gradient):
        own = weakref.ref(self)
        stand_in = GradientStandIn(gradient, LentGradient(gradient, lambda: own() and own().finish_step()))
        parameter.grad = stand_in
        self._lent.append((parameter, stand_in))

    def _return_lent(self):
        """Puts gradients back into .grad after the step that has read them in place."""
        for parameter, stand_in in self._lent:
            if parameter.grad is stand_in:
                parameter.grad = stand_in.source.gradient
        self._lent.clear()

    def _keep_gradients(self):
        """Keeps the gradients of a step that has failed."""
        self._taken.revive()

    def _add(self, parameter, gradient, may_borrow):
        """Adds a gradient to the session's sum for the parameter. may_borrow says that nobody writes into the gradient
        before the next step has ended. Returns the number of the tensor in the session, or None if other ranks have all
        of it."""
        self._check_not_offloaded([parameter])
        if self._takes_gradients and is_shared(parameter):
            raise lib.UnsupportedError(f"{self._name_of(parameter)} is a DTensor, whose gradients stay in .grad: leave "
                                       "take_gradients out")
        gradient = local_gradient(parameter, gradient)
        if gradient.numel() == 0:
            self._empty_gradients.add(id(parameter))
            return None
        self.finish_step()
        if self._under_backward is not None:
            self._under_backward.check()
        session = self._session or self._ready_session()
        number = self._tensors.get(id(parameter))
        if number is None:
            raise lib.OrderError(f"{self._name_of(parameter)} has a gradient and was frozen at the first step: make "
                                 "a new optimizer where other parameters train")
        if gradient.layout != torch.strided:
            raise lib.UnsupportedError(f"the gradient of {self._name_of(parameter)} is sparse: use "
                                       "sparse=False in its embedding")
        dense = gradient.contiguous()
        buffer = tensor_buffer(dense, lambda: f"the gradient of {self._name_of(parameter)}")
        self._has_gradients = True

        owner = dense if may_borrow and _is_alone_in_its_storage(dense) else None
        if self._under_backward is None:
            session.add_gradient(number, buffer, owner)
        else:
            self._under_backward.add(number, buffer, owner, parameter)
        return number

    # ---- without a step ----------------------------------------------------------------------------------

    def zero_grad(self, set_to_none=True):
        if not set_to_none:
            self.finish_step()
        self._forget_gradients()  # may raise
        if not set_to_none:
            for group in self.param_groups:
                for parameter in group["params"]:
                    if isinstance(parameter.grad, GradientStandIn):  # taken: nobody else has the gradient
                        parameter.grad = torch.zeros_like(parameter)
        super().zero_grad(set_to_none=set_to_none)

    def _forget_gradients(self):
        self._empty_gradients.clear()
        if self._is_stepping:
            return
        if self._has_gradients:
            self._session.discard_gradients()
            self._has_gradients = False
            if self._under_backward is not None:
                self._under_backward.forget()
        self._taken.end()

    def _drop_gradients(self):
        """Drops the gradients because a state is loaded, after which the session has none."""
        self._has_gradients = False
        self._taken.drop()
