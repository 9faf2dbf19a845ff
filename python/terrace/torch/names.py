"""Names of parameters, which are the same whatever wraps the model."""

_WITHIN = ("_orig_mod.", "_checkpoint_wrapped_module.")   # torch.compile() and checkpoint_wrapper() put them anywhere


def _is_wrapper(model):
    """Whether it has one module, called "module", and nothing else: DistributedDataParallel, for instance."""
    return list(model._modules) == ["module"] and not any(p is not None for p in model._parameters.values())


def plain_name(name):
    """A parameter's name without what torch.compile() and the like put into it."""
    for part in _WITHIN:
        name = name.replace(part, "")
    return name


def names_of(model):
    """The name of each parameter of a model, by its id, as it is in the model without wrappers around it."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and _is_wrapper(model):
            inner = model.module
        if inner is None:
            return {id(parameter): plain_name(name) for name, parameter in model.named_parameters()}
        model = inner


def names_of_group(names):
    """The same of names that a group was given; "module." goes where all begin with it."""
    names = [plain_name(name) for name in names]
    while names and all(name.startswith("module.") for name in names):
        names = [name.removeprefix("module.") for name in names]
    return names
