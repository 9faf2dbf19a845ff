"""Computes a case with transformers: logits, gradients, a training, a continuation."""

import json
import math
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

# The names that transformers gives the parameters of experts in files: of gate, up and down. Its
# models have all experts of a layer as one parameter, with gate and up as one matrix. The files of
# gpt_oss have the parameters as they are.
EXPERT_NAMES = {
    "mixtral": ("block_sparse_moe.experts.{}.w1.weight", "block_sparse_moe.experts.{}.w3.weight",
                "block_sparse_moe.experts.{}.w2.weight"),
    **dict.fromkeys(
        ("glm4_moe", "olmoe", "qwen2_moe", "qwen3_moe"),
        ("mlp.experts.{}.gate_proj.weight", "mlp.experts.{}.up_proj.weight",
         "mlp.experts.{}.down_proj.weight")),
}

# The names in files of the parameters that a model of granitemoe has under other names. Files, too,
# have all experts of a layer as one tensor.
RENAMED = {
    "granitemoe": {
        "block_sparse_moe.experts.gate_up_proj": "block_sparse_moe.input_linear.weight",
        "block_sparse_moe.experts.down_proj": "block_sparse_moe.output_linear.weight",
        "block_sparse_moe.router.weight": "block_sparse_moe.router.layer.weight",
    },
}

STEPS = 5
MICRO_BATCHES = 2
SEQUENCES = 2
POSITIONS = 16
PROMPT = 8
NEW_TOKENS = 12
IGNORED = -100

LEARNING_RATE = 1e-2
BETAS = (0.9, 0.95)
EPSILON = 1e-8
WEIGHT_DECAY = 0.1
# The least distance between the logits of the likeliest id and the next one, in units of their
# deviation.
LEAST_MARGIN = 0.01


def random_numbers(case, purpose):
    """A generator for one purpose of one case: what one draws does not move what another draws."""
    return torch.Generator().manual_seed(zlib.crc32(f"{case.name} {case.draw} {purpose}".encode()))


def edited(config, keys, without):
    return {key: value for key, value in {**config, **keys}.items() if key not in without}


def configuration_of(case):
    """Returns config.json as an object: as transformers writes it, without the keys that the case removes, and with the
    keys that it adds."""
    config = AutoConfig.for_model(case.family, **case.config)
    config.architectures = [type(AutoModelForCausalLM.from_config(config)).__name__]
    config.dtype = torch.float32
    with tempfile.TemporaryDirectory() as directory:
        config.save_pretrained(directory)
        written = json.loads(Path(directory, "config.json").read_text())
    return edited(written, case.file_keys, case.without)


def model_of(config):
    """A model as config.json describes it, with weights that are still to be set."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "config.json").write_text(json.dumps(config))
        loaded = AutoConfig.from_pretrained(directory)
    return AutoModelForCausalLM.from_config(
        loaded, **implementations(config["model_type"]), dtype=torch.float32
    ).eval()


def implementations(family):
    """The plainest code that transformers has."""
    has_experts = family in EXPERT_NAMES or family in RENAMED or family == "gpt_oss"
    experts = {"experts_implementation": "eager"} if has_experts else {}
    return {"attn_implementation": "eager", **experts}


def named_tensors(model):
    """Returns the parameters of a model, and the buffers that files have."""
    tensors = dict(model.named_parameters())
    buffers = dict(model.named_buffers())
    return tensors | {name: buffers[name] for name in model.state_dict() if name in buffers}


def renamed(tensors, names):
    def of(name):
        ends = [end for end in names if name.endswith(end)]
        return name.removesuffix(ends[0]) + names[ends[0]] if ends else name

    return {of(name): value for name, value in tensors.items()}


def as_stored(family, tensors):
    """Returns tensors of a model's parameters under the names, and in the shapes, that they have in files."""
    if family in RENAMED:
        return renamed(tensors, RENAMED[family])
    if family not in EXPERT_NAMES:
        return dict(tensors)
    gate, up, down = EXPERT_NAMES[family]
    stored = {}
    for name, value in tensors.items():
        layer = name.partition("mlp.")[0]
        if name.endswith("mlp.experts.gate_up_proj"):
            for expert, (own_gate, own_up) in enumerate(zip(*value.chunk(2, dim=1))):
                stored[layer + gate.format(expert)] = own_gate.clone()
                stored[layer + up.format(expert)] = own_up.clone()
        elif name.endswith("mlp.experts.down_proj"):
            for expert, own in enumerate(value):
                stored[layer + down.format(expert)] = own.clone()
        elif name.endswith("mlp.gate.weight") and family == "mixtral":
            stored[layer + "block_sparse_moe.gate.weight"] = value
        else:
            stored[name] = value
    return stored


def as_parameters(family, stored):
    """Returns what as_stored() was given: tensors under the names of a model's parameters."""
    if family in RENAMED:
        return renamed(stored, {old: new for new, old in RENAMED[family].items()})
    if family not in EXPERT_NAMES:
        return dict(stored)
    tensors = {name: value for name, value in stored.items() if ".experts." not in name}
    module = EXPERT_NAMES[family][0].partition(".")[0]
    tensors = {name.replace(f".{module}.gate.", ".mlp.gate."): value
               for name, value in tensors.items()}
    for layer in sorted({name.partition(f"{module}.experts.")[0] for name in stored
                         if ".experts." in name}):
        lists = [[], [], []]
        for values, pattern in zip(lists, EXPERT_NAMES[family]):
            while (name := layer + pattern.format(len(values))) in stored:
                values.append(stored[name])
        gate, up, down = (torch.stack(values) for values in lists)
        tensors[f"{layer}mlp.experts.gate_up_proj"] = torch.cat([gate, up], dim=1)
        tensors[f"{layer}mlp.experts.down_proj"] = down
    return tensors


def with_weights(config, weights):
    """Returns a model with these weights. Parameters that the weights lack are random, so that one too many is
    noticed."""
    model = model_of(config)
    random = torch.Generator().manual_seed(1)
    missing, _ = model.load_state_dict(weights, strict=False)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name in missing:
            if name in parameters:
                parameters[name].normal_(generator=random)
    return model


def is_norm(name):
    return "norm" in name or ".ln_" in name


def draw(case, name, parameter, random):
    """Values of a parameter, all exact in bf16, so that a file of half the size has them. A bias of the choice of
    experts is fp32 in files, and exact in no smaller type."""
    normal = torch.randn(parameter.shape, generator=random)
    if name.endswith("e_score_correction_bias"):
        return case.choice_bias * normal
    is_head_norm = "q_norm" in name or "k_norm" in name
    gain = case.query_gain if is_head_norm or "q_proj" in name or "k_proj" in name else 1.0
    if name.endswith("bias"):
        values = 0.3 * normal
    elif is_norm(name):
        uniform = torch.rand(parameter.shape, generator=random)
        adds_one = case.family.startswith("gemma")
        values = gain * (0.5 + 1.2 * uniform) - (1.0 if adds_one else 0.0)
    elif "embed_tokens" in name or "wte" in name or "wpe" in name:
        values = case.embedding_deviation * normal
    else:
        gain = case.head_gain if name == "lm_head.weight" else gain
        inputs = parameter.shape[0] if case.family == "gpt2" else parameter.shape[-1]
        if case.family == "gpt_oss" and ".experts." in name:
            inputs = parameter.shape[1]
            gain = case.expert_gain
        values = gain * case.matrix_deviation / math.sqrt(inputs) * normal
    return values.to(torch.bfloat16)


def weights_of(case, config):
    """The parameters under the names that the model has for them; a tied head is not among them."""
    random = random_numbers(case, "weights")
    return {
        name: draw(case, name, parameter, random)
        for name, parameter in named_tensors(model_of(config)).items()
    }


@dataclass
class Batches:
    tokens: torch.Tensor  # [steps, micro-batches, sequences, positions]
    targets: torch.Tensor
    prompt: torch.Tensor  # [1, PROMPT]


def batches_of(case, vocabulary, padding):
    random = random_numbers(case, "batches")
    shape = (STEPS, MICRO_BATCHES, SEQUENCES, POSITIONS + 1)
    text = torch.randint(vocabulary, shape, generator=random)
    prompt = torch.randint(vocabulary, (1, PROMPT), generator=random)
    if case.padding_in_batch:
        text[..., 3] = text[..., 9] = padding
        prompt[:, 2] = padding
    tokens, targets = text[..., :-1].clone(), text[..., 1:].clone()
    if case.masked_targets:
        targets[..., 1::5] = IGNORED
        targets[:, 1, 0, 8:] = IGNORED  # so that micro-batches have different numbers
    return Batches(tokens, targets, prompt)


def loss_of(logits, targets):
    """The sum of the losses of the targets that count, in nats."""
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum"
    )


def balances_experts(model):
    return getattr(model.config, "output_router_logits", False)


def backward(model, tokens, targets):
    """Sets the gradients of the mean loss per target of all micro-batches; returns that loss.

    Where the configuration asks for the loss that balances experts, the gradients have its mean over the micro-batches,
    times its coefficient, too."""
    count = int((targets != IGNORED).sum())
    model.zero_grad()
    total = 0.0
    for one_tokens, one_targets in zip(tokens, targets):
        output = model(input_ids=one_tokens, use_cache=False)
        loss = loss_of(output.logits, one_targets)
        trained = loss / count
        if balances_experts(model):
            trained = trained + model.config.router_aux_loss_coef * output.aux_loss / len(tokens)
        trained.backward()
        total += loss.item()
    return total / count


def balance_loss_of(model, tokens):
    """The mean over the micro-batches of the loss that balances experts."""
    with torch.no_grad():
        losses = [model(input_ids=one, use_cache=False).aux_loss.item() for one in tokens]
    return sum(losses) / len(losses)


def logits_of(model, batches):
    with torch.no_grad():
        return model(input_ids=batches.tokens[0, 0], use_cache=False).logits


def gradients_of(model, batches):
    backward(model, batches.tokens[0], batches.targets[0])
    gradients = {name: torch.zeros_like(tensor) if tensor.grad is None else tensor.grad.clone()
                 for name, tensor in named_tensors(model).items()}
    return as_stored(model.config.model_type, gradients)


def optimizer_of(model, decay):
    """AdamW with decay of matrices and embeddings, none of norms and biases, also not of those that experts have as
    rows of a matrix."""
    named = list(model.named_parameters())
    is_matrix = {name: p.dim() > 1 and not name.endswith("bias") for name, p in named}
    matrices = [p for name, p in named if is_matrix[name]]
    vectors = [p for name, p in named if not is_matrix[name]]
    groups = [
        {"params": matrices, "weight_decay": decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS, eps=EPSILON)


@dataclass
class Training:
    losses: list
    gradient_norms: list  # before clipping
    after: dict  # the parameters after the last step
    balance_losses: list  # of the experts; empty where the configuration does not ask for them


def train(model, batches, max_grad_norm, change_gradients=None, decay=WEIGHT_DECAY):
    optimizer = optimizer_of(model, decay)
    losses, norms, balance_losses = [], [], []
    for tokens, targets in zip(batches.tokens, batches.targets):
        if balances_experts(model):
            balance_losses.append(balance_loss_of(model, tokens))
        losses.append(backward(model, tokens, targets))
        if change_gradients is not None:
            change_gradients(model)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
        norms.append(norm.item())
        optimizer.step()
    after = {name: tensor.detach().clone() for name, tensor in named_tensors(model).items()}
    return Training(losses, norms, as_stored(model.config.model_type, after), balance_losses)


def continuation_of(model, prompt):
    """The likeliest ids, and the least margin by which they were chosen."""
    settings = GenerationConfig(
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        use_cache=False,
        eos_token_id=None,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    model.generation_config = settings
    result = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), generation_config=settings
    )
    ids = result.sequences[0, PROMPT:].tolist()
    assert len(ids) == NEW_TOKENS, ids
    margin = math.inf
    for logits in result.logits:
        first, second = logits[0].topk(2).values.tolist()
        margin = min(margin, (first - second) / logits.std().item())
    return ids, margin


def load_whole(directory):
    """Loads a model's directory as a user of transformers does; all tensors must be as expected."""
    family = AutoConfig.from_pretrained(directory).model_type
    model, info = AutoModelForCausalLM.from_pretrained(
        directory, **implementations(family), dtype=torch.float32, output_loading_info=True
    )
    for kind, names in info.items():
        assert not names, f"{directory}: {kind}: {names}"
    return model.eval()


def stored_weights(directory):
    return load_file(Path(directory, "model.safetensors"))
