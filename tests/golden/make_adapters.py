#!/usr/bin/env python3
"""Makes the golden files of adapters: what PEFT computes with the tiny models of some cases.

    "$(tools/python_env.sh)"/bin/python tests/golden/make_adapters.py          all, or the named ones

An adapter has random matrices, as PEFT saves them, beside the weights of a case (make_cases.py).
Losses, gradients and parameters after the training are those of the adapter's matrices alone: PEFT
freezes the rest. README.md says more.
"""

import json
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

import reference
from checks import ROUNDINGS, Spread, moved
from make_cases import CASES, MOST_AFTER, SPREADS, bound_of, compact_json, golden_text

ADAPTERS = Path(__file__).parent / "adapters"
MOST_BYTES = 200_000
MOST_DRAWS = 30
# Another scale, or the scale in the other kind's form, must move a loss by at least this number of
# bounds.
LEAST_BOUNDS = 20


@dataclass
class Adapter:
    """An adapter of the case `name`: arguments of peft.LoraConfig."""

    name: str
    lora: dict
    draw: int = 0


def adapters():
    return [
        Adapter("llama", {"r": 4, "lora_alpha": 6, "target_modules": [
            "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]}),
        Adapter("gpt2", {"r": 3, "lora_alpha": 5, "use_rslora": True, "fan_in_fan_out": True,
                         "target_modules": ["c_attn", "c_proj", "c_fc"]}),
        Adapter("phi3", {"r": 4, "lora_alpha": 8, "target_modules": ["qkv_proj", "gate_up_proj"]}),
        Adapter("mixtral", {"r": 4, "lora_alpha": 6, "target_modules": [
            "q_proj", "k_proj", "v_proj", "o_proj"]}),
        Adapter("qwen3_moe_layers", {"r": 3, "lora_alpha": 8, "target_modules": [
            "q_proj", "v_proj", "o_proj"]}),
    ]


@dataclass
class Results:
    batches: reference.Batches
    logits: torch.Tensor
    gradients: dict
    max_grad_norm: float
    training: reference.Training
    continuation: list


def stored_name(name):
    return name.replace(".default.", ".")


def trained(model):
    return {stored_name(n): p for n, p in model.named_parameters() if p.requires_grad}


def with_adapter(base, weights, directory, values=None):
    """PEFT's model of a case's weights and the adapter in a directory, or with other values."""
    model = peft.PeftModel.from_pretrained(
        reference.with_weights(base, weights), directory, is_trainable=True)
    if values is not None:
        with torch.no_grad():
            for name, parameter in trained(model).items():
                parameter.copy_(values[name])
    return model


def make_directory(adapter, base, weights, directory):
    """A directory as PEFT saves it, with random numbers in both matrices."""
    config = peft.LoraConfig(task_type="CAUSAL_LM", **adapter.lora)
    model = peft.get_peft_model(reference.with_weights(base, weights), config)
    random = torch.Generator().manual_seed(1000 + adapter.draw)
    with torch.no_grad():
        for name, parameter in trained(model).items():
            size = 0.5 if "lora_B" in name else 1.0 / parameter.shape[1] ** 0.5
            parameter.copy_(size * torch.randn(parameter.shape, generator=random))
    model.save_pretrained(directory)
    path = Path(directory, "adapter_config.json")
    keys = json.loads(path.read_text())
    keys["base_model_name_or_path"] = adapter.name
    keys["target_modules"].sort()
    path.write_text(json.dumps(keys, indent=2, sort_keys=True) + "\n")


def gradients_of(model, batches):
    reference.backward(model, batches.tokens[0], batches.targets[0])
    return {name: parameter.grad.clone() for name, parameter in trained(model).items()}


def train(make_model, batches, max_grad_norm, change=None):
    model = make_model()
    training = reference.train(model, batches, max_grad_norm, change)
    after = {stored_name(name): value for name, value in training.after.items() if "lora_" in name}
    return reference.Training(training.losses, training.gradient_norms, after, training.balance_losses)


def move_trained(random):
    def move(model):
        for parameter in trained(model).values():
            parameter.grad.copy_(moved(parameter.grad, random))

    return move


def compute(batches, make_model):
    gradients = gradients_of(make_model(), batches)
    norm = torch.cat([gradient.flatten() for gradient in gradients.values()]).norm().item()
    max_grad_norm = float(f"{norm / 2:.1e}")  # clips the first step by half
    logits = reference.logits_of(make_model(), batches)
    training = train(make_model, batches, max_grad_norm)
    return Results(batches, logits, gradients, max_grad_norm, training, [])


def measure_spread(base, weights, directory, results):
    """As of a case: with weights, adapter and gradients moved by a rounding each."""
    spread = Spread(results)
    values = trained(with_adapter(base, weights, directory))
    for run in range(ROUNDINGS):
        random = torch.Generator().manual_seed(run)
        other = {name: moved(value, random) for name, value in weights.items()}
        own = {name: moved(value.detach(), random) for name, value in values.items()}

        def make_model():
            return with_adapter(base, other, directory, own)

        spread.add(
            reference.logits_of(make_model(), results.batches),
            gradients_of(make_model(), results.batches),
            train(make_model, results.batches, results.max_grad_norm, move_trained(random)))
    return spread


def check_scale(adapter, base, weights, directory, results, spread):
    """Another reading of alpha would be seen."""
    path = Path(directory, "adapter_config.json")
    text = path.read_text()
    for change in ({"lora_alpha": adapter.lora["lora_alpha"] * 1.01},
                   {"use_rslora": not adapter.lora.get("use_rslora", False)}):
        path.write_text(json.dumps({**json.loads(text), **change}))
        loss = reference.backward(with_adapter(base, weights, directory),
                                  results.batches.tokens[0], results.batches.targets[0])
        path.write_text(text)
        wanted = results.training.losses[0]
        bound = SPREADS * spread.losses[0] + 2.0**-22 * wanted
        if abs(loss - wanted) < LEAST_BOUNDS * bound:
            raise AssertionError(f"{adapter.name}: {change} changes the loss by too little")


def check_settled(adapter, results, spread):
    for name, value in results.training.after.items():
        bound = bound_of(spread.after[name], value)
        if bound > MOST_AFTER:
            raise AssertionError(f"{adapter.name}: the bound of {name} is {bound:.1e}")


def make(adapter):
    base_directory = CASES / adapter.name
    base = json.loads((base_directory / "config.json").read_text())
    stored = {n: v.float() for n, v in reference.stored_weights(base_directory).items()}
    weights = reference.as_parameters(base["model_type"], stored)
    golden = json.loads((base_directory / "golden.json").read_text())
    shape = (reference.STEPS, reference.MICRO_BATCHES, reference.SEQUENCES, reference.POSITIONS)
    batches = reference.Batches(torch.tensor(golden["tokens"]).reshape(shape),
                                torch.tensor(golden["targets"]).reshape(shape),
                                torch.tensor([golden["prompt"]]))
    with tempfile.TemporaryDirectory() as temporary:
        make_directory(adapter, base, weights, temporary)
        results = compute(batches, lambda: with_adapter(base, weights, temporary))
        spread = measure_spread(base, weights, temporary, results)
        check_scale(adapter, base, weights, temporary, results, spread)
        check_settled(adapter, results, spread)
        write(adapter, Path(temporary), results, spread)


def write(adapter, source, results, spread):
    directory = ADAPTERS / adapter.name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(source / name, directory / name)
    text = golden_text(adapter, results, spread, results.training.after)
    (directory / "golden.json").write_text(
        compact_json({"base": adapter.name, "peft": peft.__version__, **text}))
    tensors = {"logits": results.logits}
    tensors |= {f"gradient.{name}": value for name, value in results.gradients.items()}
    tensors |= {f"after.{name}": value for name, value in results.training.after.items()}
    save_file({n: v.detach().contiguous() for n, v in tensors.items()},
              directory / "golden.safetensors")
    assert load_file(directory / "adapter_model.safetensors").keys() == results.gradients.keys()
    size = sum(file.stat().st_size for file in directory.iterdir())
    if size > MOST_BYTES:
        raise AssertionError(f"{adapter.name}: {size} bytes")
    print(f"{adapter.name}: {size} bytes, draw {adapter.draw}", flush=True)


def make_with_some_draw(adapter):
    for draw in range(MOST_DRAWS):
        adapter.draw = draw
        try:
            return make(adapter)
        except AssertionError as error:
            reason = error
    raise reason


def main():
    names = sys.argv[1:]
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    for adapter in adapters():
        if not names or adapter.name in names:
            make_with_some_draw(adapter)


if __name__ == "__main__":
    sys.exit(main())
