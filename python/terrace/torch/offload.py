"""Unmodified models of PyTorch whose parameters, gradients and optimizer state Terrace moves: see offload()."""

import os

import torch

from terrace import library as lib
from terrace.session import bytes_of, directories_of
from terrace.torch.gradients import have_owner
from terrace.torch.model_units import ModelUnits
from terrace.torch.movement import Movement, remember
from terrace.torch.offload_guards import StateDicts
from terrace.torch.values import FileValues, MemoryValues, ScratchFile, return_free_memory
from terrace.torch.wording import reworded_of_offload

_ATTRIBUTE = "_terrace_movement"
_GIVEN_BYTES = 64 << 20  # after moving this much, free memory goes back to the system


class OffloadOptions:
    """The places where each kind of data lives, as offload() was told."""

    def __init__(self, nvme, host_memory, tiers, activations, threads):
        self.directories = directories_of(nvme)
        for directory in self.directories:
            if not os.path.isdir(directory):
                raise lib.ArgumentError(f"nvme: {os.fsdecode(directory)} is not a directory")
        self.tiers = {**tiers, "saved": activations or "auto"}
        for name, tier in {**tiers, "activations": activations or "auto"}.items():
            if tier not in lib.TIERS:
                raise lib.ArgumentError(f"{name}={tier!r}: give one of {', '.join(lib.TIERS)}")
            if tier == "nvme" and not self.directories:
                raise lib.ArgumentError(f"{name}='nvme' needs nvme=, a directory on a drive")
        if self.directories and all(tier == "host" for tier in self.tiers.values()):
            raise lib.ArgumentError("everything is to live on the host, and nvme= names a directory: leave it out")
        bytes_of(host_memory)  # raises at once if it is no size
        self.host_memory = host_memory
        self.threads = threads
        self.activations = activations

    @property
    def scratch_directory(self):
        return self.directories[0] if self.directories else None

    @property
    def gradient_directory(self):
        return None if self.tiers["gradients"] == "host" else self.scratch_directory

    @property
    def activation_directory(self):
        return None if self.activations == "host" else self.scratch_directory

    def for_units(self, dtype_name):
        return {"tiers": self.tiers, "compute_dtype": dtype_name, "host_memory": self.host_memory,
                "nvme": self.directories, "threads": self.threads, "wording": reworded_of_offload}


def movement_of(model):
    """Returns the Movement of a model. Raises ArgumentError if the model is not offloaded."""
    movement = model.__dict__.get(_ATTRIBUTE)
    if movement is None:
        raise lib.ArgumentError("the model is not offloaded: give what terrace.torch.offload() or load_pretrained() "
                                "returned")
    return movement


def offload(model, *, nvme=(), host_memory=None, parameters="auto", gradients="auto", optimizer="auto",
            activations=None, threads=0, initialize=None):
    """Gives a model's parameters to Terrace, and returns the model. The model's forward and backward load parameters
    when they use them. A terrace.torch optimizer over model.parameters() trains the model.

    nvme            a directory on a drive, or several
    host_memory     the host memory that Terrace may use, as "8GiB"; None: what is free. In addition, torch's memory
                    has the parameters and gradients of the unit that is computed, and what autograd saves
    parameters, gradients, optimizer    where these live: "host", "nvme", or "auto" (host memory first)
    activations     where the tensors live that forwards save for their backward; None: with torch. What gradient
                    checkpointing saves, and tensors that no unit's forward saves, stay with torch
    threads         threads of an update; 0: as many as the process may use
    initialize      initialize(name, tensor) writes the first values of a parameter, one parameter at a time. It is
                    for a model on the meta device, whose parameters then are new objects

    Parameters are float32 or bfloat16, all of one type, dense, each in memory of its own or tied as a whole. Outside
    of the forward and backward of its module a parameter has no memory. If it is read there, as by p.square().sum(),
    torch ends the process (SIGSEGV) or raises that a storage is of size 0. Read it within materialize(model)."""
    if _ATTRIBUTE in model.__dict__:
        raise lib.OrderError("the model is offloaded already")
    options = options_of(nvme=nvme, host_memory=host_memory, parameters=parameters, gradients=gradients,
                         optimizer=optimizer, activations=activations, threads=threads)
    return offload_with(model, options, initialize, {})


def options_of(*, nvme=(), host_memory=None, parameters="auto", gradients="auto", optimizer="auto", activations=None,
               threads=0):
    """Returns the OffloadOptions for the arguments of offload()."""
    tiers = {"parameters": parameters, "gradients": gradients, "optimizer": optimizer}
    return OffloadOptions(nvme, host_memory, tiers, activations, threads)


def offload_with(model, options, initialize, values):
    """Offloads a model. Its parameters get their values from `values`, by name, or else as offload() says."""
    if have_owner(list(model.parameters())):
        raise lib.OrderError("an optimizer of terrace.torch has parameters of the model: make the optimizer after "
                             "terrace.torch.offload(), and delete the one that was made before")
    units = ModelUnits(model)
    lacking = [slot.name for slot in units.slots
               if slot.parameters[0].device.type == "meta" and initialize is None and slot.name not in values]
    if lacking:
        raise lib.ArgumentError(f"{lacking[0]} is on the meta device and has no values, nor have {len(lacking) - 1} "
                                "more: give initialize=, or use load_pretrained()")
    for name, buffer in model.named_buffers():
        if buffer.device.type == "meta":
            raise lib.ArgumentError(f"the buffer {name} is on the meta device: make it on the CPU before offload()")
    _Values(options).give(units, model, initialize, values)
    movement = model.__dict__[_ATTRIBUTE] = Movement(model, units, options)
    remember(units, movement)
    movement.state_dicts = StateDicts(model, movement)
    return model


def materialize(model, names=None):
    """Returns a context in which all parameters of an offloaded model, or the named ones, have their values, for
    reading."""
    movement = movement_of(model)
    if names is None:
        return movement.keep_resident(movement.units.slots)
    slots = {name: slot for slot in movement.units.slots for name in slot.names}
    unknown = [name for name in names if name not in slots]
    if unknown:
        raise lib.ArgumentError(f"the model has no parameter {unknown[0]}: give names of named_parameters()")
    return movement.keep_resident([slots[name] for name in names])


class _Values:
    """Moves the first values of all parameters to where they wait for the first step."""

    def __init__(self, options):
        on_host = options.tiers["parameters"] == "host" or options.scratch_directory is None
        self._file = None if on_host else ScratchFile(options.scratch_directory)

    def give(self, units, model, initialize, values):
        given = 0
        for slot in units.slots:
            if slot.name in values:
                slot.values = values[slot.name]
            elif initialize is not None:
                tensor = torch.empty(slot.shape, dtype=slot.dtype)
                with torch.no_grad():
                    initialize(slot.name, tensor)
                slot.values = self._keep(tensor)
            else:
                slot.values = self._keep(slot.parameters[0].detach())
            self._empty(slot, model)
            given += slot.size
            if given >= _GIVEN_BYTES:
                given = 0
                return_free_memory()

    def _keep(self, tensor):
        if self._file is None:
            return MemoryValues(tensor.clone())
        size = tensor.numel() * tensor.dtype.itemsize
        offset = self._file.reserve(size)
        self._file.write(offset, tensor.data_ptr(), size)
        return FileValues(self._file, offset, tensor.dtype)

    @staticmethod
    def _empty(slot, model):
        """Takes the memory away. A parameter on the meta device is replaced by one on the CPU, in all modules that
        have it."""
        if slot.parameters[0].device.type == "meta":
            old = slot.parameters[0]
            new = torch.nn.Parameter(torch.empty(slot.shape, dtype=slot.dtype), requires_grad=old.requires_grad)
            for module in model.modules():
                for name, parameter in module._parameters.items():
                    if parameter is old:
                        module._parameters[name] = new
            slot.parameters = [new]
        slot.move_to_own_memory()
        slot.bind()
        slot.evict()


