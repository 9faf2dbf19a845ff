"""The tensors that a forward saves for its backward: parameters by name, and tensors that Terrace keeps."""

import torch

from terrace.torch.parameter_handles import KeptTensor, OthersTensor, ParameterHandle
from terrace.torch.values import tensor_at

_ALIGNMENT = 64
_LEAST_BYTES = 4096  # smaller tensors stay with torch


def _is_dense(tensor):
    """Returns whether the elements fill their memory, in whatever order."""
    return tensor.numel() == 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))


def _top_hooks():
    """Returns the (pack, unpack) pair that takes saved tensors now, or None."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False)


class SavedTensor:
    """A tensor that autograd has saved, stored in a task's memory or in a file, or kept as it is."""

    def __init__(self, tensor, use):
        self.use = use         # the use whose backward reads it
        self.shape, self.stride, self.dtype = tuple(tensor.shape), tensor.stride(), tensor.dtype
        self.count = tensor.numel()
        self.offset = 0
        self.tensor = None     # the tensor, if it is kept as it is
        self.file = None       # the file that stores it from offset on; None: it is in the memory of `task`
        self.task = None       # (unit, micro-batch)

    def at(self, address):
        """Returns the tensor from the memory of its task, which begins at `address`."""
        return torch.as_strided(tensor_at(address + self.offset, self.count, self.dtype), self.shape, self.stride)

    def from_file(self):
        tensor = torch.empty_strided(self.shape, self.stride, dtype=self.dtype)
        self.file.read(self.offset, tensor.data_ptr(), self.count * self.dtype.itemsize)
        return tensor


class SavedTensors:
    """Takes the tensors that a use of a module saves, from the making of this object to close(). Parameters become
    handles. If `stores` is set, Terrace keeps the other tensors, if it can take them. Hooks of others that are in place
    get the other tensors instead. The hooks of an enclosing use rest until close()."""

    def __init__(self, movement, use, stores):
        hooks = _top_hooks()
        outer = self._of(hooks)
        self._others = hooks if outer is None else outer._others
        self._stores = stores and self._others is None and movement.options.activations is not None
        self._movement = movement
        self._use = use
        self._end = 0
        self._taken = {}   # by identity, (tensor, SavedTensor): a tensor that is saved twice is stored once
        self._is_open = True
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, movement.unpack)
        self._hooks.__enter__()

    @staticmethod
    def _of(hooks):
        owner = None if hooks is None else getattr(hooks[0], "__self__", None)
        return owner if isinstance(owner, SavedTensors) else None

    @classmethod
    def are_on_top(cls):
        """Returns whether a use's hooks take saved tensors now, rather than gradient checkpointing's hooks or none."""
        return cls._of(_top_hooks()) is not None

    def close(self):
        if self._is_open:
            self._is_open = False
            self._hooks.__exit__(None, None, None)
            self._hooks = None  # they refer to this object, and a use must go away with its graph
            self._taken.clear()
            if self._stores:
                self._movement.note_saved(self._use.units[-1], self._end)

    def _is_taken(self, tensor):
        return (type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.device.type == "cpu"
                and tensor.layout == torch.strided and tensor.numel() * tensor.dtype.itemsize >= _LEAST_BYTES
                and not tensor.is_conj() and not tensor.is_neg() and _is_dense(tensor))

    def _pack(self, tensor):
        slot = self._movement.units.slot_of_storage(tensor)
        if slot is not None:
            return ParameterHandle(slot, tensor, self._movement.use_of(slot.unit, self._use), self._use.updates)
        if self._others is not None:
            return OthersTensor(self._others, tensor)
        if not self._is_open or not self._stores or not self._is_taken(tensor):
            return KeptTensor(tensor)
        key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor._version)
        if key not in self._taken:
            # The tensor is kept until close(), so that no other one gets its address.
            kept = tensor.detach() if tensor.grad_fn is not None else tensor
            self._taken[key] = (kept, self._store(kept))
        return self._taken[key][1]

    def _store(self, tensor):
        saved = SavedTensor(tensor, self._use)
        saved.offset = self._end
        self._end += -(-saved.count * saved.dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        self._movement.store(saved, tensor, (self._use.units[-1], self._use.micro_batch), self._end)
        return saved
