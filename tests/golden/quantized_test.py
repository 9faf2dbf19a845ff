#!/usr/bin/env python3
"""Trains adapters over quantised bases: quantized_test.py TERRACE GOLDEN_LOGITS

For every golden adapter, and for nf4 and int8, the program goes on from it for twenty steps over a
quantised base, in fp32. PEFT does the same over a model whose matrices are the numbers that the
codes stand for, which are computed here, in double precision, from the papers. Losses and the
trained matrices are held to the bounds of final_test.py: eight times what moving weights and
gradients by one unit in the last place changes. Over the base as it is, the first loss must be far
away. The steps are small and epsilon is large, so that roundings do not grow as fast as they might.
"""

import json
import re
import sys
import tempfile
from pathlib import Path

import numpy
import peft
import torch
import transformers
from safetensors.torch import load_file

import reference
from adapters_test import ADAPTERS, make_base, run, stored_name
from checks import ROUNDINGS, moved
from dropout import drop_as_terrace
from final_test import SAMPLES, expect_near, spread_of, text_of

STEPS = 20
SEED = 1234
MAX_GRAD_NORM = 0.5
BLOCK = 64
GROUP = 256
MATRIX = re.compile(r".*\.(c_attn|c_proj|c_fc|\w+_proj)\.weight")


def take_small_steps():
    reference.LEARNING_RATE, reference.EPSILON = 5e-4, 1e-4


def normal_levels():
    """NormalFloat of 4 bits (Dettmers et al. 2023): quantiles of a normal distribution."""
    quantile = torch.distributions.Normal(0.0, 1.0).icdf
    outermost = (1 - 1 / 32 + 1 - 1 / 30) / 2
    upper = quantile(torch.linspace(outermost, 0.5, 9, dtype=torch.float64)[:-1])
    lower = -quantile(torch.linspace(outermost, 0.5, 8, dtype=torch.float64)[:-1])
    levels = torch.cat([upper, torch.zeros(1, dtype=torch.float64), lower])
    return (levels / levels.max()).sort().values


def dynamic_levels():
    """The 8-bit numbers of dynamic tree quantisation (Dettmers et al. 2021)."""
    levels = [torch.tensor([0.0, 1.0], dtype=torch.float64)]
    for bits in range(7):
        bounds = torch.linspace(0.1, 1.0, 2**bits + 1, dtype=torch.float64)
        middles = (bounds[1:] + bounds[:-1]) / 2 * 10.0 ** (bits - 6)
        levels += [middles, -middles]
    return torch.cat(levels).sort().values


def nearest(levels, numbers):
    return levels[(numbers[..., None] - levels).abs().argmin(-1)]


def doubly_quantized(scales):
    mean = scales.mean()
    parts = []
    for group in (scales - mean).split(GROUP):
        factor = group.abs().max().clamp_min(1e-300)
        parts.append(nearest(dynamic_levels(), group / factor) * factor)
    return torch.cat(parts) + mean


def restored(matrix, form):
    """The numbers of the codes of a matrix [out, in], whose rows lie one behind the other."""
    flat = matrix.double().flatten()
    blocks = torch.nn.functional.pad(flat, (0, -len(flat) % BLOCK)).reshape(-1, BLOCK)
    scales = blocks.abs().max(dim=1).values
    divisors = scales.clamp_min(1e-300)[:, None]
    if form == "nf4":
        numbers = nearest(normal_levels(), blocks / divisors) * doubly_quantized(scales)[:, None]
    else:
        numbers = (blocks * 127 / divisors).round() / 127 * scales[:, None]
    return numbers.flatten()[: len(flat)].reshape(matrix.shape).float()


def row_parts(name, config):
    """The rows of the matrices that a stored tensor has: each is quantised by itself."""
    if "qkv_proj" in name:
        head = config["hidden_size"] // config["num_attention_heads"]
        return [head * config["num_attention_heads"]] + 2 * [head * config["num_key_value_heads"]]
    if "gate_up_proj" in name:
        return 2 * [config["intermediate_size"]]
    return None


def quantized_weights(weights, config, form):
    result = {}
    for name, value in weights.items():
        if not MATRIX.fullmatch(name):
            result[name] = value
        elif config["model_type"] == "gpt2":  # which stores [in, out]
            result[name] = restored(value.T, form).T.contiguous()
        else:
            parts = row_parts(name, config)
            pieces = value.split(parts) if parts else [value]
            result[name] = torch.cat([restored(piece, form) for piece in pieces])
    return result


def repeated(text):
    shape = (1, reference.MICRO_BATCHES, reference.SEQUENCES, reference.POSITIONS)
    tokens = text[:-1].reshape(shape).repeat(STEPS, 1, 1, 1)
    return reference.Batches(tokens, text[1:].reshape(shape).repeat(STEPS, 1, 1, 1), None)


def trained_of(model):
    return [(n, p) for n, p in model.named_parameters() if p.requires_grad]


def trained_by_peft(adapter, config, weights, batches, random=None):
    """Losses and the adapter's numbers; with `random` all is moved by a rounding."""
    if random is not None:
        weights = {name: moved(value, random) for name, value in weights.items()}
    base = reference.with_weights(config, weights)
    model = peft.PeftModel.from_pretrained(base, adapter, is_trainable=True)
    drop_as_terrace(model, SEED)

    def move(moving):
        for _, parameter in trained_of(moving):
            parameter.grad.copy_(moved(parameter.grad, random))

    change = None if random is None else move
    losses = reference.train(model, batches, MAX_GRAD_NORM, change).losses
    values = {stored_name(name): value.detach() for name, value in
              model.named_parameters(remove_duplicate=False) if value.requires_grad}
    return torch.tensor(losses), torch.cat([values[name].flatten() for name in sorted(values)])


def trained_by_program(terrace, base, text, directory, more):
    data = directory.with_suffix(".u16")
    text.numpy().astype(numpy.uint16).tofile(data)
    flags = {
        **more, "model": base, "data": data, "data-format": "raw-u16", "validation-fraction": 0,
        "sequence-length": reference.POSITIONS, "micro-batch-size": reference.SEQUENCES,
        "gradient-accumulation-steps": reference.MICRO_BATCHES, "max-steps": STEPS,
        "learning-rate": reference.LEARNING_RATE, "lr-scheduler-type": "constant",
        "weight-decay": reference.WEIGHT_DECAY, "adam-beta1": reference.BETAS[0],
        "adam-beta2": reference.BETAS[1], "adam-epsilon": reference.EPSILON,
        "max-grad-norm": MAX_GRAD_NORM, "precision": "fp32", "device": "cpu", "threads": 1,
        "seed": SEED, "run-dir": directory,
    }
    words = [word for name, value in flags.items() for word in (f"--{name}", value)]
    run([terrace, "train", *words])
    rows = map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())
    losses = [row["loss"] for row in rows if row.get("loss") is not None]
    stored = load_file(directory / "final" / "adapter_model.safetensors")
    return torch.tensor(losses), torch.cat([stored[name].flatten() for name in sorted(stored)])


def check_near_peft(what, got, adapter, config, weights, batches):
    """Returns the first loss, and how far a rounding moves it."""
    wanted = trained_by_peft(adapter, config, weights, batches)
    runs = [trained_by_peft(adapter, config, weights, batches, torch.Generator().manual_seed(seed))
            for seed in range(ROUNDINGS)]
    for i, part in enumerate(("losses", "adapter")):
        spread = spread_of([one[i] for one in runs], wanted[i])
        expect_near(f"{what}: {part}", got[i], wanted[i], spread)
    return wanted[0][0], max(abs((one[0] - wanted[0])[0].item()) for one in runs)


def check(case, form, terrace, directory):
    base = directory / "base"
    make_base(case, base)
    config = json.loads((base / "config.json").read_text())
    text = text_of(config["vocab_size"])[: SAMPLES * reference.POSITIONS + 1]
    batches = repeated(text)
    adapter = ADAPTERS / case
    got = trained_by_program(terrace, base, text, directory / "run",
                             {"adapter": adapter, "base-quantization": form})
    stored = load_file(base / "model.safetensors")
    weights = quantized_weights(stored, config, form)
    what = f"{case}, {form}"
    first, spread = check_near_peft(what, got, adapter, config, weights, batches)
    plain, _ = trained_by_peft(adapter, config, stored, batches)
    if abs(plain[0] - first).item() < 100 * spread:
        raise AssertionError(f"{what}: quantisation changes too little of the loss")


def main():
    terrace, _ = sys.argv[1:]
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    take_small_steps()
    failures = 0
    for case in sorted(path.name for path in ADAPTERS.iterdir()):
        for form in ("nf4", "int8"):
            try:
                with tempfile.TemporaryDirectory() as directory:
                    check(case, form, terrace, Path(directory))
                print(f"{case}, {form}: holds")
            except AssertionError as error:
                failures += 1
                print(f"FAILED {error}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
