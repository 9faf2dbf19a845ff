#!/usr/bin/env python3
"""terrace.torch's optimizers give the same bits on a GPU as on the CPU: torch_cuda_test.py PACKAGE_FOLDER

Gradients are given numbers, the same on both. Needs TERRACE_LIBRARY. Without a GPU the test is skipped (77), and says
so. If there is a GPU that PyTorch does not use, the test fails.
"""

import ctypes
import functools
import itertools
import sys
import tempfile
import unittest

PACKAGE = sys.argv.pop(1)
sys.path.insert(0, PACKAGE)

import torch  # noqa: E402

import terrace.torch as tt  # noqa: E402
from terrace import library as lib  # noqa: E402

STEPS, MICRO_BATCHES = 6, 2
SHAPES = ((1100, 1000), (3, 5), (1,), (4097,))  # the first has two chunks


def has_gpu():
    try:
        return ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
    except OSError:
        return False


@functools.cache
def numbers(seed, shape, dtype):
    """Returns random numbers, which are the same on every device."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


class Product(torch.nn.Module):
    """A module whose parameter gets the tensor that is passed to its forward as the gradient."""

    def __init__(self, seed, shape, dtype):
        super().__init__()
        self.weight = torch.nn.Parameter(numbers(seed, shape, dtype).clone())

    def forward(self, gradient):
        return (self.weight * gradient).sum().float()


def make_model(device, dtype):
    types = [dtype, dtype, torch.float32, dtype]
    return torch.nn.ModuleList(Product(i, shape, of) for i, (shape, of) in enumerate(zip(SHAPES, types))).to(device)


class Training:
    def __init__(self, device, dtype, make=tt.AdamW, **form):
        self.device = device
        self.model = make_model(device, dtype)
        if form.get("updates") == "forward":
            form["model"] = self.model
        self.optimizer = make(self.model.parameters(), lr=1e-2, weight_decay=0.1, **form)

    def step(self, step):
        for number in range(MICRO_BATCHES):
            self.optimizer.set_is_last_backward(number == MICRO_BATCHES - 1)
            losses = []
            for i, module in enumerate(self.model):
                gradient = numbers(100 * step + 10 * number + i, module.weight.shape, module.weight.dtype)
                losses.append(module(gradient.to(self.device, non_blocking=True)))
            torch.stack(losses).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def parameters(self):
        self.optimizer.finish_step()
        return [p.detach().cpu() for p in self.model.parameters()]

    def run(self, begin=0, end=STEPS):
        for step in range(begin, end):
            self.step(step)
        return self.parameters()


class OnAGpu(unittest.TestCase):
    def expect_same(self, expected, got):
        for a, b in zip(expected, got, strict=True):
            self.assertTrue(torch.equal(a, b))

    def test_forms(self):
        with tempfile.TemporaryDirectory() as nvme:
            types = (torch.float32, torch.bfloat16, torch.float16)
            places = ({}, {"state": "nvme", "nvme": nvme})
            for dtype, updates, place in itertools.product(types, ("step", "forward", "backward"), places):
                clips = {} if updates == "backward" else {"max_grad_norm": 1.0}
                form = {"updates": updates, **place, **clips}
                with self.subTest(dtype=dtype, **form):
                    expected = Training("cpu", dtype, **form)
                    got = Training("cuda", dtype, **form)
                    self.expect_same(expected.run(), got.run())
                    self.assertEqual(expected.optimizer.grad_norm, got.optimizer.grad_norm)

    def test_rules(self):
        for make in (tt.Lion, tt.SGD):
            self.expect_same(Training("cpu", torch.bfloat16, make).run(), Training("cuda", torch.bfloat16, make).run())

    def test_gradients_that_are_taken(self):
        form = {"take_gradients": True}
        self.expect_same(Training("cpu", torch.float32, **form).run(), Training("cuda", torch.float32, **form).run())

    def test_another_stream(self):
        expected = Training("cpu", torch.bfloat16).run()
        with torch.cuda.stream(torch.cuda.Stream()):
            got = Training("cuda", torch.bfloat16).run()
        self.expect_same(expected, got)

    def test_state(self):
        first = Training("cuda", torch.bfloat16)
        first.run(end=3)
        second = Training("cuda", torch.bfloat16)
        second.model.load_state_dict(first.model.state_dict())
        second.optimizer.load_state_dict(first.optimizer.state_dict())
        third = Training("cuda", torch.bfloat16)
        with tempfile.TemporaryDirectory() as folder:
            first.optimizer.save(folder)
            third.optimizer.load(folder)
        expected = first.run(begin=3)
        self.expect_same(expected, second.run(begin=3))
        self.expect_same(expected, third.run(begin=3))

    def test_a_parameter_that_was_changed(self):
        training = Training("cuda", torch.bfloat16)
        training.step(0)
        with torch.no_grad():
            training.model[0].weight.mul_(0.5)
        with self.assertRaises(lib.ParameterChangedError):
            training.step(1)
        training.optimizer.zero_grad()
        training.optimizer.adopt(training.model[0].weight)
        training.step(1)

    def test_a_pause(self):
        expected = Training("cpu", torch.float32).run()
        training = Training("cuda", torch.float32)
        training.run(end=3)
        with tempfile.TemporaryDirectory() as folder:
            training.optimizer.pause(folder)
            training.optimizer.resume()
        self.expect_same(expected, training.run(begin=3))


if __name__ == "__main__":
    if not torch.cuda.is_available():
        if has_gpu():
            sys.exit("there is a GPU, and this PyTorch does not use it: install one for CUDA")
        print("skipped: there is no GPU here")
        sys.exit(77)
    unittest.main()
