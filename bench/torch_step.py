#!/usr/bin/env python3
"""Times whole training steps of a gpt2 of transformers: terrace.torch.AdamW beside torch's and ZeRO-Offload.

    TERRACE_LIBRARY=build/release/runtime/capi/libterrace.so.1 PYTHONPATH=python bench/torch_step.py [--small]

Forward, backward, clipping and update of fp32 parameters, each form with a model of its own, always on the same tokens.
Ours update in step(), under the next forward or under the backward; so each form makes several steps one after the
other, and the last one's update is waited for. Under the backward nothing is clipped, nor is it in the form of torch
that this one is compared with. Forms take turns; prints JSON with the quartiles of the seconds of a step, and the
ratio of its median to that of torch's loop and of its fused form. Where deepspeed can be imported, its ZeRO-Offload
(stage 2, on the CPU) is among them. Fails where a form's losses are not those of torch's loop.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import socket
import statistics
import sys
import tempfile
import time

import torch
import transformers

import terrace.torch as tt


class Form:
    """A model with its optimizer. `train` makes a step and returns its loss; `finish` waits for what is left of it."""

    def __init__(self, train, finish=lambda: None, clips=True):
        self.train, self.finish, self.clips = train, finish, clips
        self.seconds, self.losses = [], []

    def run(self, ids, steps):
        """Makes `steps` steps after a first one, which is not counted: the caches hold another form's model then."""
        for number in range(steps + 1):
            begin = time.perf_counter()
            self.losses.append(self.train(ids))
            if number == steps:
                self.finish()
            if number > 0:
                self.seconds.append(time.perf_counter() - begin)

    def result(self, loop, fused):
        low, median, high = statistics.quantiles(self.seconds, n=4)
        return {"seconds": median, "seconds_quartiles": [low, high], "of_torch_loop": median / loop,
                "of_torch_fused": median / fused, "first_loss": self.losses[0], "last_loss": self.losses[-1]}


def model_of(options):
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=options.vocabulary, n_embd=options.width, n_layer=options.layers,
                                     n_head=max(1, options.width // 64), n_positions=max(options.tokens, 64),
                                     resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    config.loss_type = "ForCausalLMLoss"
    return transformers.GPT2LMHeadModel(config)


def torch_form(options, fused, clips=True):
    model = model_of(options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False, fused=fused)

    def train(ids):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        if clips:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return Form(train, clips=clips)


def terrace_form(options, arithmetic, updates="step", **state):
    model = model_of(options)
    clips = updates != "backward"
    optimizer = tt.AdamW(model.parameters(), lr=1e-4, max_grad_norm=1.0 if clips else 0.0, arithmetic=arithmetic,
                         updates=updates, model=model if updates == "forward" else None, threads=options.threads, **state)

    def train(ids):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return Form(train, optimizer.finish_step, clips)


def deepspeed_form(options):
    os.environ.update(DS_ACCELERATOR="cpu", MASTER_ADDR="127.0.0.1", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0",
                      LOCAL_SIZE="1")
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        os.environ["MASTER_PORT"] = str(any_port.getsockname()[1])
    import deepspeed
    model = model_of(options)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config={
        "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "gradient_clipping": 1.0,
        "steps_per_print": 10**9,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01, "torch_adam": False}},
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": False}}})
    torch.set_num_threads(options.threads)

    def train(ids):
        loss = engine(input_ids=ids, labels=ids).loss
        engine.backward(loss)
        engine.step()
        return loss.item()

    return Form(train)


def deepspeed_version():
    return sys.modules["deepspeed"].__version__ if "deepspeed" in sys.modules else None


# The forms of torch that others are compared with: with clipping and without.
LOOP = "torch loop"
FUSED = {True: "torch fused", False: "torch fused, no clipping"}


def makers_of(options, drive):
    """Returns, by the name of each form, the function that makes it."""
    makers = {
        LOOP: lambda: torch_form(options, fused=False),
        FUSED[True]: lambda: torch_form(options, fused=True),
        FUSED[False]: lambda: torch_form(options, fused=True, clips=False),
        "terrace, arithmetic torch": lambda: terrace_form(options, "torch"),
        "terrace, arithmetic terrace": lambda: terrace_form(options, "terrace"),
        "terrace, under the next forward": lambda: terrace_form(options, "terrace", updates="forward"),
        "terrace, under the backward": lambda: terrace_form(options, "terrace", updates="backward")}
    if options.nvme:
        makers["terrace on nvme"] = lambda: terrace_form(options, "terrace", state="nvme", nvme=drive)
    if importlib.util.find_spec("deepspeed"):
        makers["deepspeed zero-offload"] = lambda: deepspeed_form(options)
    return makers


def measure(options, drive):
    forms = {name: make() for name, make in makers_of(options, drive).items()
             if not options.only or name in (LOOP, *FUSED.values()) or options.only in name}
    ids = torch.randint(0, options.vocabulary, (1, options.tokens), generator=torch.Generator().manual_seed(1))
    for _ in range(options.rounds):
        for form in forms.values():
            form.run(ids, options.steps)
    check_losses(forms)
    medians = {name: statistics.median(form.seconds) for name, form in forms.items()}
    return [{"name": name, **form.result(medians[LOOP], medians[FUSED[form.clips]])} for name, form in forms.items()]


def check_losses(forms):
    for name, form in forms.items():
        expected = forms[LOOP if form.clips else FUSED[False]].losses
        assert expected[-1] < expected[0], "the loss of torch's loop did not fall"
        for number, (loss, of_loop) in enumerate(zip(form.losses, expected, strict=True)):
            assert abs(loss - of_loop) < 1e-3 * of_loop, f"{name}: loss {loss} of step {number}, {of_loop} in the loop"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--small", action="store_true", help="2 layers of width 64, 2 rounds of 2 steps")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--vocabulary", type=int, default=50257)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--steps", type=int, default=5, help="of a form in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--only", help="beside torch's, forms whose name has this in it")
    parser.add_argument("--nvme", help="directory on the drive, for a form whose state lives there")
    options = parser.parse_args()
    if options.small:
        options.layers, options.width, options.vocabulary, options.tokens = 2, 64, 256, 16
        options.steps, options.rounds = 2, 2
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    # DeepSpeed prints messages about itself on standard output.
    with tempfile.TemporaryDirectory(dir=options.nvme) as drive, contextlib.redirect_stdout(sys.stderr):
        results = measure(options, drive)
    print(json.dumps({"schema": "terrace.torch_step/1", "layers": options.layers, "width": options.width,
                      "vocabulary": options.vocabulary, "tokens": options.tokens, "threads": options.threads,
                      "steps": options.steps, "rounds": options.rounds, "torch": torch.__version__,
                      "transformers": transformers.__version__, "deepspeed": deepspeed_version(),
                      "results": results}, indent=1))


if __name__ == "__main__":
    main()
