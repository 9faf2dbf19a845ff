#!/usr/bin/env python3
"""Trains a Llama with PyTorch's FSDP2 and CPU offload and prints tokens per second as JSON.

The peer of the results `llama_1b_bf16_on_host_*` and `llama_7b_bf16_optimizer_on_host_*` of
`terrace bench step --device cuda`: the same shapes, bf16 compute, fp32 masters, gradients and
moments in host memory, AdamW on the CPU and clipping to norm 1, for the same tokens per step; a
step is 1 to 64 micro-batches. llama-7b needs 108 GB of host memory (an estimated 130 where PyTorch
rounds what it pins up to powers of two) and `--checkpointing full` for its activations. Tokens are
made up. One process on one GPU, or several under torchrun. Not part of the build; needs only
PyTorch with CUDA, 2.6 or newer.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time


# The shapes of the presets, and where Terrace has its state in the results that this is the peer
# of. FSDP2 has all state in host memory, also where Terrace has only the optimizer's there.
PRESETS = {
    "llama-1b": {
        "homes": "on_host",
        "layers": 16,
        "width": 2048,
        "intermediate": 8192,
        "heads": 32,
        "key_value_heads": 8,
        "vocabulary": 128256,
        "tied": True,
        "rope_theta": 500000.0,
        "batch": 4,
        "micro_batches": [1, 2, 4, 8, 16, 64],
    },
    "llama-7b": {
        "homes": "optimizer_on_host",
        "layers": 32,
        "width": 4096,
        "intermediate": 11008,
        "heads": 32,
        "key_value_heads": 32,
        "vocabulary": 32000,
        "tied": False,
        "rope_theta": 10000.0,
        "batch": 8,
        "micro_batches": [8],
    },
}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", choices=PRESETS, default="llama-1b")
    parser.add_argument("--micro-batches", type=int, nargs="+", help="those of the preset's steps")
    parser.add_argument("--batch", type=int, help="sequences of a micro-batch (the preset's)")
    parser.add_argument("--sequence", type=int, default=2048)
    parser.add_argument("--checkpointing", choices=["none", "full"], default="none")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--warmup", type=int, default=2, help="steps that are not counted")
    parser.add_argument("--steps", type=int, default=7, help="the figure is their median")
    options = parser.parse_args()
    for name, value in PRESETS[options.preset].items():
        if getattr(options, name, None) is None:
            setattr(options, name, value)
    return options


def make_model(options, torch):
    nn = torch.nn
    functional = nn.functional
    head_width = options.width // options.heads

    def rope_table():
        frequencies = options.rope_theta ** -(torch.arange(0, head_width, 2) / head_width)
        angles = torch.outer(torch.arange(options.sequence), frequencies)
        return angles.cos(), angles.sin()

    def rotate(x, cos, sin):
        low, high = x.float().chunk(2, -1)
        return torch.cat((low * cos - high * sin, high * cos + low * sin), -1).type_as(x)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            heads = options.heads + 2 * options.key_value_heads
            self.norm1 = nn.RMSNorm(options.width, eps=1e-5)
            self.qkv = nn.Linear(options.width, heads * head_width, bias=False)
            self.projection = nn.Linear(options.width, options.width, bias=False)
            self.norm2 = nn.RMSNorm(options.width, eps=1e-5)
            self.gate_up = nn.Linear(options.width, 2 * options.intermediate, bias=False)
            self.down = nn.Linear(options.intermediate, options.width, bias=False)

        def attention(self, x, cos, sin):
            batch, sequence, width = x.shape
            mixed = self.qkv(x).view(batch, sequence, -1, head_width).transpose(1, 2)
            counts = (options.heads, options.key_value_heads, options.key_value_heads)
            q, k, v = mixed.split(counts, 1)
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            out = functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=options.heads != options.key_value_heads
            )
            return self.projection(out.transpose(1, 2).reshape(batch, sequence, width))

        def forward(self, x, cos, sin):
            x = x + self.attention(self.norm1(x), cos, sin)
            gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
            return x + self.down(functional.silu(gate) * up)

    class Llama(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(options.vocabulary, options.width)
            self.blocks = nn.ModuleList(Block() for _ in range(options.layers))
            self.norm = nn.RMSNorm(options.width, eps=1e-5)
            if not options.tied:
                self.head = nn.Linear(options.width, options.vocabulary, bias=False)
            for parameter in self.parameters():
                if parameter.dim() > 1:
                    nn.init.normal_(parameter, std=0.02)
            self.table = None

        def run_block(self, block, x):
            if options.checkpointing == "none":
                return block(x, *self.table)
            return torch.utils.checkpoint.checkpoint(block, x, *self.table, use_reentrant=False)

        def forward(self, tokens, targets):
            if self.table is None:
                self.table = tuple(part.to(tokens.device) for part in rope_table())
            x = self.tokens(tokens)
            for block in self.blocks:
                x = self.run_block(block, x)
            head = self.tokens if options.tied else self.head
            logits = functional.linear(self.norm(x), head.weight)
            return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    return Llama()


def shard(model, torch):
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    settings = {
        "mp_policy": MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False
        ),
        "offload_policy": CPUOffloadPolicy(pin_memory=True),
    }
    for block in model.blocks:
        fully_shard(block, **settings)
    fully_shard(model, **settings)
    return model


def train_step(model, optimizer, batches, torch):
    for number, (tokens, targets) in enumerate(batches):
        # Gradients stay on the GPU until the last micro-batch has added its own.
        model.set_requires_gradient_sync(number + 1 == len(batches))
        (model(tokens, targets) / len(batches)).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def measure(options, torch, model, optimizer, micro_batches, ranks):
    shape = (options.batch, options.sequence)
    batches = [
        tuple(torch.randint(0, options.vocabulary, shape, device="cuda") for _ in range(2))
        for _ in range(micro_batches)
    ]
    seconds = []
    torch.cuda.reset_peak_memory_stats()
    for step in range(options.warmup + options.steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        train_step(model, optimizer, batches, torch)
        torch.cuda.synchronize()
        if step >= options.warmup:
            seconds.append(time.perf_counter() - start)
    tokens = micro_batches * options.batch * options.sequence * ranks
    name = options.preset.replace("-", "_")
    rates = [tokens / step_s for step_s in seconds]
    return {
        "name": f"{name}_bf16_{options.homes}_{tokens}_tokens",
        "value": statistics.median(rates),
        "unit": "tokens/s",
        "value_range": [min(rates), max(rates)],
        "repetitions": len(rates),
        "tokens_per_step": tokens,
        "step_s": statistics.median(seconds),
        "device_peak_bytes": torch.cuda.max_memory_allocated(),
    }


def join_ranks(torch):
    """Makes the group of torchrun's ranks, or of this process alone."""
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29511",
    }.items():
        os.environ.setdefault(name, value)
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    # Gloo is for the norm of gradients, which are in host memory.
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl")


def main():
    options = parse_arguments()
    import torch
    import torch.utils.checkpoint

    if not torch.cuda.is_available():
        sys.exit("pytorch_fsdp2_offload: this PyTorch sees no GPU")
    join_ranks(torch)
    ranks = torch.distributed.get_world_size()
    torch.manual_seed(1234)
    torch.set_num_threads(max(1, options.threads // ranks))
    model = shard(make_model(options, torch), torch)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-5, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    results = []
    for micro_batches in options.micro_batches:
        try:
            results.append(measure(options, torch, model, optimizer, micro_batches, ranks))
        except torch.OutOfMemoryError as error:
            optimizer.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
            print(f"{micro_batches} micro-batches are left out: {error}", file=sys.stderr)
    if torch.distributed.get_rank() == 0:
        print(
            json.dumps(
                {
                    "peer": "pytorch fsdp2 with cpu offload",
                    "torch": torch.__version__,
                    "python": platform.python_version(),
                    "device": torch.cuda.get_device_name(),
                    "ranks": ranks,
                    "threads": options.threads,
                    "checkpointing": options.checkpointing,
                    "parameters": sum(p.numel() for p in model.parameters()),
                    "results": results,
                },
                indent=2,
            )
        )
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
