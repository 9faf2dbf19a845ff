"""Parameters that ranks share: DTensors, as fully_shard() of FSDP2 and tensor parallelism make them.

Each rank updates the elements that it has. No rule looks at more than one element, so a sharded tensor gets the same
bits as a whole one, in whatever way it is sharded. Only the norm needs the other ranks.
"""

import math
import os
import sys

import torch

from terrace import library as lib

_PLACEMENTS = ("Replicate", "Shard", "_StridedShard")


def is_shared(tensor):
    """Returns whether a tensor is a DTensor. If torch.distributed.tensor is not imported, there are none."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local_of(tensor):
    """Returns this rank's part of a tensor, in the tensor's own memory."""
    tensor = tensor.detach()
    return tensor.to_local() if is_shared(tensor) else tensor


def local_gradient(parameter, gradient):
    """Returns this rank's part of a gradient. It has the same elements as the rank's part of the parameter."""
    if not is_shared(parameter):
        return gradient
    if gradient.placements != parameter.placements:
        gradient = gradient.redistribute(parameter.device_mesh, parameter.placements)
    return local_of(gradient)


def shared_like(parameter, local):
    """Returns a tensor that is sharded as the parameter is, and has `local` as this rank's part."""
    if not is_shared(parameter):
        return local
    return type(parameter.data).from_local(local, parameter.device_mesh, parameter.placements, run_check=False,
                                           shape=parameter.shape, stride=parameter.stride())


def check_placements(parameter, name):
    # It is a flat parameter of FullyShardedDataParallel, or a view of one.
    if getattr(parameter, "_fsdp_flattened", False):
        raise lib.UnsupportedError(f"{name} is of FullyShardedDataParallel, whose flat parameters do not say which "
                                   "part of the norm is whose: use fully_shard() of torch.distributed.fsdp (fsdp_version 2 "
                                   "of Accelerate and transformers)")
    if is_shared(parameter) and parameter.device.type != "cpu":
        raise lib.UnsupportedError(f"{name} is a DTensor on {parameter.device}: ranks share parameters on the CPU only; "
                                   "keep it there, or train parameters that are whole on each rank")
    for placement in parameter.placements if is_shared(parameter) else ():
        if type(placement).__name__ not in _PLACEMENTS:
            raise lib.UnsupportedError(f"{name} is a DTensor placed as {placement}: use Shard or Replicate")


def _sharded_dimensions(parameter):
    if not is_shared(parameter):
        return ()
    return tuple(i for i, placement in enumerate(parameter.placements) if not placement.is_replicate())


def _add_over_ranks(mesh, dimension, values):
    """Returns the sum over the ranks of a dimension of the mesh, in the ranks' order: each gets the same bits."""
    group = mesh.get_group(dimension)
    parts = [torch.empty_like(values) for _ in range(torch.distributed.get_world_size(group))]
    torch.distributed.all_gather(parts, values, group=group)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def square_sums_of_all(parameters, sums):
    """Returns for each parameter the sum of squares of its whole gradient, in fp64. `sums` has the sums of squares of
    this rank's parts. All ranks call it with the same parameters. A parameter that is no DTensor is whole on each
    rank."""
    together = {}
    for i, parameter in enumerate(parameters):
        dimensions = _sharded_dimensions(parameter)
        if dimensions:
            together.setdefault((parameter.device_mesh, dimensions), []).append(i)
    sums = list(sums)
    for (mesh, dimensions), numbers in together.items():
        values = torch.tensor([sums[i] for i in numbers], dtype=torch.float64)
        for dimension in reversed(dimensions):
            values = _add_over_ranks(mesh, dimension, values)
        for i, value in zip(numbers, values.tolist()):
            sums[i] = value
    return sums


def coefficient_of(norm, max_grad_norm):
    """Returns the factor of clipping, as torch.nn.utils.clip_grad_norm_ computes it."""
    if max_grad_norm == 0:
        return 1.0
    coefficient = float(torch.clamp(max_grad_norm / (torch.tensor(norm, dtype=torch.float32) + 1e-6), max=1.0))
    if coefficient == 0 or math.isinf(float(torch.tensor(norm, dtype=torch.float32))):
        raise lib.NotFiniteError(f"a norm of {norm} is clipped to {max_grad_norm}, which fp32 cannot say: nothing was "
                                 "updated; look at what the gradients are")
    return coefficient


def folder_of_rank(directory):
    """Returns the folder where this rank's parts are saved."""
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    return os.path.join(os.fsdecode(directory), f"rank-{rank:05}-of-{ranks:05}")


def check_saved_by_as_many(directory):
    wanted = f"-of-{torch.distributed.get_world_size():05}"
    try:
        names = [name for name in os.listdir(directory) if name.startswith("rank-")]
    except OSError as error:
        raise lib.StorageError(f"{os.fsdecode(directory)} cannot be read: {error.strerror}") from error
    others = sorted({name.split("-of-")[-1] for name in names if not name.endswith(wanted)})
    if others and not any(name.endswith(wanted) for name in names):
        raise lib.StateMismatchError(f"{os.fsdecode(directory)} was saved by {int(others[0])} ranks, and these are "
                                     f"{torch.distributed.get_world_size()}: load it with as many, or keep state that "
                                     "changes ranks by torch.distributed.checkpoint")


def largest_of_all(number):
    """Returns the largest of the ranks' numbers."""
    value = torch.tensor(number, dtype=torch.int64)
    torch.distributed.all_reduce(value, torch.distributed.ReduceOp.MAX)
    return int(value)
