"""Waits before a module's forward for what it reads."""

import weakref

import torch

_PLAIN_CONTAINERS = (torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict)


def _reads_its_children(module):
    """Whether a forward may use parameters of modules within, without a call of their forwards: what has parameters
    of its own (MultiheadAttention), and modules of torch that are made of others (TransformerEncoderLayer)."""
    if any(True for _ in module.parameters(recurse=False)):
        return True
    is_torchs = type(module).__module__.startswith("torch.nn.modules")
    return is_torchs and not isinstance(module, _PLAIN_CONTAINERS) and any(True for _ in module.children())


def _ended():
    waits = ParameterWaits.__new__(ParameterWaits)
    waits._optimizer = type(None)
    return waits


class ParameterWaits:
    """Hooks of a model: a module's forward waits for its own parameters, and state_dict() for all. They end with the
    optimizer."""

    def __init__(self, optimizer, model):
        self._optimizer = weakref.ref(optimizer)
        for module in model.modules():
            if _reads_its_children(module):
                module.register_forward_pre_hook(self._wait_for_module, prepend=True)
            module.register_state_dict_pre_hook(self._wait_for_all)

    def _wait_for_module(self, module, _):
        optimizer = self._optimizer()
        if optimizer is not None:
            optimizer.wait_for(module.parameters())

    def _wait_for_all(self, *_):
        optimizer = self._optimizer()
        if optimizer is not None:
            optimizer.finish_step()

    def __reduce__(self):
        return _ended, ()  # a copy of the model has parameters that nobody updates
