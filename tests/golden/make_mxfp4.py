#!/usr/bin/env python3
"""Makes mxfp4/: a tiny gpt_oss whose experts are stored in MXFP4, and the numbers that transformers makes of them.

    "$(tools/python_env.sh)"/bin/python tests/golden/make_mxfp4.py

The scales of the first tensor have every value of a byte, and so have the pairs of numbers.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

DIRECTORY = Path(__file__).parent / "mxfp4"
SIZES = {
    "vocab_size": 16,
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "num_local_experts": 2,
    "num_experts_per_tok": 1,
    "max_position_embeddings": 16,
}
BLOCK = 32


def stored_experts(parameter, random, every_scale):
    """Random blocks and scales of a parameter [E, A, B]."""
    experts, depth, columns = parameter.shape
    shape = (experts, columns, depth // BLOCK)
    blocks = torch.randint(256, (*shape, BLOCK // 2), generator=random, dtype=torch.uint8)
    if every_scale:
        count = shape[0] * shape[1] * shape[2]
        assert count == 256
        scales = torch.randperm(count, generator=random).to(torch.uint8).reshape(shape)
        blocks.view(-1)[:256] = torch.arange(256, dtype=torch.uint8)
    else:
        scales = torch.randint(119, 126, shape, generator=random, dtype=torch.uint8)
    return blocks, scales


def write_model(directory, every_scale):
    """Writes config.json and model.safetensors; returns the numbers of the matrices of experts. With every scale some
    numbers are infinite."""
    random = torch.Generator().manual_seed(1)
    config = AutoConfig.for_model("gpt_oss", **SIZES)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    stored, numbers = {}, {}
    for name, parameter in model.named_parameters():
        if name.endswith(("gate_up_proj", "down_proj")):
            has_all = every_scale and name.endswith("gate_up_proj")
            blocks, scales = stored_experts(parameter, random, has_all)
            stored[name + "_blocks"], stored[name + "_scales"] = blocks, scales
            numbers[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.bfloat16)
            assert numbers[name].shape == parameter.shape
        else:
            values = 0.1 * torch.randn(parameter.shape, generator=random)
            stored[name] = values.to(torch.bfloat16)
    keys = {**json.loads(config.to_json_string()), "architectures": ["GptOssForCausalLM"],
            "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}}
    Path(directory, "config.json").write_text(json.dumps(keys, indent=2) + "\n")
    save_file(stored, Path(directory, "model.safetensors"), metadata={"format": "pt"})
    return numbers


def main():
    DIRECTORY.mkdir(exist_ok=True)
    numbers = write_model(DIRECTORY, every_scale=True)
    save_file(numbers, DIRECTORY / "numbers.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main()
