"""Waits before a module's forward for what it reads."""

import weakref


class ParameterWaits:
    """Hooks of a model: a module's forward waits for its own parameters, and state_dict() for all. They end with the
    optimizer."""

    def __init__(self, optimizer, model):
        self._optimizer = weakref.ref(optimizer)
        for module in model.modules():
            if any(True for _ in module.parameters(recurse=False)):
                module.register_forward_pre_hook(self._wait_for_module, prepend=True)
            module.register_state_dict_pre_hook(self._wait_for_all)

    def _wait_for_module(self, module, _):
        optimizer = self._optimizer()
        if optimizer is not None:
            optimizer.wait_for(module.parameters(recurse=False))

    def _wait_for_all(self, *_):
        optimizer = self._optimizer()
        if optimizer is not None:
            optimizer.finish_step()
