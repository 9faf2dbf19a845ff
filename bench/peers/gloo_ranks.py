#!/usr/bin/env python3
"""Trains a model of transformers on CPU ranks over Gloo, by DDP or by FSDP2, and prints JSON on the first rank.

DDP may send gradients in bf16 (ddp-bf16), or as matrices of rank 4 with error feedback (ddp-powersgd; Vogels et al.
2019, arXiv:1905.13727), by PyTorch's hooks for that.

The peer of `terrace train --model DIR --init random` under mpirun, where DIR/config.json describes the model. It has
random weights in fp32, bytes of text as tokens, PyTorch's fused AdamW and clipping to norm 1. The ranks find each
other by the variables that torchrun sets (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT); GLOO_SOCKET_IFNAME names the
interface. Needs torch and transformers (tools/python_env.sh).
"""

import argparse
import json
import os
import statistics
import time
from pathlib import Path


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="a directory with config.json, or a model type of transformers")
    parser.add_argument("--data", required=True, help="a text file; bytes are tokens")
    parser.add_argument("--strategy", choices=["ddp", "ddp-bf16", "ddp-powersgd", "fsdp2"],
                        required=True)
    parser.add_argument("--batch", type=int, default=1, help="samples of a rank and step")
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--warmup", type=int, default=1, help="steps that are not counted")
    parser.add_argument("--steps", type=int, default=3)
    return parser.parse_args()


def batches(options, rank, ranks, torch):
    """Returns the ids of each step of a rank, [batch, sequence]: the bytes of the text, from its begin on."""
    text = torch.frombuffer(bytearray(Path(options.data).read_bytes()), dtype=torch.uint8).long()
    size = options.batch * options.sequence
    for step in range(options.warmup + options.steps):
        first = (step * ranks + rank) * size
        yield text[first:first + size].view(options.batch, options.sequence)


def divided(model, strategy):
    """Returns the model as the strategy divides it over the ranks of the default group."""
    if strategy != "fsdp2":
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
        from torch.nn.parallel import DistributedDataParallel

        model = DistributedDataParallel(model)
        if strategy == "ddp-bf16":
            model.register_comm_hook(None, default_hooks.bf16_compress_hook)
        elif strategy == "ddp-powersgd":
            # From the second step on; before that the hook sends plain gradients.
            state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
            model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        return model
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed import get_world_size

    mesh = init_device_mesh("cpu", (get_world_size(),))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train(options):
    import torch
    import torch.distributed
    import transformers

    torch.set_num_threads(options.threads)
    torch.distributed.init_process_group("gloo")
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    torch.manual_seed(1234)
    is_directory = Path(options.model).is_dir()
    config = transformers.AutoConfig.from_pretrained(options.model) if is_directory else \
        transformers.AutoConfig.for_model(options.model)
    model = transformers.AutoModelForCausalLM.from_config(config, torch_dtype=torch.float32).train()
    parameters = sum(p.numel() for p in model.parameters())
    model = divided(model, options.strategy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    seconds, losses = [], []
    for step, ids in enumerate(batches(options, rank, ranks, torch)):
        torch.distributed.barrier()
        begin = time.perf_counter()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.distributed.barrier()
        losses.append(loss.item())
        if step >= options.warmup:
            seconds.append(time.perf_counter() - begin)
    torch.distributed.destroy_process_group()
    return {"rank": rank, "strategy": options.strategy, "torch": torch.__version__, "parameters": parameters,
            "step_s": statistics.median(seconds), "losses": losses}


def main():
    options = parse_arguments()
    result = train(options)
    if result["rank"] == 0:
        print(json.dumps(result))


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
