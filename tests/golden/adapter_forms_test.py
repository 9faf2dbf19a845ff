#!/usr/bin/env python3
"""Trains adapters of every form beside PEFT: adapter_forms_test.py TERRACE GOLDEN_LOGITS

There are four forms: magnitudes (DoRA), patterns of ranks and alphas, modules that train whole, and
dropout, for which PEFT's model drops what the program drops. For the models of the golden adapters
PEFT saves an adapter with random numbers. The program goes on from it for twenty steps, and so does
PEFT, within the bounds of quantized_test.py; with a part of the form changed, the first loss must be
far away. Then PEFT loads what the program leaves: tensors, logits and merged weights as in
adapters_test.py. Adapters with magnitudes are also trained over a base in nf4. Last, a new adapter
beside which --trainable trains modules must load too.
"""

import copy
import json
import sys
import tempfile
from pathlib import Path

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

import reference
from adapters_test import ADAPTERS, check_adapter, make_base, train
from dropout import check_scale
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

PATTERNS = {
    "llama": {"rank_pattern": {"q_proj|down_proj": 2, "layers.1.self_attn.o_proj": 6},
              "alpha_pattern": {r".*mlp\.\w+_proj": 3, "^model.layers.0.self_attn.v_proj": 20}},
    "gpt2": {"rank_pattern": {"attn.c_attn": 5}, "alpha_pattern": {"c_fc": 9, "h.1.*": 2}},
    "phi3": {"rank_pattern": {"gate_up_proj": 2}, "alpha_pattern": {"layers.0.*": 5}},
}


# The head of gpt2 is its embedding.
MODULES = {
    "llama": {"modules_to_save": ["lm_head", "embed_tokens", "norm"]},
    "gpt2": {"modules_to_save": ["wte", "lm_head", "ln_f", "h.1.mlp.c_fc"],
             "ensure_weight_tying": True, "target_modules": ["c_attn", "h.0.mlp.c_fc"]},
    "phi3": {"modules_to_save": ["lm_head", "model.norm", "1.self_attn.qkv_proj"],
             "target_modules": ["gate_up_proj", "0.self_attn.qkv_proj"]},
}
TRAINABLE = {
    "llama": ["*.1.mlp.up_proj.weight", "lm_head.weight", "norm.weight"],
    "gpt2": ["wte.weight", "*.ln_1.*"],
    "phi3": ["*.qkv_proj.weight", "embed_tokens.weight"],
}


PROBABILITY = 0.25


def options_of(form, case):
    """Arguments of peft.LoraConfig that the golden adapter does not have."""
    forms = {"dora": {"use_dora": True}, "patterns": PATTERNS[case], "modules": MODULES[case],
             "dropout": {"lora_dropout": PROBABILITY}}
    return copy.deepcopy(forms[form])  # PEFT changes lists that it is given


def make_adapter(form, case, base, directory):
    """As PEFT saves it: its layers are the golden adapter's."""
    golden = json.loads((ADAPTERS / case / "adapter_config.json").read_text())
    kept = ("r", "lora_alpha", "use_rslora", "fan_in_fan_out", "target_modules")
    options = {key: golden[key] for key in kept} | options_of(form, case)
    config = peft.LoraConfig(task_type="CAUSAL_LM", **options)
    model = peft.get_peft_model(reference.load_whole(base), config)
    random = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, parameter in trained_of(model):
            numbers = torch.randn(parameter.shape, generator=random)
            if "lora_A" in name or "lora_B" in name:
                size = 0.3 if "lora_B" in name else 1.0 / parameter.shape[1] ** 0.5
                parameter.copy_(size * numbers)
            else:
                parameter.mul_(1 + 0.2 * numbers)
    model.save_pretrained(directory)
    if "modules_to_save" in options:
        # PEFT writes the list without a tied head, and then does not tie the head of gpt2.
        path = directory / "adapter_config.json"
        keys = json.loads(path.read_text()) | {"modules_to_save": MODULES[case]["modules_to_save"]}
        path.write_text(json.dumps(keys, indent=2))


def read_otherwise(form, adapter, directory):
    """Writes the adapter with one part of its form changed: larger magnitudes or norms, no
    alpha_pattern, or no dropout."""
    directory.mkdir()
    config = json.loads((adapter / "adapter_config.json").read_text())
    tensors = load_file(adapter / "adapter_model.safetensors")
    if form == "patterns":
        config["alpha_pattern"] = {}
    if form == "dropout":
        config["lora_dropout"] = 0
    for name, value in tensors.items():
        is_greater = "magnitude" in name or name.endswith(("model.norm.weight", "ln_f.weight"))
        tensors[name] = value * 1.01 if is_greater else value
    (directory / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, directory / "adapter_model.safetensors", metadata={"format": "pt"})


def check_new(case, terrace, logits_program, base, text, directory):
    """An adapter with modules that train whole, which PEFT has not seen."""
    directory.parent.mkdir()
    final = train(terrace, base, text, directory,
                  ["--lora-rank", 3, "--trainable", *TRAINABLE[case]])
    check_adapter(f"{case}, new with modules", terrace, logits_program, base, final)


def check_config(form, adapter, final):
    """The configuration still has all keys of the form."""
    before = json.loads((adapter / "adapter_config.json").read_text())
    after = json.loads((final / "adapter_config.json").read_text())
    for key in ("r", "lora_alpha", "lora_dropout", "use_dora", "rank_pattern", "alpha_pattern"):
        if before[key] != after[key]:
            raise AssertionError(f"{form}: {key} is {after[key]} after {before[key]}")


def check(form, case, terrace, logits_program, directory):
    base, adapter = directory / "base", directory / "adapter"
    make_base(case, base)
    make_adapter(form, case, base, adapter)
    config = json.loads((base / "config.json").read_text())
    text = text_of(config["vocab_size"])[: SAMPLES * reference.POSITIONS + 1]
    if form == "dropout":  # each sample is the same text, as the program takes them in its own order
        text = text[: reference.POSITIONS].repeat(SAMPLES + 1)[: len(text)]
    batches = repeated(text)
    stored = load_file(base / "model.safetensors")
    run = directory / "run"
    got = trained_by_program(terrace, base, text, run, {"adapter": adapter})
    what = f"{case}, {form}"
    first, spread = check_near_peft(what, got, adapter, config, stored, batches)
    read_otherwise(form, adapter, directory / "other")
    other, _ = trained_by_peft(directory / "other", config, stored, batches)
    if abs(other[0] - first).item() < 100 * spread:
        raise AssertionError(f"{what}: its form changes too little of the loss")
    check_config(what, adapter, run / "final")
    check_adapter(what, terrace, logits_program, base, run / "final")
    if form == "modules":
        check_new(case, terrace, logits_program, base, text, directory / "new" / "run")
    if form != "dora":
        return
    got = trained_by_program(terrace, base, text, directory / "quantized",
                             {"adapter": adapter, "base-quantization": "nf4"})
    weights = quantized_weights(stored, config, "nf4")
    check_near_peft(f"{what} over nf4", got, adapter, config, weights, batches)


def main():
    terrace, logits_program = sys.argv[1:]
    check_scale(PROBABILITY)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    take_small_steps()
    failures = 0
    for case in sorted(path.name for path in ADAPTERS.iterdir()):
        for form in ("dora", "patterns", "modules", "dropout"):
            try:
                with tempfile.TemporaryDirectory() as directory:
                    check(form, case, terrace, logits_program, Path(directory))
                print(f"{case}, {form}: holds")
            except AssertionError as error:
                failures += 1
                print(f"FAILED {error}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
