"""Loads models of transformers from their safetensors files straight into the tiers, never whole in memory."""

import os

import torch
from torch.overrides import TorchFunctionMode

from terrace import library as lib
from terrace.torch.hub_cache import hub_snapshot
from terrace.torch.offload import offload_with, options_of
from terrace.torch.model_files import read_safetensors


class parameters_on_meta(TorchFunctionMode):  # noqa: N801, a context like torch.no_grad
    """A context in which modules get parameters on the meta device, without memory, for offload(initialize=...).
    Modules make their matrices by torch.empty(), and the context changes nothing else: tensors that are computed, such
    as tables of rotary embeddings and masks, are made as ever."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is torch.empty and kwargs.get("device") is None and kwargs.get("out") is None:
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


def load_pretrained(directory, *, dtype=None, model_class=None, **options):
    """Loads a model that save_pretrained() wrote, and offloads it. The files are read unit by unit where a forward
    uses them, until the first step has moved all parameters to where `options`, the arguments of offload(), say.

    directory      has config.json and safetensors, or is a directory models--A--B of the hub's cache
    dtype          type of the parameters: torch.float32 or torch.bfloat16; None: the configuration's type
    model_class    a class of transformers; None: AutoModelForCausalLM"""
    import transformers

    if "initialize" in options:
        raise lib.ArgumentError("initialize= is of offload(): load_pretrained() takes values from files")
    options = options_of(**options)
    directory = hub_snapshot(directory)
    config = transformers.AutoConfig.from_pretrained(directory)
    if getattr(config, "quantization_config", None) is not None:
        raise lib.UnsupportedError(f"{directory} has weights in the codes of quantization_config in its config.json: "
                                   "load the model that was quantized, or save it in bfloat16 by dequantize() and "
                                   "save_pretrained()")
    dtype = dtype or getattr(config, "dtype", None) or torch.float32
    with parameters_on_meta():
        chosen = model_class or transformers.AutoModelForCausalLM
        make = chosen.from_config if hasattr(chosen, "from_config") else chosen._from_config
        model = make(config, dtype=dtype)
    model.tie_weights()
    if os.path.exists(os.path.join(directory, "generation_config.json")):
        model.generation_config = transformers.GenerationConfig.from_pretrained(directory)
    files = _Files(directory, getattr(model, "base_model_prefix", ""))
    files.fill_buffers(model)
    return offload_with(model.eval(), options, None, files.values_of(model))


class _Files:
    def __init__(self, directory, prefix):
        self._directory = directory
        self._tensors = read_safetensors(directory)
        self._prefix = prefix + "."

    def _find(self, name):
        """Returns a tensor by its name, or by the name that it has in a model with or without a head; or None."""
        for other in (name, self._prefix + name, name.removeprefix(self._prefix)):
            if other in self._tensors:
                return self._tensors[other]
        return None

    def values_of(self, model):
        """Returns the values of each parameter, under its name and the names of the parameters that are tied to it."""
        names = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), (parameter, []))[1].append(name)
        values = {}
        for parameter, alike in names.values():
            values.update(dict.fromkeys(alike, self._values_of(parameter, alike)))
        return values

    def _values_of(self, parameter, alike):
        """Returns the values of a parameter that has these names."""
        found = {name: tensor for name, tensor in ((name, self._find(name)) for name in alike) if tensor is not None}
        if not found:
            raise lib.ArgumentError(f"{self._directory} has no tensor {alike[0]}: it is of another kind of "
                                    "model, or transformers renames its tensors; load it by from_pretrained() and "
                                    "offload()")
        name, tensor = next(iter(found.items()))
        if tensor.shape != tuple(parameter.shape):
            raise lib.ArgumentError(f"{name} in {self._directory} is of shape {tensor.shape}, not "
                                    f"{tuple(parameter.shape)}")
        if not tensor.dtype.is_floating_point:
            raise lib.DTypeError(f"{name} in {self._directory} is {tensor.dtype}: weights are of a floating type; save "
                                 "the model in bfloat16 or float32")
        for other_name, other in found.items():
            if other is not tensor and not tensor.equals(other):
                raise lib.ArgumentError(f"config.json of {self._directory} ties {name} and {other_name}, and stores "
                                        "others for each, which from_pretrained() keeps apart: set "
                                        "tie_word_embeddings to false in config.json, or remove the one that is not "
                                        "meant")
        return tensor.values

    def fill_buffers(self, model):
        for name, buffer in model.named_buffers():
            found = self._find(name)
            if found is None or buffer.device.type == "meta":
                continue
            if found.shape == tuple(buffer.shape) and buffer.numel():
                values = torch.empty(found.shape, dtype=found.dtype)
                found.values.read(0, values.numel(), values.data_ptr(), found.dtype)
                buffer.copy_(values)
