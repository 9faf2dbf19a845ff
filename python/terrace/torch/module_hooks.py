"""The hooks of an offloaded model's modules, by which its forwards load parameters."""

import sys
import weakref


def hook_modules(model, movement):
    """Calls a Movement before and after each forward of a module that has parameters, or has such modules in it."""
    units_of = {id(module): units for module, units in movement.units.modules}
    inner = {id(module): units for module, units in movement.units.inner if id(module) not in units_of}
    own = weakref.ref(movement)
    for module in model.modules():
        units = units_of.get(id(module)) or inner.get(id(module))
        if units is None and not any(id(other) in units_of for other in module.modules()):
            continue

        def before(module, args, kwargs, units=units, is_inner=id(module) in inner):
            if own() is not None:
                own().before(module, units or (), is_inner, (args, kwargs))

        def after(module, args, output):
            if own() is not None:
                own().after(module, output)
            if output is None:
                _explain(sys.exc_info()[1])

        module.register_forward_pre_hook(before, prepend=True, with_kwargs=True)
        module.register_forward_hook(after, always_call=True)


def _explain(error):
    """Makes torch's error for a tensor without memory say what to do."""
    if isinstance(error, RuntimeError) and "storage of size 0" in str(error):
        error.args = ("a parameter of the offloaded model was read outside of the forward of its module, where it has "
                      "no memory: call its module, or read it within terrace.torch.materialize(model). Torch says: "
                      f"{error}",)
