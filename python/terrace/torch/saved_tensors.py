"""What a forward saves for its backward, kept by Terrace."""

import torch

from terrace.torch.values import tensor_at

_ALIGNMENT = 64
_LEAST_BYTES = 4096  # what is smaller stays with torch


def _is_dense(tensor):
    """Whether the elements fill their memory, in whatever order."""
    return tensor.numel() == 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))


class SavedTensor:
    """A tensor that autograd has saved, stored in a task's memory or in a file, or kept as it is."""

    def __init__(self, tensor):
        self.shape, self.stride, self.dtype = tuple(tensor.shape), tensor.stride(), tensor.dtype
        self.count = tensor.numel()
        self.offset = 0
        self.tensor = None     # kept as it is
        self.file = None       # where it is stored from offset on; None: in the memory of `task`
        self.task = None       # (unit, micro-batch)

    def at(self, address):
        """The tensor that is stored in a task's memory."""
        return torch.as_strided(tensor_at(address + self.offset, self.count, self.dtype), self.shape, self.stride)

    def from_file(self):
        tensor = torch.empty_strided(self.shape, self.stride, dtype=self.dtype)
        self.file.read(self.offset, tensor.data_ptr(), self.count * self.dtype.itemsize)
        return tensor


class SavedTensors:
    """Takes what a use of a unit saves, from its making to close()."""

    def __init__(self, movement, use):
        self._movement = movement
        self._use = use
        self._end = 0
        self._taken = {}   # (tensor, SavedTensor) by what it is, so that one that is saved twice is stored once
        self._parameters = {slot.address for slot in movement.units.slots if slot.is_resident}
        self._is_open = True
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, movement.unpack)
        self._hooks.__enter__()

    @staticmethod
    def are_others():
        """Whether somebody else takes saved tensors now, such as gradient checkpointing."""
        return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None

    def close(self):
        if self._is_open:
            self._is_open = False
            self._hooks.__exit__(None, None, None)
            self._taken.clear()
            self._movement.note_saved(self._use.units[-1], self._end)

    def _is_taken(self, tensor):
        return (type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.device.type == "cpu"
                and tensor.layout == torch.strided and tensor.numel() * tensor.dtype.itemsize >= _LEAST_BYTES
                and not tensor.is_conj() and not tensor.is_neg() and _is_dense(tensor)
                and tensor.untyped_storage().data_ptr() not in self._parameters)

    def _pack(self, tensor):
        kept = tensor.detach() if tensor.grad_fn is not None else tensor
        if not self._is_open or not self._is_taken(tensor):
            return kept
        key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor._version)
        if key not in self._taken:
            # The tensor is kept until close(), so that no other one gets its address.
            self._taken[key] = (kept, self._store(kept))
        return self._taken[key][1]

    def _store(self, tensor):
        saved = SavedTensor(tensor)
        saved.offset = self._end
        self._end += -(-saved.count * saved.dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        self._movement.store(saved, tensor, (self._use.units[-1], self._use.micro_batch), self._end)
        return saved
