"""Stand-ins in .grad for gradients that are elsewhere. They answer code that computes with .grad."""

import weakref

import torch
from torch.utils._pytree import tree_map_only

from terrace import library as lib


class GradientStandIn(torch.Tensor):
    """A tensor with the shape, type and device of a gradient, and no memory. An operation on it gets the tensor that
    the source's real(name of the operation) returns, or the error that it raises. A backward that adds to the stand-in
    calls the source's add(gradient), which returns whether it has taken the gradient."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, gradient, source):
        stand_in = torch.Tensor._make_wrapper_subclass(cls, gradient.shape, strides=gradient.stride(),
                                                       dtype=gradient.dtype, device=gradient.device)
        stand_in.source = source
        return stand_in

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.add_.Tensor and isinstance(args[0], cls) and not kwargs:
            is_in_backward = torch._C._current_graph_task_id() != -1
            if is_in_backward and args[1].shape == args[0].shape and args[0].source.add(args[1]):
                return args[0]
        name = func.overloadpacket.__name__
        args, kwargs = tree_map_only(cls, lambda each: each.source.real(name), (args, kwargs or {}))
        return func(*args, **kwargs)

    def __repr__(self, **_):
        return f"<{self.source}>"

    @property
    def is_sparse(self):
        """Torch's optimizers read this before they write anything."""
        return self.source.real("is_sparse").is_sparse

    def data_ptr(self):
        return self.source.real("data_ptr").data_ptr()

    def untyped_storage(self):
        return self.source.real("untyped_storage").untyped_storage()

    def numpy(self, **more):
        return self.source.real("numpy").numpy(**more)

    def tolist(self):
        return self.source.real("tolist").tolist()

    def __reduce_ex__(self, protocol):
        return self.source.real("a copy").__reduce_ex__(protocol)


class _Taken:
    """The source of a gradient that an optimizer has taken, and will use in its step()."""

    def __init__(self, registry, parameter):
        self._registry = weakref.ref(registry)
        self._parameter = weakref.ref(parameter)
        self.is_used = False

    def __str__(self):
        registry = self._registry()
        name = registry.name_of(self._parameter()) if registry is not None else "a parameter"
        return f"the gradient of {name}, which {'is used up' if self.is_used else 'the optimizer has taken'}"

    def _registry_in_use(self):
        registry = self._registry()
        if registry is None:
            raise lib.OrderError("the gradient of a parameter was taken by an optimizer that is gone: call "
                                 "model.zero_grad() before the next backward")
        return registry

    def real(self, operation):
        registry = self._registry_in_use()
        if self.is_used:
            raise lib.OrderError(f"{operation} is called with {self}: call zero_grad() after step(). {registry.remedy}")
        raise lib.OrderError(f"{operation} is called with {self}, so that it would change nothing: to clip, give "
                             f"max_grad_norm to the optimizer, and nothing to others that clip. {registry.remedy}")

    def add(self, gradient):
        self._registry_in_use().add(self._parameter(), gradient)
        return True


class TakenGradients:
    """The stand-ins of the gradients that a step has taken. `add(parameter, gradient)` gets the gradients that later
    backwards of the step add. `name_of(parameter)` and `remedy` are for the text of errors; `remedy` says how to leave
    gradients where they are."""

    def __init__(self, add, name_of, remedy):
        self.add = add
        self.name_of = name_of
        self.remedy = remedy
        self._stand_ins = {}   # by id of a parameter, the parameter and its stand-in
        self._ended = {}       # the same for the last step

    def note(self, parameter, gradient):
        """Puts a stand-in into .grad, in the place of a gradient that was taken."""
        stand_in = GradientStandIn(gradient, _Taken(self, parameter))
        parameter.grad = stand_in
        self._stand_ins[id(parameter)] = parameter, stand_in

    def has(self, parameter):
        """Returns whether .grad is the stand-in of a gradient of this step."""
        known = self._stand_ins.get(id(parameter))
        return known is not None and parameter.grad is known[1]

    def are_given_up(self):
        """Returns whether somebody has removed or replaced all gradients of this step since they were taken. Raises if
        that was done to some of them only."""
        gone = [known for known in self._stand_ins.values() if known[0].grad is not known[1]]
        if gone and len(gone) < len(self._stand_ins):
            raise lib.OrderError(f"{gone[0][1].source} was removed or replaced, and other gradients were not: give up "
                                 f"all of them, by optimizer.zero_grad(). {self.remedy}")
        return bool(gone)

    def refuse_used(self, parameter):
        """Raises if the backward adds to a gradient of an earlier step, which is gone."""
        if not self.has(parameter):
            raise lib.OrderError(f"a backward adds to {parameter.grad.source}: call zero_grad() after step(). "
                                 f"{self.remedy}")

    def end(self):
        """Ends the step: it has used the gradients, or they are given up."""
        self._ended, self._stand_ins = self._stand_ins, {}
        for _, stand_in in self._ended.values():
            stand_in.source.is_used = True

    def drop(self):
        """Takes the stand-ins of this step, and of the last one, out of .grad."""
        for parameter, stand_in in [*self._ended.values(), *self._stand_ins.values()]:
            if parameter.grad is stand_in:
                parameter.grad = None
        self.end()

    def revive(self):
        """Keeps the gradients of the step that has just ended, because it has failed."""
        self._stand_ins, self._ended = self._ended, {}
        for _, stand_in in self._stand_ins.values():
            stand_in.source.is_used = False


class LentGradient:
    """The source of a gradient that updates read in place, until finish() has returned."""

    def __init__(self, gradient, finish):
        self.gradient = gradient
        self._finish = finish

    def __str__(self):
        return "a gradient that updates read; optimizer.finish_step() waits for them"

    def real(self, _):
        self._finish()
        return self.gradient

    def add(self, _):
        return False
