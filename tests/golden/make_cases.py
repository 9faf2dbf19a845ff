#!/usr/bin/env python3
"""Makes the golden files: what transformers computes with tiny models of every family.

    "$(tools/python_env.sh)"/bin/python tests/golden/make_cases.py            all cases
    ... make_cases.py gemma2 phi3_su                                          some
    ... make_cases.py --compare                                               writes nothing

Every option of a case is proved to matter: with the option read otherwise, the results must differ
by far more than rounding. With --compare the results are held against the files that are there,
within the bounds that golden_test.cc has; README.md says more.
"""

import argparse
import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import safetensors
import torch
import transformers
from safetensors.torch import load_file, save_file

import family_cases
import llama_cases
import reference
from checks import check_change, check_ignored, distance, measure_spread
from reference import Batches, Training

CASES = Path(__file__).parent / "cases"
MOST_BYTES = 200_000
# golden_test.cc allows a result to be this number of spreads away.
SPREADS = 8
MOST_PROMPTS = 200
# Leaving out clipping or decay must move a parameter by at least this number of bounds.
LEAST_BOUNDS = 20
# The largest bound of a parameter after the training, relative to its norm.
MOST_AFTER = 4e-3
MOST_DRAWS = 30


@dataclass
class Results:
    batches: Batches
    logits: torch.Tensor
    gradients: dict
    max_grad_norm: float
    training: Training
    continuation: list


def all_cases():
    cases = [*llama_cases.cases(), *family_cases.cases()]
    names = [case.name for case in cases]
    assert len(names) == len(set(names)), "two cases of one name"
    return cases


def padding_id(config, model):
    return config.get("pad_token_id", model.config.pad_token_id)


def clear_continuation(case, config, weights, batches):
    """Draws prompts until every id of the continuation is the likeliest by a clear margin."""
    random = reference.random_numbers(case, "prompts")
    for _ in range(MOST_PROMPTS):
        model = reference.with_weights(config, weights)
        ids, margin = reference.continuation_of(model, batches.prompt)
        if margin >= reference.LEAST_MARGIN:
            return ids
        fresh = torch.randint(config["vocab_size"], batches.prompt.shape, generator=random)
        if case.padding_in_batch:
            fresh[:, 2] = padding_id(config, model)
        batches.prompt = fresh
    raise AssertionError(f"{case.name}: no prompt has a clear continuation")


def compute(case, config, weights):
    model = reference.with_weights(config, weights)
    batches = reference.batches_of(case, config["vocab_size"], padding_id(config, model))
    logits = reference.logits_of(model, batches)
    gradients = reference.gradients_of(model, batches)
    norm = torch.cat([gradient.flatten() for gradient in gradients.values()]).norm().item()
    # Clips the first step by half. The limit is a number of two digits.
    max_grad_norm = float(f"{norm / 2:.1e}")
    model = reference.with_weights(config, weights)
    training = reference.train(model, batches, max_grad_norm)
    continuation = clear_continuation(case, config, weights, batches)
    return Results(batches, logits, gradients, max_grad_norm, training, continuation)


def check_training(case, config, weights, results, spread):
    """Clipping and decay change what the training leaves by more than the bounds allow."""
    wanted = results.training
    for what, max_grad_norm, decay in (
        ("clipping", 1e9, reference.WEIGHT_DECAY),
        ("decay", results.max_grad_norm, 0.0),
    ):
        model = reference.with_weights(config, weights)
        training = reference.train(model, results.batches, max_grad_norm, decay=decay)
        worst = max(
            distance(training.after[name], value) / bound_of(spread.after[name], value)
            for name, value in wanted.after.items()
        )
        if worst < LEAST_BOUNDS:
            raise AssertionError(f"{case.name}: {what} moves parameters by {worst:.1f} bounds only")


def bound_of(spread, wanted):
    """As golden_test.cc has it: relative to the norm."""
    return SPREADS * spread / wanted.norm().item() + 2.0**-22


def check_bounds(case, results, spread):
    """The bounds must be far below what an ignored option changes. Returns the largest one."""
    most_logits = bound_of(spread.logits, results.logits)
    most = most_logits
    for name, gradient in results.gradients.items():
        if not is_unsettled(case, name) and gradient.norm() > 0:
            most = max(most, bound_of(spread.gradients[name], gradient))
    for change in case.changes:
        bound = most_logits if change.of == "logits" else most
        if bound > change.least / 10:
            raise AssertionError(f"{case.name}: {change.name}: a bound is {bound:.1e}")
    return most


def check_double(case, config, weights, results, spread):
    """Another implementation holds: the same model with fp64 between its fp32 parts."""
    model = reference.with_weights(config, weights).double()
    logits = reference.logits_of(model, results.batches)
    expect_within(case, "logits", logits, results.logits, spread.logits)
    gradients = reference.gradients_of(model, results.batches)
    after = reference.train(model, results.batches, results.max_grad_norm).after
    for name, wanted in results.gradients.items():
        expect_within(case, f"gradient of {name}", gradients[name], wanted, spread.gradients[name])
    for name in kept_after(case, results):
        wanted = results.training.after[name]
        expect_within(case, f"{name} after training", after[name], wanted, spread.after[name])


def expect_within(case, what, values, wanted, spread):
    apart = (values - wanted).norm().item()
    bound = SPREADS * spread + 2.0**-22 * wanted.norm().item()
    if apart > bound:
        raise AssertionError(f"{case.name}: {what} in fp64 is {apart / bound:.1f} bounds away")


def is_unsettled(case, name):
    return any(name.endswith(end) for end in case.unsettled)


def check_settled(case, results, spread):
    """Checks that the result of a training does not depend on roundings, except in tensors that the case names."""
    for name, value in results.training.after.items():
        bound = bound_of(spread.after[name], value)
        if case.stores_after and (bound > MOST_AFTER) != is_unsettled(case, name):
            raise AssertionError(f"{case.name}: the bound of {name} after training is {bound:.1e}")


def golden_text(case, results, spread, after):
    batches, training = results.batches, results.training
    lists = {
        "tokens": batches.tokens.flatten(1).tolist(),
        "targets": batches.targets.flatten(1).tolist(),
        "prompt": batches.prompt[0].tolist(),
        "continuation": results.continuation,
        "losses": training.losses,
        "gradient_norms": training.gradient_norms,
    }
    numbers = {
        "draw": case.draw,
        "steps": reference.STEPS,
        "micro_batches": reference.MICRO_BATCHES,
        "sequences": reference.SEQUENCES,
        "positions": reference.POSITIONS,
        "learning_rate": reference.LEARNING_RATE,
        "beta1": reference.BETAS[0],
        "beta2": reference.BETAS[1],
        "epsilon": reference.EPSILON,
        "weight_decay": reference.WEIGHT_DECAY,
        "max_grad_norm": results.max_grad_norm,
        "transformers": transformers.__version__,
        "torch": torch.__version__.split("+")[0],
    }
    spreads = {
        "logits": spread.logits,
        "losses": spread.losses,
        "gradient_norms": spread.gradient_norms,
        "gradients": spread.gradients,
        "after": {name: spread.after[name] for name in after},
    }
    if training.balance_losses:
        lists["balance_losses"] = training.balance_losses
        spreads["balance_losses"] = spread.balance_losses
    return {**numbers, **lists, "spread": rounded(spreads)}


def rounded(value):
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return float(f"{value:.3g}")


def kept_after(case, results):
    """The parameters whose values after the last step are kept."""
    names = results.training.after if case.stores_after else ()
    return [name for name in names if not is_unsettled(case, name)]


def golden_tensors(results, after):
    tensors = {"logits": results.logits}
    tensors |= {f"gradient.{name}": value for name, value in results.gradients.items()}
    tensors |= {f"after.{name}": results.training.after[name] for name in after}
    return {name: value.contiguous() for name, value in tensors.items()}


def compact_json(value):
    """A line for each key, so that a difference of two versions is readable."""
    lines = [f"  {json.dumps(key)}: {json.dumps(one)}" for key, one in value.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def write(case, config, weights, results, spread):
    directory = CASES / case.name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    stored = reference.as_stored(case.family, weights)
    save_file(stored, directory / "model.safetensors", metadata={"format": "pt"})
    after = kept_after(case, results)
    golden = golden_text(case, results, spread, after)
    (directory / "golden.json").write_text(compact_json(golden))
    save_file(golden_tensors(results, after), directory / "golden.safetensors")
    size = sum(file.stat().st_size for file in directory.iterdir())
    if size > MOST_BYTES:
        raise AssertionError(f"{case.name}: {size} bytes")
    check_loading(directory, results)
    return size


def check_loading(directory, results):
    """Checks that the written model is the one that was computed with: from_pretrained gives the same logits."""
    model = reference.load_whole(directory)
    if not torch.equal(reference.logits_of(model, results.batches), results.logits):
        raise AssertionError(f"{directory.name}: from_pretrained gives other logits")


def compare(case, config, weights, results):
    """Fails where results are other than the files say."""
    directory = CASES / case.name
    if json.loads((directory / "config.json").read_text()) != config:
        raise AssertionError(f"{case.name}: config.json is another one")
    stored = reference.stored_weights(directory)
    own = reference.as_stored(case.family, weights)
    if any(not torch.equal(stored[name], value) for name, value in own.items()):
        raise AssertionError(f"{case.name}: weights are others")
    spread = json.loads((directory / "golden.json").read_text())["spread"]
    tensors = golden_tensors(results, results.training.after)
    for name, wanted in load_file(directory / "golden.safetensors").items():
        kind, _, parameter = name.partition(".")
        values = tensors[name]
        allowed = {"logits": spread["logits"], "gradient": spread["gradients"].get(parameter),
                   "after": spread["after"].get(parameter)}[kind]
        if distance(values, wanted) > bound_of(allowed, wanted):
            raise AssertionError(f"{case.name}: {name} is another one")


def make(case):
    """Makes the files of a case, or raises AssertionError where its numbers cannot serve."""
    config = reference.configuration_of(case)
    weights = reference.weights_of(case, config)
    exact = {name: value.float() for name, value in weights.items()}
    results = compute(case, config, exact)
    changes = [check_change(case, one, config, exact, results) for one in case.changes]
    for change in case.ignored:
        check_ignored(case, change, config, exact, results)
    spread = measure_spread(config, exact, results)
    most = check_bounds(case, results, spread)
    check_settled(case, results, spread)
    check_training(case, config, exact, results, spread)
    check_double(case, config, exact, results, spread)
    size = write(case, config, weights, results, spread)
    least = min(changes, default=float("nan"))
    print(f"{case.name}: {size} bytes, draw {case.draw}, bounds up to {most:.1e}, "
          f"options change from {least:.1e} on", flush=True)


def make_with_some_draw(case):
    for draw in range(MOST_DRAWS):
        case.draw = draw
        try:
            return make(case)
        except AssertionError as error:
            reason = error
    raise reason


def compare_stored(case):
    case.draw = json.loads((CASES / case.name / "golden.json").read_text())["draw"]
    config = reference.configuration_of(case)
    weights = reference.weights_of(case, config)
    exact = {name: value.float() for name, value in weights.items()}
    compare(case, config, weights, compute(case, config, exact))
    print(f"{case.name}: as stored")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="cases; all if none is named")
    parser.add_argument("--compare", action="store_true", help="compare with the files, write none")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    cases = all_cases()
    unknown = set(arguments.names) - {case.name for case in cases}
    if unknown:
        sys.exit(f"make_cases.py: there is no case {', '.join(sorted(unknown))}")
    failures = 0
    for case in cases:
        if arguments.names and case.name not in arguments.names:
            continue
        try:
            (compare_stored if arguments.compare else make_with_some_draw)(case)
        except AssertionError as error:
            failures += 1
            print(f"FAILED {error}", file=sys.stderr)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
