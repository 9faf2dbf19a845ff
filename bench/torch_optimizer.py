#!/usr/bin/env python3
"""Times a step of terrace.torch.AdamW beside torch.optim.AdamW, on gradients and parameters of gpt2-124m's shapes.

    TERRACE_LIBRARY=build/release/runtime/capi/libterrace.so.1 PYTHONPATH=python bench/torch_optimizer.py [--small]

A step is clipping and update of gradients in .grad; ours has the time for taking them too, which a training has in
its backward. Forms are run in turn; prints JSON with the median of each, and its ratio to torch's loop and to its
fused form.
"""

import argparse
import json
import os
import statistics
import tempfile
import time

import torch

import terrace.torch as tt


def shapes_of(layers, width, vocabulary, positions):
    block = [(width,), (width,), (3 * width, width), (3 * width,), (width, width), (width,), (width,), (width,),
             (4 * width, width), (4 * width,), (width, 4 * width), (width,)]
    return [(vocabulary, width), (positions, width)] + block * layers + [(width,), (width,)]


class Form:
    def __init__(self, name, shapes, make):
        generator = torch.Generator().manual_seed(1)
        self.name, self.seconds = name, []
        self.parameters = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
        self.gradients = [torch.randn(shape, generator=generator) * 1e-2 for shape in shapes]
        self.optimizer = make(self.parameters)

    def step(self):
        for parameter, gradient in zip(self.parameters, self.gradients):
            parameter.grad = gradient.clone()
        begin = time.perf_counter()
        if not isinstance(self.optimizer, tt.AdamW):
            torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.seconds.append(time.perf_counter() - begin)
        self.optimizer.zero_grad()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--small", action="store_true", help="2 layers of width 64, 3 steps")
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--nvme", help="directory on the drive for the form whose state lives there")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    shapes = shapes_of(2, 64, 256, 64) if options.small else shapes_of(12, 768, 50257, 1024)
    steps = 3 if options.small else options.steps
    ours = {"lr": 1e-4, "max_grad_norm": 1.0, "threads": options.threads, "take_gradients": False}
    with tempfile.TemporaryDirectory(dir=options.nvme) as drive:
        makers = {
            "torch loop": lambda p: torch.optim.AdamW(p, lr=1e-4, foreach=False, fused=False),
            "torch fused": lambda p: torch.optim.AdamW(p, lr=1e-4, fused=True),
            "terrace, arithmetic torch": lambda p: tt.AdamW(p, arithmetic="torch", **ours),
            "terrace, arithmetic terrace": lambda p: tt.AdamW(p, arithmetic="terrace", **ours),
            "terrace on nvme": lambda p: tt.AdamW(p, arithmetic="terrace", state="nvme", nvme=drive, **ours),
        }
        forms = [Form(name, shapes, make) for name, make in makers.items()]
        for _ in range(steps + 1):
            for form in forms:
                form.step()
        medians = {form.name: statistics.median(form.seconds[1:]) for form in forms}
        results = [{"name": name, "seconds": seconds, "of_torch_loop": seconds / medians["torch loop"],
                    "of_torch_fused": seconds / medians["torch fused"]} for name, seconds in medians.items()]
        del forms
    print(json.dumps({"schema": "terrace.torch_optimizer/1", "elements": sum(torch.Size(s).numel() for s in shapes),
                      "threads": options.threads, "steps": steps, "torch": torch.__version__, "results": results},
                     indent=1))


if __name__ == "__main__":
    main()
