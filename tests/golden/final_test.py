#!/usr/bin/env python3
"""Trains golden cases with the program and with transformers: final_test.py TERRACE GOLDEN_LOGITS

For every case that golden_test.cc runs, the program trains five steps, each over all of its data,
so that the order of samples does not matter. transformers trains likewise. Then transformers loads
final/, which must have its tensors and no others. Its logits are held against the program's own of
final/, and those against the logits of what transformers has trained. Bounds are those of
golden_test.cc: eight times what moving weights and gradients by one unit in the last place changes,
measured here.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy
import torch
import transformers

import make_mxfp4
import reference
from checks import ROUNDINGS, move_gradients, moved

CASES = Path(__file__).parent / "cases"
SPREADS = 8
ROUNDING = 4 * 2.0**-24
SAMPLES = reference.MICRO_BATCHES * reference.SEQUENCES


def text_of(vocabulary):
    random = torch.Generator().manual_seed(7)
    return torch.randint(vocabulary, (SAMPLES * reference.POSITIONS + 1,), generator=random)


def micro_batches_of(config):
    """The loss that balances experts is one of each micro-batch. The program shuffles samples, so with that loss all of
    them are one micro-batch."""
    return 1 if config.get("output_router_logits") else reference.MICRO_BATCHES


def batches_of(text, micro_batches=reference.MICRO_BATCHES):
    """The same batch in every step: all samples of the text, in its order."""
    shape = (1, micro_batches, SAMPLES // micro_batches, reference.POSITIONS)
    repeat = (reference.STEPS, 1, 1, 1)
    tokens = text[:-1].reshape(shape).repeat(repeat)
    targets = text[1:].reshape(shape).repeat(repeat)
    return reference.Batches(tokens, targets, text[None, : reference.PROMPT])


def run_program(terrace, case, text, directory, max_grad_norm, micro_batches):
    data = Path(directory, "ids.u16")
    text.numpy().astype(numpy.uint16).tofile(data)
    flags = {
        "model": CASES / case, "data": data, "data-format": "raw-u16", "validation-fraction": 0,
        "sequence-length": reference.POSITIONS, "micro-batch-size": SAMPLES // micro_batches,
        "gradient-accumulation-steps": micro_batches, "max-steps": reference.STEPS,
        "learning-rate": reference.LEARNING_RATE, "lr-scheduler-type": "constant",
        "weight-decay": reference.WEIGHT_DECAY, "adam-beta1": reference.BETAS[0],
        "adam-beta2": reference.BETAS[1], "adam-epsilon": reference.EPSILON,
        "max-grad-norm": max_grad_norm, "precision": "fp32", "save-dtype": "fp32",
        "init": "weights", "device": "cpu", "threads": 1, "run-dir": Path(directory, "run"),
    }
    command = [terrace, "train"]
    for name, value in flags.items():
        command += [f"--{name}", str(value)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"{case}: terrace ended with {done.returncode}: {done.stderr}")
    rows = Path(directory, "run", "metrics.jsonl").read_text().splitlines()
    losses = [json.loads(row).get("loss") for row in rows]
    return [loss for loss in losses if loss is not None]


def program_logits(logits_program, directory, ids):
    command = [logits_program, str(directory), *map(str, ids.tolist())]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return torch.tensor([float(line) for line in done.stdout.split()])


def last_logits(model, ids):
    with torch.no_grad():
        return model(input_ids=ids[None], use_cache=False).logits[0, -1]


def trained(config, weights, batches, max_grad_norm, ids, random=None):
    """Losses, and logits after the training; with `random` all is moved by a rounding."""
    change = None
    if random is not None:
        weights = {name: moved(value, random) for name, value in weights.items()}
        change = move_gradients(random)
    model = reference.with_weights(config, weights)
    losses = reference.train(model, batches, max_grad_norm, change).losses
    return torch.tensor(losses), last_logits(model, ids)


def spread_of(results, wanted):
    return max((result - wanted).norm().item() for result in results)


def expect_near(what, values, wanted, spread):
    apart = (values - wanted).norm().item()
    bound = SPREADS * spread + ROUNDING * wanted.norm().item()
    if not apart <= bound:
        raise AssertionError(f"{what}: {apart:.2e} apart, {bound:.2e} is the bound")


def check_training(case, losses, logits, batches, max_grad_norm):
    directory = CASES / case
    config = json.loads((directory / "config.json").read_text())
    stored = {n: v.float() for n, v in reference.stored_weights(directory).items()}
    weights = reference.as_parameters(config["model_type"], stored)
    ids = batches.tokens[0, 0, 0]
    wanted = trained(config, weights, batches, max_grad_norm, ids)
    runs = [trained(config, weights, batches, max_grad_norm, ids, torch.Generator().manual_seed(i))
            for i in range(ROUNDINGS)]
    for i, (name, values) in enumerate((("losses", losses), ("trained logits", logits))):
        spread = spread_of([run[i] for run in runs], wanted[i])
        expect_near(f"{case}: {name}", values, wanted[i], spread)


def check_final(case, final, ids, logits_program):
    """Returns the program's logits of final/, which are equal to transformers'."""
    model = reference.load_whole(final)
    wanted = last_logits(model, ids)
    spreads = []
    for run in range(ROUNDINGS):
        random = torch.Generator().manual_seed(run)
        other = reference.load_whole(final)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.copy_(moved(parameter, random))
        spreads.append(last_logits(other, ids))
    logits = program_logits(logits_program, final, ids)
    expect_near(f"{case}: logits of final/", logits, wanted, spread_of(spreads, wanted))
    return logits


def check_case(case, terrace, logits_program):
    config = json.loads((CASES / case / "config.json").read_text())
    golden = json.loads((CASES / case / "golden.json").read_text())
    max_grad_norm = golden["max_grad_norm"]
    text = text_of(config["vocab_size"])
    micro_batches = micro_batches_of(config)
    batches = batches_of(text, micro_batches)
    with tempfile.TemporaryDirectory() as directory:
        losses = run_program(terrace, case, text, directory, max_grad_norm, micro_batches)
        final = Path(directory, "run", "final")
        logits = check_final(case, final, batches.tokens[0, 0, 0], logits_program)
    check_training(case, torch.tensor(losses, dtype=torch.float64), logits, batches, max_grad_norm)


def check_mxfp4(logits_program):
    """A model whose experts are in MXFP4 has the logits of transformers, which makes numbers of them."""
    ids = torch.arange(5)
    with tempfile.TemporaryDirectory() as directory:
        make_mxfp4.write_model(directory, every_scale=False)
        check_final("experts in MXFP4", Path(directory), ids, logits_program)


def main():
    terrace, logits_program = sys.argv[1:]
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    listed = subprocess.run([logits_program], capture_output=True, text=True, check=True)
    cases = listed.stdout.split()
    assert cases, "no case is built"
    failures = 0
    for case in cases:
        try:
            check_case(case, terrace, logits_program)
            print(f"{case}: holds")
        except AssertionError as error:
            failures += 1
            print(f"FAILED {error}")
    check_mxfp4(logits_program)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
