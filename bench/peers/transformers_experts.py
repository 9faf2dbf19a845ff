#!/usr/bin/env python3
"""Trains a Qwen3 with experts of about 200 M parameters with transformers on the CPU and prints JSON.

The peer of `terrace train --model DIR --init random`, where DIR/config.json is what --write-config DIR writes. It has
random weights in fp32, autocast to bf16, bytes of text as tokens, PyTorch's fused AdamW and clipping to norm 1.
--experts chooses how transformers computes the experts: `eager` has a loop over them, `grouped_mm` PyTorch's grouped
product. Needs torch and transformers (tools/python_env.sh). LD_PRELOAD chooses the allocator.
"""

import argparse
import json
import os
import resource
import statistics
import sys
import time
from pathlib import Path

SIZES = {"hidden_size": 768, "intermediate_size": 2048, "moe_intermediate_size": 256, "num_experts": 32,
         "num_experts_per_tok": 4, "norm_topk_prob": True, "num_attention_heads": 12, "num_key_value_heads": 4,
         "head_dim": 64, "num_hidden_layers": 8, "vocab_size": 32000, "max_position_embeddings": 2048,
         "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "hidden_act": "silu", "tie_word_embeddings": False}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="a text file; bytes are tokens")
    parser.add_argument("--write-config", metavar="DIR", help="write DIR/config.json and end")
    parser.add_argument("--experts", choices=["eager", "grouped_mm"], default="eager")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=512)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--warmup", type=int, default=1, help="steps that are not counted")
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    if not options.write_config and not options.data:
        parser.error("--data is missing")
    return options


def write_config(directory):
    Path(directory).mkdir(parents=True, exist_ok=True)
    config = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", **SIZES}
    (Path(directory) / "config.json").write_text(json.dumps(config))


def batches(options, torch):
    """Returns the ids of each step, [batch, sequence]: the bytes of the text, from its begin on."""
    text = torch.frombuffer(bytearray(Path(options.data).read_bytes()), dtype=torch.uint8).long()
    size = options.batch * options.sequence
    for step in range(options.warmup + options.steps):
        yield text[step * size:(step + 1) * size].view(options.batch, options.sequence)


def train(options):
    import torch
    import transformers

    torch.manual_seed(1234)
    torch.set_num_threads(options.threads)
    config = transformers.Qwen3MoeConfig(**SIZES)
    config._experts_implementation = options.experts
    model = transformers.Qwen3MoeForCausalLM(config).float().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    seconds, losses = [], []
    for step, ids in enumerate(batches(options, torch)):
        begin = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        if step >= options.warmup:
            seconds.append(time.perf_counter() - begin)
    return sum(p.numel() for p in model.parameters()), seconds, losses


def main():
    options = parse_arguments()
    if options.write_config:
        write_config(options.write_config)
        return
    if os.environ.get("OMP_NUM_THREADS") != str(options.threads):
        os.environ["OMP_NUM_THREADS"] = str(options.threads)
        os.execv(sys.executable, [sys.executable, *sys.argv])
    parameters, seconds, losses = train(options)
    print(json.dumps({"peer": "transformers", "experts": options.experts, "parameters": parameters,
                      "batch": options.batch, "sequence": options.sequence, "threads": options.threads,
                      "step_s": [round(s, 4) for s in seconds],
                      "step_s_median": round(statistics.median(seconds), 4),
                      "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                      "losses": [round(loss, 4) for loss in losses]}))


if __name__ == "__main__":
    main()
