#!/usr/bin/env python3
"""Trains a low-rank adapter of a Llama of 1.1 G parameters with PEFT on the CPU and prints seconds per step as JSON.

The peer of `terrace train --model DIR --init random --lora-rank 8 --lora-targets q_proj v_proj`, where DIR/config.json
is what --write-config DIR writes: TinyLlama's sizes, random weights in bf16, bytes of text as tokens, AdamW on the
adapter, clipping to norm 1. Needs torch, transformers and peft (tools/python_env.sh). LD_PRELOAD chooses the allocator.
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

SIZES = {"hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 32, "num_key_value_heads": 4,
         "num_hidden_layers": 22, "vocab_size": 32000, "max_position_embeddings": 2048, "rms_norm_eps": 1e-05,
         "tie_word_embeddings": False}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="a text file; bytes are tokens")
    parser.add_argument("--write-config", metavar="DIR", help="write DIR/config.json and end")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--sequence", type=int, default=256)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--warmup", type=int, default=1, help="steps that are not counted")
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()
    if not options.write_config and not options.data:
        parser.error("--data is missing")
    return options


def write_config(directory):
    Path(directory).mkdir(parents=True, exist_ok=True)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **SIZES}
    (Path(directory) / "config.json").write_text(json.dumps(config))


def make_model(options):
    import peft
    import torch
    import transformers

    torch.manual_seed(1234)
    torch.set_num_threads(options.threads)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).to(torch.bfloat16)
    adapter = peft.LoraConfig(r=options.rank, lora_alpha=2 * options.rank, target_modules=["q_proj", "v_proj"],
                              lora_dropout=0.0, task_type="CAUSAL_LM")
    return peft.get_peft_model(model, adapter).train()


def train(options):
    import torch

    model = make_model(options)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3, weight_decay=0.0, fused=True)
    text = torch.frombuffer(bytearray(Path(options.data).read_bytes()), dtype=torch.uint8).long()
    seconds, losses, size = [], [], options.batch * options.sequence
    for step in range(options.warmup + options.steps):
        ids = text[step * size:(step + 1) * size].view(options.batch, options.sequence)
        begin = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        if step >= options.warmup:
            seconds.append(time.perf_counter() - begin)
    return sum(p.numel() for p in trained), seconds, losses


def main():
    options = parse_arguments()
    if options.write_config:
        write_config(options.write_config)
        return
    if os.environ.get("OMP_NUM_THREADS") != str(options.threads):
        os.environ["OMP_NUM_THREADS"] = str(options.threads)
        os.execv(sys.executable, [sys.executable, *sys.argv])
    trained, seconds, losses = train(options)
    print(json.dumps({"peer": "peft", "trained_parameters": trained, "batch": options.batch,
                      "sequence": options.sequence, "threads": options.threads,
                      "step_s": [round(s, 4) for s in seconds],
                      "step_s_median": round(statistics.median(seconds), 4),
                      "losses": [round(loss, 4) for loss in losses]}))


if __name__ == "__main__":
    main()
