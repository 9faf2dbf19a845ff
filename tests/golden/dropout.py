"""Dropout as Terrace does it (kernels/kernel_table.h), for the layers of a PEFT model."""

import re

import numpy
import torch

KEY_STREAM = 0x64726F70
# The number of a layer in its unit, by the end of its module's name. A name has one of these ends.
LAYERS = {".q_proj": 0, ".qkv_proj": 0, ".c_attn": 0, ".k_proj": 1, ".v_proj": 2, ".o_proj": 3,
          ".attn.c_proj": 3, ".gate_proj": 4, ".gate_up_proj": 4, ".up_proj": 5, ".c_fc": 5,
          ".down_proj": 6, ".mlp.c_proj": 6}


def philox(seed, low, high, stream, step):
    """The four words of Philox4x32-10 (Salmon et al. 2011) for every counter; arrays of numbers below 2^32."""
    mask = numpy.uint64(0xFFFFFFFF)
    x = [part.astype(numpy.uint64) for part in numpy.broadcast_arrays(low, high, stream, step)]
    keys = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        first = x[0] * numpy.uint64(0xD2511F53)
        second = x[2] * numpy.uint64(0xCD9E8D57)
        shift = numpy.uint64(32)
        x = [(second >> shift) ^ x[1] ^ numpy.uint64(keys[0]), second & mask,
             (first >> shift) ^ x[3] ^ numpy.uint64(keys[1]), first & mask]
        keys = [(keys[0] + 0x9E3779B9) & 0xFFFFFFFF, (keys[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return x


def dropout_key(seed):
    words = philox(seed, numpy.array(0), numpy.array(0), numpy.array(KEY_STREAM), numpy.array(0))
    return int(words[0]) + (int(words[1]) << 32)


class SampleDropout(torch.nn.Module):
    """A torch.nn.Dropout whose n-th call drops what Terrace drops in the n-th micro-batch."""

    def __init__(self, probability, key, unit, layer):
        super().__init__()
        self.probability, self.key, self.stream = probability, key, 8 * unit + layer
        self.samples = 0

    def forward(self, x):
        samples, positions, width = x.shape
        of_calls = self.samples + numpy.arange(samples)
        self.samples += samples
        words = philox(self.key, numpy.arange((width + 3) // 4)[None, None, :],
                       numpy.arange(positions)[None, :, None], numpy.array(self.stream),
                       of_calls[:, None, None])
        bits = numpy.stack(words, axis=-1).reshape(samples, positions, -1)[..., :width]
        kept = torch.from_numpy(bits >= round(self.probability * 2**32))
        return torch.where(kept, x * numpy.float32(1 / (1 - self.probability)), 0.0)


def check_scale(probability):
    """torch.nn.Dropout and SampleDropout multiply the elements that they keep with the same number."""
    x = torch.randn(4, 16, 64, generator=torch.Generator().manual_seed(3))
    with torch.random.fork_rng():
        theirs = torch.nn.Dropout(probability)(x)
    ours = SampleDropout(probability, dropout_key(3), 1, 0)(x)
    both = (theirs != 0) & (ours != 0)
    if not both.any() or not torch.allclose(ours[both], theirs[both], rtol=2**-22, atol=0):
        raise AssertionError(f"dropout {probability} scales otherwise than torch.nn.Dropout")
    if not set((theirs == 0).unique().tolist()) == {False, True}:
        raise AssertionError("torch.nn.Dropout dropped nothing")


def layer_of(name):
    """The number of a module's layer in its unit."""
    (layer,) = [number for end, number in LAYERS.items() if name.endswith(end)]
    return layer


def drop_as_terrace(model, seed):
    """Puts SampleDropout in the place of every torch.nn.Dropout of the model's adapters."""
    for name, module in model.named_modules():
        for adapter, dropout in getattr(module, "lora_dropout", {}).items():
            if not isinstance(dropout, torch.nn.Dropout):
                continue
            unit = 1 + int(re.search(r"\.(?:layers|h)\.(\d+)\.", name)[1])
            module.lora_dropout[adapter] = SampleDropout(dropout.p, dropout_key(seed), unit,
                                                         layer_of(name))
