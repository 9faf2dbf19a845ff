#!/usr/bin/env python3
"""Trains the model of transformers_experts.py with DeepSpeed's ZeRO stage 3 on the CPU and prints JSON.

The parameters are bf16 with fp32 masters, gradients are clipped to norm 1, and AdamW is DeepSpeed's kernel for the CPU.
Layers of experts are ZeRO-3's leaf modules: each is fetched as a whole, since a rank that has no token for an expert
would otherwise hang (deepspeed.utils.set_z3_leaf_modules). --nvme DIR puts parameters and optimizer state into files.
Needs torch, transformers, deepspeed, a C++ compiler and ninja, and libaio-dev with --nvme; DeepSpeed builds its kernels
at the first run. LD_PRELOAD chooses the allocator.
"""

import argparse
import json
import os
import resource
import statistics
import time
from pathlib import Path

import transformers_experts
from deepspeed_gpt2 import set_environment


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="a text file; bytes are tokens")
    parser.add_argument("--nvme", help="a directory of the drive")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=512)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--warmup", type=int, default=1, help="steps that are not counted")
    parser.add_argument("--steps", type=int, default=3)
    return parser.parse_args()


def configuration(options):
    zero = {"stage": 3, "sub_group_size": 100_000_000}
    if options.nvme:
        place = {"device": "nvme", "nvme_path": options.nvme, "buffer_count": 5}
        zero["offload_optimizer"] = place
        zero["offload_param"] = {**place, "buffer_size": 100_000_000}
    return {
        "train_micro_batch_size_per_gpu": options.batch,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "weight_decay": 0.1}},
        "zero_optimization": zero,
        "aio": {"block_size": 1 << 20, "queue_depth": 16, "intra_op_parallelism": 2, "single_submit": False,
                "overlap_events": True},
    }


def train(options):
    import deepspeed
    import torch
    import transformers
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

    torch.manual_seed(1234)
    torch.set_num_threads(options.threads)
    deepspeed.init_distributed("gloo")
    model = transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**transformers_experts.SIZES)).train()
    deepspeed.utils.set_z3_leaf_modules(model, [Qwen3MoeSparseMoeBlock])
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(),
                                           config=configuration(options))
    seconds, losses = [], []
    for step, ids in enumerate(transformers_experts.batches(options, torch)):
        begin = time.perf_counter()
        loss = engine(input_ids=ids, labels=ids).loss
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
        if step >= options.warmup:
            seconds.append(time.perf_counter() - begin)
    return deepspeed.__version__, seconds, losses


def main():
    options = parse_arguments()
    options.data = str(Path(options.data).resolve())
    set_environment(options)
    version, seconds, losses = train(options)
    print(json.dumps({"peer": "deepspeed", "deepspeed": version, "batch": options.batch, "sequence": options.sequence,
                      "threads": options.threads, "step_s": [round(s, 4) for s in seconds],
                      "step_s_median": round(statistics.median(seconds), 4),
                      "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                      "losses": [round(loss, 4) for loss in losses]}))


if __name__ == "__main__":
    main()
