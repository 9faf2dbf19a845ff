"""Guards of an offloaded model outside of its forward: state_dict() has all values, and operations that would move,
copy or overwrite parameters that are not in memory are refused."""

import weakref

import torch

from terrace import library as lib
from terrace.torch.mapped_tensors import mapped_tensor


class _StaysHere:
    """Takes the place of a module's _apply(), by which to(), half() and the like move it."""

    def __init__(self, module, dtype):
        self._module = weakref.ref(module)
        self._dtype = dtype

    def __call__(self, fn, recurse=True):
        probe = torch.empty(0, dtype=self._dtype)
        moved = fn(probe)
        if moved.dtype != probe.dtype or moved.device != probe.device:
            raise lib.UnsupportedError(f"an offloaded model stays in {probe.dtype} on the CPU: choose the type before "
                                       "terrace.torch.offload(), or by dtype= of load_pretrained()")
        module = self._module()
        for inner in module.modules() if recurse else (module,):
            for name, buffer in inner._buffers.items():
                if buffer is not None:
                    inner._buffers[name] = fn(buffer)
        return module


def _refuse_copies(*_):
    raise lib.UnsupportedError("a module of an offloaded model has no values that could be copied: copy it before "
                               "terrace.torch.offload(), or load what save_pretrained() wrote")


def _refuse_pickling(*_):
    raise lib.UnsupportedError("a module of an offloaded model cannot be pickled: use save_pretrained() or "
                               "state_dict()")


def _refuse_loading(*_):
    raise lib.UnsupportedError("values cannot be loaded into an offloaded model: load them before "
                               "terrace.torch.offload(), or use load_pretrained()")


class StateDicts:
    """Completes the state_dict() of a model and of its modules with tensors that are mappings of files."""

    def __init__(self, model, movement):
        self._movement = weakref.ref(movement)
        self._slots = {id(parameter): slot for slot in movement.units.slots for parameter in slot.parameters}
        self._filled = None                            # a weak reference to the dictionary that was filled last
        self._mapped = weakref.WeakValueDictionary()   # its tensors, by slot and updates: tied parameters share one
        own = weakref.ref(self)

        def complete(module, state_dict, prefix, _):
            if own() is not None:
                own()._complete(module, state_dict, prefix)

        for module in model.modules():
            # These are set on the object and not on its class, which other models have too.
            module.__dict__["_apply"] = _StaysHere(module, movement.units.dtype)
            module.__dict__["__deepcopy__"] = _refuse_copies
            module.__dict__["__reduce_ex__"] = _refuse_pickling
            if any(True for _ in module.parameters(recurse=False)):
                module.register_state_dict_post_hook(complete)
                module.register_load_state_dict_pre_hook(_refuse_loading)

    def _complete(self, module, state_dict, prefix):
        movement = self._movement()
        if movement is None:
            return
        movement.settle()
        self._begin(state_dict)
        for name, parameter in module._parameters.items():
            slot = self._slots.get(id(parameter))
            if slot is not None and prefix + name in state_dict:
                state_dict[prefix + name] = self._tensor(movement, slot)

    def _begin(self, state_dict):
        """Shares tensors within one dictionary only, since the owner of an earlier dictionary may write to it."""
        if self._filled is not None and self._filled() is state_dict:
            return
        self._mapped.clear()
        try:
            self._filled = weakref.ref(state_dict)
        except TypeError:  # a plain dict, given as destination=, gets a tensor of its own for each name
            self._filled = None

    def _tensor(self, movement, slot):
        key = (id(slot), movement.updates)
        tensor = self._mapped.get(key)
        if tensor is None:
            tensor = mapped_tensor(slot.shape, slot.dtype,
                                   lambda *part: movement.read_slot(slot, *part),
                                   movement.options.scratch_directory)
            self._mapped[key] = tensor
        return tensor
