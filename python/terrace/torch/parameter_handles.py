"""Objects that a node of autograd keeps instead of a parameter of an offloaded model, and instead of other tensors."""

import torch

from terrace import library as lib


class ParameterHandle:
    """A parameter that autograd has saved, or a view of it. The handle notes which parameter it is, and at which number
    of updates. The values are loaded when a backward reads them."""

    def __init__(self, slot, tensor, use, updates):
        self.slot = slot
        self.use = use            # the use whose backward reads it
        self._updates = updates   # the model's updates when it was saved
        self._dtype = tensor.dtype
        self._place = tensor.storage_offset(), tensor.shape, tensor.stride()

    def check(self, updates):
        if updates != self._updates:
            raise stale_error(self.slot.unit)

    def view(self):
        """Returns a view of the parameter's memory, which is resident."""
        return torch.empty(0, dtype=self._dtype).set_(self.slot.storage, *self._place)

    def copy(self, read):
        """Returns a copy of the values, for where no backward runs; read(slot, first, count, address) writes them."""
        values = torch.empty(self.slot.count, dtype=self.slot.dtype)
        read(self.slot, 0, self.slot.count, values.data_ptr())
        return torch.empty(0, dtype=self._dtype).set_(values.untyped_storage(), *self._place)


def stale_error(unit):
    return lib.OrderError(f"a backward goes through {unit.name}, whose values an update has changed since its forward: "
                          "call backward() before step(), and compute the loss again after it")


class KeptTensor:
    """Any other tensor, which stays where it is."""

    def __init__(self, tensor):
        self._tensor = tensor.detach() if tensor.grad_fn is not None else tensor
        self._version = None if tensor.is_inference() else tensor._version

    def get(self):
        if self._version is not None and self._tensor._version != self._version:
            # Torch compares the versions only of tensors that it keeps itself.
            raise RuntimeError("one of the variables needed for gradient computation has been modified by an inplace "
                               f"operation: a tensor of shape {list(self._tensor.shape)} is at version "
                               f"{self._tensor._version}; expected version {self._version} instead")
        return self._tensor


class OthersTensor:
    """A tensor as hooks beside ours, such as gradient checkpointing's, have packed it."""

    def __init__(self, hooks, tensor):
        self._packed = hooks[0](tensor)
        self._unpack = hooks[1]

    def get(self):
        return self._unpack(self._packed)
