#!/usr/bin/env python3
"""Trains adapters with magnitudes (DoRA) beside PEFT: dora_test.py TERRACE GOLDEN_LOGITS

For the models of the golden adapters PEFT saves an adapter with random matrices and magnitudes. The
program goes on from it for twenty steps, and so does PEFT, within the bounds of quantized_test.py;
with magnitudes a hundredth greater, the first loss must be far away. The same over a base in nf4.
Then PEFT loads what the program leaves: tensors, logits and merged weights as in adapters_test.py.
"""

import json
import sys
import tempfile
from pathlib import Path

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

import reference
from adapters_test import ADAPTERS, check_adapter, make_base
from final_test import SAMPLES, text_of
from quantized_test import (
    check_near_peft,
    quantized_weights,
    repeated,
    take_small_steps,
    trained_by_peft,
    trained_by_program,
    trained_of,
)


def make_adapter(case, base, directory):
    """As PEFT saves it: its layers are the golden adapter's."""
    golden = json.loads((ADAPTERS / case / "adapter_config.json").read_text())
    kept = ("r", "lora_alpha", "use_rslora", "fan_in_fan_out", "target_modules")
    config = peft.LoraConfig(task_type="CAUSAL_LM", use_dora=True, **{k: golden[k] for k in kept})
    model = peft.get_peft_model(reference.load_whole(base), config)
    random = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, parameter in trained_of(model):
            numbers = torch.randn(parameter.shape, generator=random)
            if "magnitude" in name:
                parameter.mul_(1 + 0.2 * numbers)
            else:
                size = 0.3 if "lora_B" in name else 1.0 / parameter.shape[1] ** 0.5
                parameter.copy_(size * numbers)
    model.save_pretrained(directory)


def with_greater_magnitudes(adapter, directory):
    directory.mkdir()
    (directory / "adapter_config.json").write_text((adapter / "adapter_config.json").read_text())
    tensors = load_file(adapter / "adapter_model.safetensors")
    for name, value in tensors.items():
        tensors[name] = value * 1.01 if "magnitude" in name else value
    save_file(tensors, directory / "adapter_model.safetensors", metadata={"format": "pt"})


def check(case, terrace, logits_program, directory):
    base, adapter = directory / "base", directory / "adapter"
    make_base(case, base)
    make_adapter(case, base, adapter)
    config = json.loads((base / "config.json").read_text())
    text = text_of(config["vocab_size"])[: SAMPLES * reference.POSITIONS + 1]
    batches = repeated(text)
    stored = load_file(base / "model.safetensors")
    run = directory / "run"
    got = trained_by_program(terrace, base, text, run, {"adapter": adapter})
    first, spread = check_near_peft(case, got, adapter, config, stored, batches)
    with_greater_magnitudes(adapter, directory / "other")
    other, _ = trained_by_peft(directory / "other", config, stored, batches)
    if abs(other[0] - first).item() < 100 * spread:
        raise AssertionError(f"{case}: magnitudes change too little of the loss")
    check_adapter(f"{case}, dora", terrace, logits_program, base, run / "final")
    got = trained_by_program(terrace, base, text, directory / "quantized",
                             {"adapter": adapter, "base-quantization": "nf4"})
    weights = quantized_weights(stored, config, "nf4")
    check_near_peft(f"{case} over nf4", got, adapter, config, weights, batches)


def main():
    terrace, logits_program = sys.argv[1:]
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    take_small_steps()
    failures = 0
    for case in sorted(path.name for path in ADAPTERS.iterdir()):
        try:
            with tempfile.TemporaryDirectory() as directory:
                check(case, terrace, logits_program, Path(directory))
            print(f"{case}: holds")
        except AssertionError as error:
            failures += 1
            print(f"FAILED {error}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
