"""Gradients of PyTorch's parameters: which optimizer takes them, and how the library sees a tensor."""

import gc
import warnings
import weakref

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from terrace import library as lib
from terrace.session import buffer_of

_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}

# By parameter, the hook that takes its gradients, and the optimizer that gets them.
_takers = WeakTensorKeyDictionary()

# By parameter, the last optimizer that was made for it. The optimizer's session knows where the parameter is.
_owners = WeakTensorKeyDictionary()


def note_owner(parameters, optimizer):
    for parameter in parameters:
        _owners[parameter] = weakref.ref(optimizer)


def have_owner(parameters):
    """Returns whether an optimizer of this package still exists that has one of these parameters in the trainer's
    memory."""
    def found():
        return any(parameter in _owners and _owners[parameter]() is not None for parameter in parameters)

    if found():
        gc.collect()  # a schedule, for instance, keeps an optimizer alive that nothing else uses
        return found()
    return False


def _end_takers(parameters, optimizer=None):
    """Stops taking these parameters' gradients. Warns if another optimizer, which still exists, was getting them."""
    takes_from_another = False
    for parameter in parameters:
        if parameter in _takers:
            hook, other = _takers.pop(parameter)
            takes_from_another = takes_from_another or other() not in (None, optimizer)
            hook.remove()
    if takes_from_another:
        warnings.warn("another optimizer of terrace.torch has these parameters too: gradients go to the one that was "
                      "made last, and the other trains nothing of them", stacklevel=5)


def leave_gradients_of(parameters):
    """Leaves the gradients of these parameters in .grad."""
    _end_takers(parameters)


def watch_gradients_of(parameters, optimizer):
    """Calls the optimizer whenever the backward has a gradient of one of these parameters. Returns the hooks."""
    known = weakref.ref(optimizer)

    def take(parameter):
        if known() is not None:
            known()._take(parameter)

    return [parameter.register_post_accumulate_grad_hook(take) for parameter in parameters]


def give_gradients_to(parameters, optimizer):
    """Does the same for an optimizer that takes the gradients. Another optimizer no longer gets them."""
    _end_takers(parameters, optimizer)
    for parameter, hook in zip(parameters, watch_gradients_of(parameters, optimizer), strict=True):
        _takers[parameter] = hook, weakref.ref(optimizer)


def _stream_of(tensor):
    """Returns the stream that orders the calling thread's work on the tensor, or None on the CPU."""
    return torch.cuda.current_stream(tensor.device).cuda_stream if tensor.device.type == "cuda" else None


def tensor_buffer(tensor, name_of):
    """Returns the lib.Buffer that tells the library of a tensor. `name_of` is called for the text of an error."""
    if tensor.dtype not in _DTYPES:
        raise lib.DTypeError(f"{name_of()} is {tensor.dtype}; parameters and gradients are float32, bfloat16 or "
                             "float16")
    return buffer_of(tensor.data_ptr(), tensor.numel(), _DTYPES[tensor.dtype], tensor.device.type,
                     tensor.device.index or 0, _stream_of(tensor))


def has_several_ranks():
    """Returns whether torch.distributed runs more processes than this one."""
    return (torch.distributed.is_available() and torch.distributed.is_initialized()
            and torch.distributed.get_world_size() > 1)
