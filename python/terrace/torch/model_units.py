"""A model's parameters as slots, one for each storage, and its units: modules whose parameters are loaded and evicted
together."""

import ctypes

import torch

from terrace import library as lib

_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


class Slot:
    """The storage of a parameter, or of several parameters that are tied. While it is evicted, the storage has no
    memory, and its parameters keep their identity, shape and device."""

    def __init__(self, unit, name, parameter):
        self.unit = unit
        self.names = [name]
        self.parameters = [parameter]
        self.shape = tuple(parameter.shape)
        self.count = parameter.numel()
        self.dtype = parameter.dtype
        self.size = self.count * self.dtype.itemsize
        self.values = None        # source of its values while no compiled step has them
        self.storage = None
        self._versions = ()
        self.is_hooked = False

    @property
    def name(self):
        return self.names[0]

    @property
    def trains(self):
        return any(parameter.requires_grad for parameter in self.parameters)

    @property
    def address(self):
        return self.storage.data_ptr()

    @property
    def is_resident(self):
        return self.storage.nbytes() != 0

    def allocate(self):
        if not self.is_resident:
            self.storage.resize_(self.size)
            self._versions = [parameter._version for parameter in self.parameters]

    def fill_from(self, address):
        # Does not use a tensor's copy_(), after which autograd would consider the parameter changed.
        ctypes.memmove(self.address, address, self.size)

    def move_to_own_memory(self):
        """Gives the parameters memory that torch can take away, if theirs is a mapping or another library's. The new
        memory has no values."""
        if self.parameters[0].untyped_storage().resizable():
            return
        own = torch.empty(self.shape, dtype=self.dtype)
        for parameter in self.parameters:
            parameter.data = own

    def bind(self):
        """Takes over the parameters' storages as they are now."""
        self.storage = self.parameters[0].untyped_storage()
        self._versions = [parameter._version for parameter in self.parameters]

    def evict(self):
        if not self.is_resident:
            return
        written = [parameter._version for parameter in self.parameters] != self._versions
        self.storage.resize_(0)
        if written:
            raise lib.ParameterChangedError(
                f"{self.name} was written while it was in memory, and what was written is lost: only the optimizer "
                "changes parameters of an offloaded model; change them before terrace.torch.offload()")


class ModelUnit:
    """Modules whose parameters are used together."""

    def __init__(self, name):
        self.name = name
        self.slots = []
        self.users = 0               # number of forwards that are in it now
        self.backward_uses = set()   # uses whose backward has begun and needs the parameters
        self.fired = set()           # ids of parameters whose gradients came in that backward

    @property
    def is_resident(self):
        return all(slot.is_resident for slot in self.slots)

    @property
    def is_idle(self):
        return self.users == 0 and not self.backward_uses

    @property
    def has_fired(self):
        """Returns whether all gradients of that backward are there."""
        return all(id(parameter) in self.fired for slot in self.slots for parameter in slot.parameters)

    def evict(self):
        for slot in self.slots:
            slot.evict()


def _has_forward(module):
    """Returns whether a module can be called: a ModuleList and the like cannot."""
    return type(module).forward is not torch.nn.Module.forward or "forward" in module.__dict__


def _own_parameters(module, prefix=""):
    """Yields the (name, parameter) pairs that a module's own forward uses: the module's own parameters, and the
    parameters of modules in it that have no forward, such as a ParameterList."""
    yield from module.named_parameters(prefix=prefix, recurse=False, remove_duplicate=False)
    for name, child in module.named_children():
        if not _has_forward(child):
            yield from _own_parameters(child, f"{prefix}.{name}" if prefix else name)


def _has_blocks(module):
    """Returns whether a module has others in it that run one after another."""
    lists = (torch.nn.ModuleList, torch.nn.Sequential)
    return any(isinstance(inner, lists) and len(inner) > 1 for inner in module.modules())


def _unit_modules(model):
    """Returns (name, module, is_whole) for each module that is a unit. A unit that is whole has all parameters within
    the module."""
    found = []

    def visit(path, module, is_block):
        owns = any(True for _ in _own_parameters(module))
        if not _has_forward(module):
            walk(f"{path}.", module)
        elif is_block or _is_torchs_own(module) or (owns and not _has_blocks(module)):
            found.append((path, module, True))
        else:
            if owns:
                found.append((path, module, False))
            walk(f"{path}.", module)

    def walk(prefix, module):
        are_blocks = isinstance(module, torch.nn.ModuleList) and len(module) > 1
        for name, child in module.named_children():
            visit(f"{prefix}{name}", child, are_blocks)

    if _has_forward(model) and any(True for _ in _own_parameters(model)):
        found.append(("(model)", model, False))
    walk("", model)
    return found


def _is_torchs_own(module):
    """Returns whether this is a module of torch which may read the parameters of modules in it without calling them."""
    plain = (torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict)
    return type(module).__module__.startswith("torch.nn.modules") and not isinstance(module, plain)


class ModelUnits:
    """The units and slots of a model. `modules` has each module that is a unit, and the units that it uses."""

    def __init__(self, model):
        self.units = []
        self.slots = []
        self.modules = []        # (module that is a unit, units that it uses)
        self.inner = []          # the same for modules within units that have parameters themselves
        self._slot_of = {}       # by the key of a storage
        self._by_storage = {}    # by the number of a storage, once the storages are final
        for name, module, is_whole in _unit_modules(model):
            self._add(name, module, is_whole)
        owned = {id(p) for slot in self.slots for p in slot.parameters}
        lost = [n for n, p in model.named_parameters() if id(p) not in owned]
        if lost:
            raise lib.UnsupportedError(f"{lost[0]} is in no module whose forward could bring it")
        self._check_types()

    def _add(self, prefix, module, is_whole):
        unit = ModelUnit(prefix)
        used = {}
        parameters = module.named_parameters(remove_duplicate=False) if is_whole else _own_parameters(module)
        for name, parameter in parameters:
            path = name if prefix == "(model)" else f"{prefix}.{name}"
            slot = self._slot(unit, path, parameter)
            used[id(slot.unit)] = slot.unit
        if unit.slots:
            self.units.append(unit)
        if used:
            # The module's own unit comes last: that one is held in its backward, for its gradient.
            self.modules.append((module, sorted(used.values(), key=lambda other: other is unit)))
        for inner in module.modules() if is_whole else ():
            own = {id(p): self._slot(unit, prefix, p).unit for p in inner.parameters(recurse=False)}
            if inner is not module and own:
                self.inner.append((inner, list(dict.fromkeys(own.values()))))

    def _slot(self, unit, name, parameter):
        on_meta = parameter.device.type == "meta"
        key = id(parameter) if on_meta or parameter.numel() == 0 else parameter.untyped_storage().data_ptr()
        slot = self._slot_of.get(key)
        if slot is None:
            self._check(name, parameter)
            slot = self._slot_of[key] = Slot(unit, name, parameter)
            unit.slots.append(slot)
            self.slots.append(slot)
        else:
            if parameter.shape != slot.shape or (not on_meta and not parameter.is_contiguous()):
                raise lib.UnsupportedError(f"{name} is another view of the memory of {slot.name}: give each "
                                           "memory of its own")
            if name not in slot.names:
                slot.names.append(name)
            if all(parameter is not other for other in slot.parameters):
                slot.parameters.append(parameter)
        return slot

    @staticmethod
    def _check(name, parameter):
        if parameter.device.type not in ("cpu", "meta"):
            raise lib.UnsupportedError(f"{name} is on {parameter.device}: offload() takes models on the CPU or on the "
                                       "meta device")
        if parameter.dtype not in _DTYPES:
            raise lib.DTypeError(f"{name} is {parameter.dtype}: parameters of an offloaded model are float32 or "
                                 "bfloat16")
        if parameter.numel() == 0:
            raise lib.UnsupportedError(f"{name} has no elements: remove it")
        if parameter.device.type == "cpu":
            size = parameter.numel() * parameter.dtype.itemsize
            if not parameter.is_contiguous() or parameter.untyped_storage().nbytes() != size:
                raise lib.UnsupportedError(f"{name} is a part of a larger tensor, or not contiguous: use its "
                                           ".detach().clone() as the parameter")

    def _check_types(self):
        if not self.slots:
            raise lib.ArgumentError("the model has no parameters: there is nothing to offload")
        first = self.slots[0]
        for slot in self.slots:
            if slot.dtype != first.dtype:
                raise lib.UnsupportedError(f"{slot.name} is {slot.dtype} and {first.name} is {first.dtype}: all "
                                           "parameters of an offloaded model are of one type")

    def bind(self):
        """Notes the storages of the slots. Must be called when the parameters and their storages are final."""
        self._by_storage = {slot.storage._cdata: slot for slot in self.slots}

    def slot_of_storage(self, tensor):
        """Returns the slot whose memory a tensor is in, or None if it is in no slot of the model."""
        if tensor.layout != torch.strided or tensor.device.type != "cpu":
            return None
        return self._by_storage.get(tensor.untyped_storage()._cdata)

    @property
    def dtype(self):
        return self.slots[0].dtype

    @property
    def dtype_name(self):
        return _DTYPES[self.dtype]
