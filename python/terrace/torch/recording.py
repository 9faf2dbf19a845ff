"""A step while it is recorded: its tasks, and the gradients that it has given so far."""

import torch

from terrace.library import BACKWARD, FORWARD
from terrace.torch.values import ScratchFile, tensor_at


class GradientSums:
    """Sums of gradients in fp32, one for each slot, added in the order of the calls. They are in a file if a directory
    is given, else in memory."""

    def __init__(self, directory):
        self._file = ScratchFile(directory) if directory is not None else None
        self._sums = {}   # by slot, its tensor or its offset in the file

    def __contains__(self, slot):
        return slot in self._sums

    def add(self, slot, gradient):
        gradient = gradient.reshape(-1)
        if self._file is None:
            if slot in self._sums:
                self._sums[slot] += gradient
            else:
                self._sums[slot] = gradient.to(torch.float32, copy=True)
            return
        total = gradient.to(torch.float32).contiguous()
        if slot in self._sums:
            total = self.read(slot).add_(total)
        else:
            self._sums[slot] = self._file.reserve(4 * slot.count)
        self._file.write(self._sums[slot], total.data_ptr(), 4 * slot.count)

    def set_range(self, slot, first, count, address):
        """Sets one part of a sum; the sum is set part by part."""
        if slot not in self._sums:
            self._sums[slot] = torch.zeros(slot.count) if self._file is None else self._file.reserve(4 * slot.count)
        if self._file is None:
            self._sums[slot][first:first + count].copy_(tensor_at(address, count, torch.float32))
        else:
            self._file.write(self._sums[slot] + 4 * first, address, 4 * count)

    def read(self, slot):
        if self._file is None:
            return self._sums[slot]
        total = torch.empty(slot.count)
        self._file.read(self._sums[slot], total.data_ptr(), 4 * slot.count)
        return total


def without_backward(tasks):
    """Returns the micro-batches in which nothing went backward."""
    return {m for _, _, m in tasks} - {m for _, task_pass, m in tasks if task_pass == BACKWARD}


def completed(tasks, training):
    """Returns the tasks of a step that can be compiled. Micro-batches without a backward are left out. A forward that
    lacks a backward, of a unit with slots that train, gets one, which has no gradient. `training` are all slots that
    train: each of their units gets a task, also if its gradient came without one."""
    unused = without_backward(tasks)
    numbers = {m: number for number, m in enumerate(sorted({m for _, _, m in tasks} - unused))}
    tasks = [(unit, task_pass, numbers[m]) for unit, task_pass, m in tasks if m not in unused]
    units = list(dict.fromkeys(slot.unit for slot in training))
    waiting = {}
    for unit, task_pass, m in tasks:
        waiting[unit, m] = waiting.get((unit, m), 0) + (1 if task_pass == FORWARD else -1)
    for (unit, m), count in reversed(waiting.items()):
        if unit in units:
            tasks += [(unit, BACKWARD, m)] * count
    has = {unit for unit, _, _ in tasks}
    return tasks + [(unit, p, 0) for unit in units if unit not in has for p in (FORWARD, BACKWARD)]


class Recording:
    """The tasks of a step that runs on demand: (unit, pass, micro-batch), in order."""

    def __init__(self, directory, tasks=()):
        self.tasks = list(tasks)
        self.sums = GradientSums(directory)
        self.saved = None    # a ScratchFile with the tensors that forwards have saved

    def forget_gradients(self, directory):
        self.sums = GradientSums(directory)
