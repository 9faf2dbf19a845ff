#!/usr/bin/env python3
"""Trains GPT-2 124M with DeepSpeed's ZeRO-Infinity on the CPU and prints seconds per step as JSON.

The peer of `terrace train --model gpt2-124m --nvme DIR --place-parameters nvme --place-optimizer nvme`. It has the
model and the batches of pytorch_gpt2.py, ZeRO stage 3, bf16, clipping to norm 1, and AdamW by DeepSpeed's CPU kernel,
with the optimizer state and the parameters in files under --nvme. Needs torch, deepspeed, a C++ compiler, ninja and
libaio-dev; DeepSpeed builds its kernels at the first run. LD_PRELOAD chooses the allocator.
"""

import argparse
import json
import os
import resource
import statistics
import sys
import time

import pytorch_gpt2


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="a text file; bytes are tokens")
    parser.add_argument("--nvme", required=True, help="a directory of the drive")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=512)
    parser.add_argument("--warmup", type=int, default=2, help="steps that are not counted")
    parser.add_argument("--steps", type=int, default=4)
    parser.set_defaults(layers=12, width=768, heads=12, vocabulary=50257, positions=1024)
    return parser.parse_args()


def configuration(options):
    return {
        "train_micro_batch_size_per_gpu": options.batch,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "weight_decay": 0.1}},
        "zero_optimization": {
            "stage": 3,
            "sub_group_size": 100_000_000,
            "stage3_max_live_parameters": 200_000_000,
            "offload_optimizer": {"device": "nvme", "nvme_path": options.nvme, "buffer_count": 5,
                                  "pipeline_read": False, "pipeline_write": False},
            "offload_param": {"device": "nvme", "nvme_path": options.nvme, "buffer_count": 5,
                              "buffer_size": 100_000_000},
        },
        "aio": {"block_size": 1 << 20, "queue_depth": 16, "intra_op_parallelism": 2, "single_submit": False,
                "overlap_events": True},
    }


def set_environment(options):
    """Sets the environment of one rank without a launcher. Then starts the program again, because torch counts its
    threads when it is loaded."""
    wanted = {"OMP_NUM_THREADS": str(options.threads), "DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0",
              "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": os.environ.get("MASTER_PORT", "29511")}
    if all(os.environ.get(name) == value for name, value in wanted.items()):
        return
    os.environ.update(wanted)
    os.execv(sys.executable, [sys.executable, *sys.argv])


def main():
    options = parse_arguments()
    set_environment(options)
    import deepspeed
    import torch

    torch.manual_seed(1234)
    torch.set_num_threads(options.threads)
    deepspeed.init_distributed("gloo")
    model = pytorch_gpt2.make_model(options, torch)
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(),
                                           config=configuration(options))
    batches = pytorch_gpt2.read_batches(options, torch)
    seconds, losses = [], []
    for step in range(options.warmup + options.steps):
        tokens, targets = next(batches)
        begin = time.perf_counter()
        loss = engine(tokens, targets)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
        if step >= options.warmup:
            seconds.append(time.perf_counter() - begin)
    print(json.dumps({"peer": "deepspeed", "deepspeed": deepspeed.__version__, "torch": torch.__version__,
                      "batch": options.batch, "sequence": options.sequence,
                      "threads": options.threads, "step_s": [round(s, 4) for s in seconds],
                      "step_s_median": round(statistics.median(seconds), 4),
                      "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
                      "losses": [round(value, 4) for value in losses]}))


if __name__ == "__main__":
    main()
