#!/usr/bin/env python3
"""Trains a llama that Terrace moves, on drives alone, and reports the peak memory of the process.

    TERRACE_LIBRARY=build/release/runtime/capi/libterrace.so.1 PYTHONPATH=python bench/torch_offload.py --nvme DIRECTORY

The model is made on the meta device and initialised tensor by tensor, trained, saved by save_pretrained(), and loaded
again; then one more step of both is compared. Prints JSON: for each phase its seconds and the peak of resident memory
so far (VmHWM), in MiB, beside the budget and what an empty process of torch has. --small is a model of 3 layers.
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time

import torch
import transformers

import terrace.torch as tt

MIB = 1024 * 1024


def peak_mib(pid="self"):
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) // 1024 for line in status if line.startswith("VmHWM"))


def empty_process_mib():
    """Returns the memory that importing the packages takes, before there is any model."""
    program = ("import torch, transformers\nfrom transformers.models.llama import modeling_llama\n"
               "print(next(l.split()[1] for l in open('/proc/self/status') if l.startswith('VmHWM')))")
    told = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    return int(told) // 1024


def initialize(name, tensor):
    if tensor.dim() == 1:
        tensor.fill_(1)
    else:
        tensor.normal_(0, 0.02, generator=torch.Generator().manual_seed(sum(map(ord, name))))


class Run:
    def __init__(self, options, directory):
        self.options, self.directory = options, directory
        self.phases = []
        self.tiers = {"nvme": directory, "host_memory": options.host_memory, "parameters": "nvme",
                      "gradients": "nvme", "optimizer": "nvme", "threads": options.threads,
                      "activations": options.activations}

    def phase(self, name, work):
        begin = time.perf_counter()
        result = work()
        self.phases.append({"phase": name, "seconds": round(time.perf_counter() - begin, 2), "peak_mib": peak_mib()})
        print(json.dumps(self.phases[-1]), file=sys.stderr, flush=True)
        return result

    def make(self):
        options = self.options
        config = transformers.LlamaConfig(
            vocab_size=options.vocabulary, hidden_size=options.width, intermediate_size=4 * options.width,
            num_hidden_layers=options.layers, num_attention_heads=options.width // 64,
            num_key_value_heads=options.width // 64, max_position_embeddings=256, tie_word_embeddings=False)
        with tt.parameters_on_meta():
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=getattr(torch, options.dtype))
        return tt.offload(model, initialize=initialize, **self.tiers)

    def optimizer(self, model):
        return tt.AdamW(model.parameters(), lr=1e-4, max_grad_norm=1.0)

    def step(self, model, optimizer, number):
        ids = torch.randint(0, self.options.vocabulary, (1, self.options.tokens),
                            generator=torch.Generator().manual_seed(number))
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    def evaluate(self, model):
        ids = torch.arange(self.options.tokens)[None] % self.options.vocabulary
        with torch.no_grad():
            return model(input_ids=ids, labels=ids).loss.item()

    def run(self):
        model = self.phase("make and initialise", self.make)
        parameters = sum(p.numel() for p in model.parameters())
        optimizer = self.optimizer(model)
        losses = [self.phase(f"step {i}", lambda: self.step(model, optimizer, i)) for i in range(self.options.steps)]
        trained = self.phase("evaluate", lambda: self.evaluate(model))
        saved = os.path.join(self.directory, "saved")
        self.phase("save_pretrained", lambda: model.save_pretrained(saved))
        ledger = optimizer.ledger()
        del model, optimizer
        gc.collect()
        model = self.phase("load_pretrained", lambda: tt.load_pretrained(saved, **self.tiers))
        loaded = self.phase("evaluate what was loaded", lambda: self.evaluate(model))
        assert loaded == trained, (loaded, trained)
        return {"parameters": parameters, "losses": losses, "loss_trained": trained, "loss_loaded": loaded,
                "phases": self.phases, "peak_mib": peak_mib(), "ledger": ledger}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--small", action="store_true", help="3 layers of width 64")
    parser.add_argument("--nvme", help="directory on the drive")
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--host-memory", default="4GiB")
    parser.add_argument("--activations", choices=("host", "nvme", "auto"))
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    options = parser.parse_args()
    if options.small:
        options.width, options.layers, options.vocabulary, options.tokens = 64, 3, 256, 16
        options.host_memory = "64MiB"
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    empty = empty_process_mib()
    with tempfile.TemporaryDirectory(dir=options.nvme) as directory:
        result = Run(options, directory).run()
    result.update({"empty_process_mib": empty, "host_memory": options.host_memory, "dtype": options.dtype,
                   "layers": options.layers, "width": options.width, "tokens": options.tokens,
                   "torch": torch.__version__, "transformers": transformers.__version__})
    print(json.dumps(result, indent=1))


main()
