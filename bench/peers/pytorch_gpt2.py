#!/usr/bin/env python3
"""Trains GPT-2 124M with PyTorch on the CPU and prints tokens per second as JSON.

The peer of `terrace train --model gpt2-124m --micro-batch-size 4 --sequence-length 512`: the same
shapes, bytes of text as tokens, clipping to norm 1 and AdamW, written as plain eager modules. Not
part of the build; needs only PyTorch. The thread count comes from --threads; malloc is tuned as
PyTorch's own guides advise (memory that is freed is kept), by starting the program again with the
settings in its environment unless --malloc default is given.
"""

import argparse
import contextlib
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path

TUNED_MALLOC = {
    "MALLOC_TRIM_THRESHOLD_": "100000000000",
    "MALLOC_MMAP_THRESHOLD_": "100000000000",
}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="a text file; bytes are tokens")
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--malloc", choices=["tuned", "default"], default="tuned")
    parser.add_argument("--optimizer", choices=["foreach", "fused"], default="foreach")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=512)
    parser.add_argument("--warmup", type=int, default=2, help="steps that are not counted")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--vocabulary", type=int, default=50257)
    parser.add_argument("--positions", type=int, default=1024)
    return parser.parse_args()


def restart_with_environment(options):
    wanted = {"OMP_NUM_THREADS": str(options.threads)}
    if options.malloc == "tuned":
        wanted |= TUNED_MALLOC
    if all(os.environ.get(name) == value for name, value in wanted.items()):
        return
    os.environ.update(wanted)
    os.execv(sys.executable, [sys.executable, *sys.argv])


def make_model(options, torch):
    nn = torch.nn
    functional = nn.functional

    class Block(nn.Module):
        def __init__(self, width, heads):
            super().__init__()
            self.heads = heads
            self.norm1 = nn.LayerNorm(width)
            self.qkv = nn.Linear(width, 3 * width)
            self.projection = nn.Linear(width, width)
            self.norm2 = nn.LayerNorm(width)
            self.up = nn.Linear(width, 4 * width)
            self.down = nn.Linear(4 * width, width)

        def attention(self, x):
            batch, sequence, width = x.shape
            heads = (batch, sequence, self.heads, width // self.heads)
            q, k, v = (part.view(heads).transpose(1, 2) for part in self.qkv(x).split(width, -1))
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.projection(mixed.transpose(1, 2).reshape(batch, sequence, width))

        def forward(self, x):
            x = x + self.attention(self.norm1(x))
            activated = functional.gelu(self.up(self.norm2(x)), approximate="tanh")
            return x + self.down(activated)

    class Gpt2(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(options.vocabulary, options.width)
            self.positions = nn.Embedding(options.positions, options.width)
            self.blocks = nn.ModuleList(
                Block(options.width, options.heads) for _ in range(options.layers)
            )
            self.norm = nn.LayerNorm(options.width)
            for parameter in self.parameters():
                if parameter.dim() > 1:
                    nn.init.normal_(parameter, std=0.02)

        def forward(self, tokens, targets):
            x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
            for block in self.blocks:
                x = block(x)
            logits = functional.linear(self.norm(x), self.tokens.weight)
            return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    return Gpt2()


def read_batches(options, torch):
    """Yields (tokens, targets), consecutive pieces of the text, from its start again at its end."""
    text = Path(options.data).read_bytes()
    span = options.batch * options.sequence + 1
    if len(text) < span:
        sys.exit(f"{options.data} has {len(text)} bytes, one batch needs {span}")
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    begin = 0
    while True:
        if begin + span > len(data):
            begin = 0
        piece = data[begin : begin + span]
        shape = (options.batch, options.sequence)
        yield piece[:-1].view(shape), piece[1:].view(shape)
        begin += span - 1


def train(options, torch):
    torch.manual_seed(1234)
    torch.set_num_threads(options.threads)
    model = make_model(options, torch)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}],
        lr=3e-4,
        betas=(0.9, 0.95),
        foreach=options.optimizer == "foreach",
        fused=options.optimizer == "fused",
    )
    batches = read_batches(options, torch)
    seconds, processor_seconds, losses = [], [], []
    for step in range(options.warmup + options.steps):
        tokens, targets = next(batches)
        start, processor_start = time.perf_counter(), time.process_time()
        if options.precision == "bf16":
            precision = torch.autocast("cpu", dtype=torch.bfloat16)
        else:
            precision = contextlib.nullcontext()
        with precision:
            loss = model(tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        if step >= options.warmup:
            seconds.append(time.perf_counter() - start)
            processor_seconds.append(time.process_time() - processor_start)
    return model, seconds, processor_seconds, losses


def main():
    options = parse_arguments()
    restart_with_environment(options)
    import torch

    model, seconds, processor_seconds, losses = train(options, torch)
    median = statistics.median(seconds)
    processor_median = statistics.median(processor_seconds)
    tokens = options.batch * options.sequence
    print(
        json.dumps(
            {
                "peer": "pytorch",
                "torch": torch.__version__,
                "python": platform.python_version(),
                "precision": options.precision,
                "malloc": options.malloc,
                "optimizer": options.optimizer,
                "threads": options.threads,
                "parameters": sum(p.numel() for p in model.parameters()),
                "batch": options.batch,
                "sequence": options.sequence,
                "step_s": [round(s, 4) for s in seconds],
                "step_s_median": round(median, 4),
                "tokens_per_s": round(tokens / median, 1),
                # The figures as if no thread had waited for a processor. Threads that spin count as
                # working: set OMP_WAIT_POLICY=passive.
                "processor_s_median": round(processor_median, 4),
                "tokens_per_s_by_processor": round(
                    tokens * options.threads / processor_median, 1
                ),
                "losses": [round(value, 4) for value in losses],
            }
        )
    )


if __name__ == "__main__":
    main()
