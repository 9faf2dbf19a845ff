#!/usr/bin/env python3
"""Forwards wait for updates that run under them: torch_waits_test.py PACKAGE_FOLDER

updates="forward" has updates here that last until somebody waits for them. Needs TERRACE_LIBRARY.
"""

import sys
import tempfile
import unittest
from unittest import mock

PACKAGE = sys.argv.pop(1)
sys.path.insert(0, PACKAGE)

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import terrace.torch as tt  # noqa: E402
import terrace.torch.optimizer  # noqa: E402
from terrace import library as lib  # noqa: E402

WIDTH = 16
terrace.torch.optimizer.cores_are_busy = lambda: False


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.b(torch.tanh(self.a(x)))


class Net(torch.nn.Module):
    """A model that in training reads `head` outside of that module's forward, and `norm` before its forward. It reads
    `table` by its rows."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.table = torch.nn.Embedding(8, WIDTH)
        self.blocks = torch.nn.ModuleList([Block() for _ in range(3)])
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.head = torch.nn.Linear(WIDTH, 4, bias=False)

    def forward(self, x):
        penalty = self.norm.weight.square().sum() if self.training else 0.0
        x = x + self.table.weight[:len(x)]
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return (x @ self.head.weight.t() if self.training else self.head(x)) + penalty


class LateUpdates:
    """Stands between an optimizer and its session. Each tensor's update takes effect only when somebody waits for that
    tensor. Whoever does not wait reads NaN."""

    def __init__(self, optimizer):
        optimizer._ready_session()
        self.session = optimizer._session
        self.waited = set()
        self.real_begin, self.real_wait = self.session.begin_step, self.session.wait_parameter
        self.real_end = self.session.end_step
        self.parameters = {number: p for group in optimizer.param_groups for p in group["params"]
                           for number in [optimizer._tensors[id(p)]]}
        self.new = {}
        for name in ("begin_step", "wait_parameter", "end_step"):
            mock.patch.object(self.session, name, getattr(self, name)).start()

    def begin_step(self, *arguments, **more):
        self.real_begin(*arguments, **more)
        old = {}
        for number, parameter in self.parameters.items():
            self.real_wait(number)
            old[number], self.new[number] = parameter.data, parameter.detach().clone()
            parameter.data.fill_(float("nan"))

    def wait_parameter(self, number):
        if number in self.new:
            self.parameters[number].data.copy_(self.new.pop(number))

    def end_step(self):
        for number in list(self.new):
            self.wait_parameter(number)
        return self.real_end()


class Waits(unittest.TestCase):
    def setUp(self):
        self.addCleanup(mock.patch.stopall)
        torch._dynamo.reset()

    def losses(self, model, called=None, updates="forward", given=None, steps=5, before=None, after=None):
        called = model if called is None else called
        form = {"updates": "forward", "model": called if given is None else given} if updates == "forward" else {}
        optimizer = tt.AdamW(model.parameters(), lr=1e-2, **form)
        if updates == "forward":
            LateUpdates(optimizer)
        losses = []
        for step in range(steps):
            x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(step))
            more = before(model) if before else 0.0
            loss = called(x).square().mean() + more + (after(model) if after else 0.0)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        optimizer.finish_step()
        return losses

    def check(self, make=Net, wrap=lambda model: model):
        expected = self.losses(make(), updates="step")
        model = make()
        got = self.losses(model, wrap(model))
        for a, b in zip(expected, got, strict=True):
            self.assertLess(abs(a - b), 1e-5 * abs(a), (expected, got))

    def test_weights_that_are_read_elsewhere(self):
        self.check()

    def test_other_ways_through_a_model(self):
        """Evaluation takes another way through the model, and reads parameters that training has not waited for."""
        model = Net()
        optimizer = tt.AdamW(model.parameters(), lr=1e-2, updates="forward", model=model)
        LateUpdates(optimizer)
        for step in range(4):
            x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(step))
            model.train(step % 2 == 0)
            output = model(x)
            self.assertTrue(bool(output.isfinite().all()), step)
            output.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                self.assertTrue(bool(model.blocks[0](x).isfinite().all()))  # without the model's forward
                self.assertTrue(bool(model.eval()(x).isfinite().all()))

    def test_a_forward_that_fails(self):
        model = Net()
        optimizer = tt.AdamW(model.parameters(), lr=1e-2, updates="forward", model=model)
        LateUpdates(optimizer)
        x = torch.ones(4, WIDTH)
        for error in (RuntimeError, KeyboardInterrupt):
            with mock.patch.object(model.blocks[1], "forward", side_effect=error), self.assertRaises(error):
                model(x)
            for _ in range(2):
                output = model(x)
                self.assertTrue(bool(output.isfinite().all()))
                output.square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        self.assertIsNone(torch.utils._python_dispatch._get_current_dispatch_mode())

    def test_compiled_models(self):
        """Compiled models wait, also if the graph was made for models without waits."""
        self.check(wrap=lambda model: torch.compile(model, backend="eager"))
        torch._dynamo.reset()
        for _ in range(3):
            model = Net()
            self.losses(model, torch.compile(model, backend="eager"), updates="step")
        self.check(wrap=lambda model: torch.compile(model, backend="eager"))

    def test_compiled_in_place(self):
        def compile_all(model):
            model.compile(backend="eager")
            return model

        def compile_blocks(model):
            for block in model.blocks:
                block.compile(backend="eager")
            return model

        def compile_inner(model):
            for number, block in enumerate(model.blocks):
                model.blocks[number] = torch.compile(block, backend="eager")
            return model

        for wrap in (compile_all, compile_blocks, compile_inner):
            with self.subTest(wrap=wrap.__name__):
                torch._dynamo.reset()
                for _ in range(3):
                    self.losses(wrap(Net()), updates="step")
                self.check(wrap=wrap)

    def test_blocks_that_are_compiled_later(self):
        model = Net()
        optimizer = tt.AdamW(model.parameters(), lr=1e-2, updates="forward", model=model)
        LateUpdates(optimizer)
        for step in range(4):
            if step == 2:
                for block in model.blocks:
                    block.compile(backend="eager")
            loss = model(torch.ones(4, WIDTH)).square().mean()
            self.assertTrue(bool(loss.isfinite()))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    def test_a_graph_that_nobody_knows_is_refused(self):
        """model= is not the model that is called, and the graph was made for models without waits."""
        for _ in range(3):
            other = Net()
            self.losses(other, torch.compile(other, backend="eager"), updates="step")
        model = Net()
        with self.assertRaisesRegex(lib.OrderError, "did not wait.*finish_step"):
            self.losses(model, torch.compile(model, backend="eager"), given=model)

    def test_weights_that_a_loss_reads(self):
        """After the model's forward the weights are updated. Before it, torch detects that they were not."""
        class Headless(Net):
            def forward(self, x):
                return self.norm(self.blocks[0](x))

        def penalty(model):
            return model.head.weight.square().sum()

        expected = self.losses(Headless(), updates="step", after=penalty)
        self.assertEqual(self.losses(Headless(), after=penalty), expected)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            self.losses(Headless(), before=penalty)


class Cores(unittest.TestCase):
    def test_updates_that_would_take_cores_from_the_forward(self):
        """step() waits for such updates, unless the updates wait for a drive."""
        with tempfile.TemporaryDirectory() as folder:
            for form, busy, waits in (({}, True, True), ({}, False, False),
                                      ({"state": "nvme", "nvme": folder}, True, False)):
                model = Net()
                optimizer = tt.AdamW(model.parameters(), updates="forward", model=model, **form)
                with mock.patch.object(terrace.torch.optimizer, "cores_are_busy", lambda busy=busy: busy):
                    model(torch.ones(4, WIDTH)).square().mean().backward()
                    optimizer.step()
                    self.assertEqual(optimizer._is_stepping, not waits)
                    optimizer.finish_step()
                del optimizer


class Fused(unittest.TestCase):
    def test_a_head_that_a_loss_reads(self):
        """A loss reads the head's weight, as fused cross entropies do, with updates on another thread."""
        class Language(torch.nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(1)
                self.wte, self.head = torch.nn.Embedding(4000, 64), torch.nn.Linear(64, 4000, bias=False)

            def forward(self, x):
                return F.cross_entropy((self.wte(x) @ self.head.weight.t()).flatten(0, 1), x.flatten())

        def losses(**form):
            model = Language()
            optimizer = tt.AdamW(model.parameters(), lr=1e-2, **form, model=model)
            out = []
            for step in range(6):
                x = torch.randint(0, 4000, (2, 32), generator=torch.Generator().manual_seed(step))
                loss = model(x)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                out.append(loss.item())
            return out

        self.assertEqual(losses(), losses(updates="forward"))


if __name__ == "__main__":
    unittest.main(verbosity=1)
