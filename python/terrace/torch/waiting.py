"""Makes a model's forward wait for the parameters that it reads, with updates="forward"."""

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from terrace import library as lib

_PLAIN_CONTAINERS = (torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict)


def _is_compiled(module):
    """Returns whether a module is the result of torch.compile(), whose hooks are no part of the graph."""
    return hasattr(module, "_orig_mod")


def _reads_its_children(module):
    """Returns whether a module's forward may use parameters of modules within it without calling their forwards. That
    holds for modules with parameters of their own (MultiheadAttention), for modules of torch that are made of others
    (TransformerEncoderLayer), and for compiled modules."""
    if _is_compiled(module) or any(True for _ in module.parameters(recurse=False)):
        return True
    is_torchs = type(module).__module__.startswith("torch.nn.modules")
    return is_torchs and not isinstance(module, _PLAIN_CONTAINERS) and any(True for _ in module.children())


class _Reads(TorchDispatchMode):
    """Notes which parameters an outermost forward reads before their module has waited for them."""

    def __init__(self, parameters):
        super().__init__()
        self._storages = {}
        for parameter in parameters:
            self._storages.setdefault(parameter.untyped_storage()._cdata, []).append(parameter)
        self._waited = set()
        self._safe = {}   # by id of a parameter that is read, whether its module had waited

    def note_wait(self, parameters):
        self._waited.update(id(parameter) for parameter in parameters)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        for value in tree_leaves((args, kwargs)):
            if isinstance(value, torch.Tensor) and value.layout == torch.strided:
                for parameter in self._read(value):
                    self._safe.setdefault(id(parameter), id(parameter) in self._waited)
        return func(*args, **(kwargs or {}))

    def _read(self, tensor):
        try:
            return self._storages.get(tensor.untyped_storage()._cdata, ())
        except (RuntimeError, NotImplementedError):  # it has no storage
            return ()

    def left_to_the_outermost(self):
        """Returns the parameters that the outermost forward has to wait for, since no module's forward does in time."""
        return [parameter for parameters in self._storages.values() for parameter in parameters
                if not self._safe.get(id(parameter), False)]


def _ended():
    waits = ParameterWaits.__new__(ParameterWaits)
    waits._optimizer = type(None)
    return waits


class ParameterWaits:
    """Hooks of a model. A module's forward waits for its own parameters. The outermost forward, of whichever module,
    waits for the parameters that are read in another way. The first outermost forward of each kind waits for all
    parameters, and finds out which ones these are. state_dict() waits for all. The hooks end with the optimizer."""

    def __init__(self, optimizer, model):
        self._optimizer = weakref.ref(optimizer)
        self._outermost = None   # the module whose forward is the outermost
        self._reads = None       # the _Reads that are noted in it
        self._left = {}          # by kind of outermost forward, the parameters that it waits for
        self._modules = [weakref.ref(module) for module in model.modules()
                         if any(True for _ in module.parameters())]
        for module in model.modules():
            if any(True for _ in module.parameters()):
                module.register_forward_pre_hook(self._before, prepend=True, with_kwargs=True)
                module.register_forward_hook(self._after, always_call=True)
            module.register_state_dict_pre_hook(self._wait_for_all)
        self._guard_compiled()

    # ---- forwards ----------------------------------------------------------------------------------------

    def _before(self, module, args, kwargs):
        if torch.compiler.is_compiling():
            return  # a graph may be used for a model without such hooks, or with other ones
        optimizer = self._optimizer()
        if optimizer is None:
            return
        in_backward = torch._C._current_graph_task_id() != -1  # a recomputation
        if (self._outermost is None or self._outermost is module) and not in_backward:
            self._enter(optimizer, module, args, kwargs)
        if (optimizer._unwaited or self._reads is not None) and _reads_its_children(module):
            parameters = list(module.parameters())
            optimizer.wait_for(parameters)
            if self._reads is not None:
                self._reads.note_wait(parameters)

    def _enter(self, optimizer, module, args, kwargs):
        self.reset()
        self._guard_compiled()
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        kind = (id(module), module.training, torch.is_grad_enabled(), len(args), tuple(kwargs))
        optimizer.wait_for(self._left.get(kind, parameters))
        self._outermost = module
        if kind not in self._left and not _is_compiled(module):
            self._kind, self._reads = kind, _Reads(parameters)
            self._reads.__enter__()

    def _after(self, module, args, output):
        if torch.compiler.is_compiling() or self._outermost is not module:
            return
        reads = self._reads
        self.reset()
        if reads is not None and output is not None:  # None: the forward has failed
            self._left[self._kind] = reads.left_to_the_outermost()

    def reset(self):
        """Ends an outermost forward, also one that was interrupted."""
        self._outermost = None
        reads, self._reads = self._reads, None
        if reads is not None and torch.utils._python_dispatch._get_current_dispatch_mode() is reads:
            reads.__exit__(None, None, None)

    def _guard_compiled(self):
        """Makes modules that compile() has compiled in place wait before their graph runs."""
        for known in self._modules:
            module = known()
            inner = module.__dict__.get("_compiled_call_impl") if module is not None else None
            if inner is not None and not hasattr(inner, "_terrace_waits"):
                module._compiled_call_impl = self._guarded(known, inner)

    def _guarded(self, known, inner):
        own = weakref.ref(self)

        def call(*args, **kwargs):
            if own() is not None and not torch.compiler.is_compiling():
                own()._wait_for_compiled(known())
            return inner(*args, **kwargs)

        call._terrace_waits = True
        return call

    def _wait_for_compiled(self, module):
        optimizer = self._optimizer()
        if optimizer is not None:
            parameters = list(module.parameters())
            optimizer.wait_for(parameters)
            if self._reads is not None:
                self._reads.note_wait(parameters)

    # ---- the net under it --------------------------------------------------------------------------------

    def refuse_unwaited(self, parameter, name):
        """Raises OrderError for a parameter that has a gradient while it is not known to be updated."""
        raise lib.OrderError(f"{name} was read by a forward that did not wait for its update, so that the loss is "
                             "wrong: what reads it outside of the forward of model=, or in a graph that "
                             "torch.compile() has made of more than model=, calls optimizer.finish_step() first; or "
                             "give model= what torch.compile() has returned, or updates='step'")

    def _wait_for_all(self, *_):
        optimizer = self._optimizer()
        if optimizer is not None:
            optimizer.finish_step()

    def __reduce__(self):
        return _ended, ()  # a copy of the model has parameters that nobody updates
