"""Names of parameters, which do not depend on what wraps the model."""

_WITHIN = ("_orig_mod.", "_checkpoint_wrapped_module.")   # torch.compile() and checkpoint_wrapper() put them anywhere


def _is_wrapper(model):
    """Returns whether a model has one module, called "module", and nothing else, like DistributedDataParallel."""
    return list(model._modules) == ["module"] and not any(p is not None for p in model._parameters.values())


def plain_name(name):
    """Returns a parameter's name without the parts that torch.compile() and the like put into it."""
    for part in _WITHIN:
        name = name.replace(part, "")
    return name


def names_of(model):
    """Returns the name of each parameter of a model, by the parameter's id. It is the name that the parameter has in
    the model without wrappers around it."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and _is_wrapper(model):
            inner = model.module
        if inner is None:
            return {id(parameter): plain_name(name) for name, parameter in model.named_parameters()}
        model = inner


def names_of_group(names):
    """Does the same for the names that a group was given. Removes "module." if all names begin with it."""
    names = [plain_name(name) for name in names]
    while names and all(name.startswith("module.") for name in names):
        names = [name.removeprefix("module.") for name in names]
    return names
