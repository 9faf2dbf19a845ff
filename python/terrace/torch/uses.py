"""A use of a module of an offloaded model: one forward, and its backward."""

import dataclasses

import torch


class Use:
    """One forward of a module, and its backward."""

    def __init__(self, module, units, micro_batch, trains, updates):
        self.module = module
        self.units = units         # the units that it loads
        self.micro_batch = micro_batch
        self.trains = trains       # whether it may have a backward
        self.updates = updates     # the model's updates at its forward
        self.graph_task = None     # the backward that has begun it
        self.inputs = 0            # number of inputs that other nodes have made
        self.inputs_left = 0       # number of inputs whose gradients are still to come
        self.saved = None          # its SavedTensors, during the forward

    def close(self):
        if self.saved is not None:
            self.saved.close()
            self.saved = None


def graph_task():
    """Returns the number of the backward that runs on this thread, or -1 outside of one."""
    return torch._C._current_graph_task_id()


def tensors_in(value):
    """Yields the tensors in the arguments or the result of a module."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name))
