#!/usr/bin/env python3
"""Trains golden adapters with the program, and gives them to PEFT: adapters_test.py TERRACE LOGITS

For every golden adapter the program goes on from it for five steps, in fp32, beside fp32 weights.
PEFT loads final/, whose tensors must be the file's and no others, and computes logits: so does the
program, of the adapter beside its base and of what `terrace merge` has made of the two. The merged
tensors are held against those of PEFT's merge_and_unload. Last, an adapter that PEFT has not seen,
with --lora flags alone, must load too. Bounds are measured as in final_test.py.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy
import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

import reference
from checks import ROUNDINGS, moved
from final_test import expect_near, last_logits, program_logits, spread_of, text_of

ADAPTERS = Path(__file__).parent / "adapters"
CASES = Path(__file__).parent / "cases"
SAMPLES = reference.MICRO_BATCHES * reference.SEQUENCES


def run(command):
    done = subprocess.run([str(one) for one in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"{command[1]} ended with {done.returncode}: {done.stderr}")


def make_base(case, directory):
    """The case's model with its weights in fp32, so that a merge rounds as little as PEFT's."""
    directory.mkdir()
    shutil.copy(CASES / case / "config.json", directory)
    weights = {n: v.float() for n, v in reference.stored_weights(CASES / case).items()}
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})


def train(terrace, base, text, run_directory, flags):
    data = run_directory.with_suffix(".u16")
    text.numpy().astype(numpy.uint16).tofile(data)
    run([terrace, "train", "--model", base, "--data", data, "--data-format", "raw-u16",
         "--validation-fraction", 0, "--sequence-length", reference.POSITIONS,
         "--micro-batch-size", reference.SEQUENCES, "--gradient-accumulation-steps",
         reference.MICRO_BATCHES, "--max-steps", reference.STEPS, "--learning-rate", 0.01,
         "--precision", "fp32", "--device", "cpu", "--threads", 1, "--run-dir", run_directory,
         *flags])
    return run_directory / "final"


def stored_name(name):
    """The name in the file of a parameter of PEFT's model. There a vector of magnitudes is a module, and a module that
    trains whole is one of several."""
    name = name.replace(".modules_to_save.default.", ".").replace(".default.", ".")
    return name.replace("_vector.weight", "_vector")


def load_adapter(base, final):
    """As a user of PEFT does. Every tensor of the file is in the model, and no other is trained."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", message=".*(vocabulary|deprecated).*")
        model = peft.PeftModel.from_pretrained(reference.load_whole(base), final)
    stored = load_file(final / "adapter_model.safetensors")
    loaded = {stored_name(name): value
              for name, value in model.named_parameters(remove_duplicate=False)
              if "lora_" in name or "modules_to_save" in name}
    if stored.keys() != loaded.keys():
        raise AssertionError(f"{final}: other tensors: {stored.keys() ^ loaded.keys()}")
    for name, value in stored.items():
        if not torch.equal(value, loaded[name]):
            raise AssertionError(f"{final}: PEFT has other values of {name}")
    return model.eval()


def logits_and_spread(base, final, ids):
    wanted = last_logits(load_adapter(base, final), ids)
    others = []
    for seed in range(ROUNDINGS):
        random = torch.Generator().manual_seed(seed)
        model = load_adapter(base, final)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(moved(parameter, random))
        others.append(last_logits(model, ids))
    return wanted, spread_of(others, wanted)


def check_merge(what, terrace, base, final, merged):
    run([terrace, "merge", base, final, merged])
    wanted = load_adapter(base, final).merge_and_unload().state_dict()
    before = load_file(base / "model.safetensors")
    changed = 0
    for name, value in load_file(merged / "model.safetensors").items():
        if torch.equal(value, before[name]):
            if not torch.equal(wanted[name], before[name]):
                raise AssertionError(f"{what}: {name} is not merged")
            continue
        changed += 1
        # Allows for sums of some products in fp32, in another order.
        apart = (value - wanted[name]).abs().max().item()
        bound = 16 * 2.0**-24 * value.abs().max().item()
        if apart > bound:
            raise AssertionError(f"{what}: merged {name} is {apart:.2e} apart, {bound:.2e} allowed")
    if changed == 0:
        raise AssertionError(f"{what}: nothing was merged")


def check_adapter(what, terrace, logits_program, base, final):
    ids = text_of(json.loads((base / "config.json").read_text())["vocab_size"])[:16]
    wanted, spread = logits_and_spread(base, final, ids)
    expect_near(f"{what}: logits", program_logits(logits_program, final, ids), wanted, spread)
    merged = final.parent / "merged"
    check_merge(what, terrace, base, final, merged)
    expect_near(f"{what}: logits after merging", program_logits(logits_program, merged, ids),
                wanted, spread)
    unadapted = last_logits(reference.load_whole(base), ids)
    if (unadapted - wanted).norm() < 1000 * spread:
        raise AssertionError(f"{what}: the adapter changes nothing")


def check_case(case, terrace, logits_program):
    with tempfile.TemporaryDirectory() as temporary:
        base = Path(temporary, "base")
        make_base(case, base)
        text = text_of(json.loads((base / "config.json").read_text())["vocab_size"])
        text = text[: SAMPLES * reference.POSITIONS + 1]
        for name, flags in (
            ("given", ["--adapter", ADAPTERS / case]),
            ("new", ["--lora-rank", 3, "--lora-alpha", 7, "--lora-rslora", "on"]),
            ("dora", ["--lora-rank", 3, "--lora-type", "dora"]),
        ):
            final = train(terrace, base, text, Path(temporary, name), flags)
            check_adapter(f"{case}, {name} adapter", terrace, logits_program, base, final)


def main():
    terrace, logits_program = sys.argv[1:]
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    failures = 0
    for case in sorted(path.name for path in ADAPTERS.iterdir()):
        try:
            check_case(case, terrace, logits_program)
            print(f"{case}: holds")
        except AssertionError as error:
            failures += 1
            print(f"FAILED {error}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
