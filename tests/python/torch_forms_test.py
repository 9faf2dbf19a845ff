#!/usr/bin/env python3
"""Every form of terrace.torch's AdamW gives the same bits: torch_forms_test.py PACKAGE_FOLDER

Forms differ in where the state lives, when updates run, the number of threads, and a restart in between. Needs
TERRACE_LIBRARY.
"""

import itertools
import random
import sys
import tempfile
import unittest
from unittest import mock

PACKAGE = sys.argv.pop(1)
sys.path.insert(0, PACKAGE)

import torch  # noqa: E402

import terrace.torch as tt  # noqa: E402
from terrace import library as lib  # noqa: E402
from torch_training import MICRO_BATCHES, STEPS, WIDTH, Training, make_model, ours  # noqa: E402

UPDATES = ("step", "forward", "backward")


class Forms(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.nvme = folder.name

    def forms(self, updates):
        drive = {"state": "nvme", "nvme": self.nvme}
        for place, when, threads in itertools.product(({}, drive), updates, (1, 2)):
            yield {"updates": when, "threads": threads, **place}

    def check_forms(self, dtype, max_grad_norm, arithmetic="torch"):
        # Without take_gradients .grad would be added up in the parameter's type.
        takes = {} if dtype == torch.float32 else {"take_gradients": True}
        fixed = {"arithmetic": arithmetic, "max_grad_norm": max_grad_norm, **takes}
        first = Training(ours(**fixed), dtype)
        expected = first.run()
        forms = list(self.forms(UPDATES[:2] if max_grad_norm else UPDATES))
        if dtype == torch.float32:
            forms += [{"take_gradients": True}, {"take_gradients": True, "updates": "forward"}]
        for form in forms:
            for stop in (None, random.Random(str(sorted(form.items()))).randrange(1, STEPS)):
                with self.subTest(form=form, stop=stop):
                    training = Training(ours(**fixed, **form), dtype)
                    got = training.run(stop=stop)
                    self.assertTrue(all(torch.equal(a, b) for a, b in zip(expected, got, strict=True)))
                    self.assertEqual(training.norms, first.norms)
        return first.norms

    def check_clipping(self, dtype, arithmetic):
        clipped = sum(norm > 1 for norm in self.check_forms(dtype, 1.0, arithmetic))
        self.assertTrue(0 < clipped < STEPS, f"{clipped} of {STEPS} steps are clipped")

    def test_fp32_clipped(self):
        self.check_clipping(torch.float32, "torch")

    def test_fp32_clipped_with_the_arithmetic_of_terrace(self):
        self.check_clipping(torch.float32, "terrace")

    def test_bf16_clipped(self):
        self.check_clipping(torch.bfloat16, "terrace")

    def test_fp32(self):
        self.check_forms(torch.float32, 0)

    def test_bf16(self):
        self.check_forms(torch.bfloat16, 0)

    def test_modules_that_read_their_children(self):
        """Updates run under the forward: attention reads the weights of its output projection, and a layer in
        evaluation reads the weights of all modules within."""
        def outputs(**form):
            torch.manual_seed(4)
            layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, dropout=0, batch_first=True)
            optimizer = tt.AdamW(layer.parameters(), lr=1e-2, state="nvme", nvme=self.nvme,
                                 model=layer if form.get("updates") == "forward" else None, **form)
            x = torch.randn(2, 8, 256, generator=torch.Generator().manual_seed(1))
            results = []
            for _ in range(4):
                layer.train()
                (layer(x) ** 2).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                layer.eval()
                with torch.no_grad():
                    results.append(layer(x))
            return results

        expected = outputs()
        for updates in ("forward", "backward"):
            for a, b in zip(expected, outputs(updates=updates), strict=True):
                self.assertTrue(torch.equal(a, b))


class UnderTheBackward(unittest.TestCase):
    """updates="backward": a parameter is updated when its gradient is complete."""

    @staticmethod
    def batch(number):
        return torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(number))

    def train(self, updates, windows, say=True, model=None, forward=None):
        model = model or make_model()
        optimizer = tt.AdamW(model.parameters(), lr=1e-2, updates=updates)
        number = 0
        for window in windows:
            for i in range(window):
                if say:
                    optimizer.set_is_last_backward(i == window - 1)
                ((forward or model)(self.batch(number)) ** 2).mean().backward()
                number += 1
            optimizer.step()
            optimizer.zero_grad()
        return [parameter.detach() for parameter in model.parameters()]

    def check(self, *arguments, **more):
        expected = self.train("step", *arguments, **more)
        got = self.train("backward", *arguments, **more)
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(expected, got, strict=True)))

    def test_updates_run_before_step(self):
        model = make_model()
        optimizer = tt.AdamW(model.parameters(), lr=1e-2, updates="backward")
        for number in range(2):
            before = [parameter.detach().clone() for parameter in model.parameters()]
            (model(self.batch(number)) ** 2).mean().backward()
            if number == 0:  # it is not known yet how often a gradient comes
                self.assertTrue(all(torch.equal(a, b) for a, b in zip(before, model.parameters())))
            else:
                optimizer._session.wait_parameter(0)
                self.assertFalse(torch.equal(before[0], next(model.parameters())))
            optimizer.step()
            optimizer.zero_grad()

    def test_windows_that_differ(self):
        self.check([3, 1, 4, 2, 4, 1])
        self.check([4, 4, 4, 2, 4], say=False)  # an epoch's last window is shorter

    def test_a_function_says_it(self):
        model = make_model()
        optimizer = tt.AdamW(model.parameters(), lr=1e-2, updates="backward")
        place = {"last": False}
        optimizer.set_is_last_backward(lambda: place["last"])
        number = 0
        for _ in range(3):
            for i in range(MICRO_BATCHES):
                place["last"] = i == MICRO_BATCHES - 1
                (model(self.batch(number)) ** 2).mean().backward()
                number += 1
            optimizer.step()
            optimizer.zero_grad()
        expected = self.train("step", [MICRO_BATCHES] * 3)
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(expected, model.parameters(), strict=True)))

    def test_a_window_that_is_longer_is_refused(self):
        model = make_model()
        optimizer = tt.AdamW(model.parameters(), updates="backward")
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(2):
                model(self.batch(0)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            optimizer.save(folder + "/state")
            model(self.batch(0)).sum().backward()
            with self.assertRaisesRegex(lib.OrderError, "set_is_last_backward"):
                model(self.batch(1)).sum().backward()
            for use in (optimizer.step, lambda: model(self.batch(1)).sum().backward()):
                with self.assertRaisesRegex(lib.FailedSessionError, r"optimizer\.load\(\)"):
                    use()
            optimizer.zero_grad()
            optimizer.load(folder + "/state")
            model(self.batch(0)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    def test_gradients_that_come_in_parts(self):
        """A tied weight under reentrant checkpointing gets a gradient for each part of the graph."""
        class Tied(torch.nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(7)
                self.weight = torch.nn.Parameter(torch.randn(WIDTH, WIDTH) / 8)

            def forward(self, x):
                x = x.requires_grad_()
                for _ in range(2):
                    x = torch.utils.checkpoint.checkpoint(lambda y: torch.tanh(y @ self.weight), x, use_reentrant=True)
                return x @ self.weight.t()

        calls = []
        model = Tied()
        model.weight.register_post_accumulate_grad_hook(lambda p: calls.append(1))
        model(self.batch(0)).sum().backward()
        self.assertGreater(len(calls), 1)
        expected = self.train("step", [2, 3, 2], model=Tied())
        got = self.train("backward", [2, 3, 2], model=Tied())
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(expected, got, strict=True)))

    def test_parameters_that_get_no_gradient_at_times(self):
        class Halves(torch.nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(8)
                self.parts = torch.nn.ModuleList([torch.nn.Linear(WIDTH, 8) for _ in range(3)])
                self.calls = 0

            def forward(self, x):
                self.calls += 1
                return self.parts[0](x) + self.parts[1 + self.calls % 2](x)

        expected = self.train("step", [1] * 7, model=Halves())
        got = self.train("backward", [1] * 7, model=Halves())
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(expected, got, strict=True)))

    def test_a_weight_that_is_read_behind_its_gradient_is_found(self):
        """The backward may read a weight after its gradient was complete, in a use that gives it no gradient."""
        first, weight = torch.nn.Parameter(torch.ones(4, 4)), torch.nn.Parameter(torch.ones(4, 4))
        optimizer = tt.AdamW([first, weight], updates="backward")
        x = torch.ones(2, 4)
        for _ in range(2):
            ((x @ first) @ weight).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            (((x @ first) @ weight.detach()) @ weight).sum().backward()

    def test_refusals(self):
        model = make_model()
        with self.assertRaisesRegex(lib.ArgumentError, "updates='forward'"):
            tt.AdamW(model.parameters(), updates="backward", max_grad_norm=1.0)
        with self.assertRaisesRegex(lib.ArgumentError, "take_gradients=False"):
            tt.AdamW(model.parameters(), updates="backward", take_gradients=False)
        optimizer = tt.AdamW(model.parameters(), updates="backward")
        for _ in range(2):
            model(self.batch(0)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        model(self.batch(0)).sum().backward()
        for use in (optimizer.zero_grad, optimizer.state_dict, lambda: optimizer.save("/nowhere/state")):
            with self.assertRaisesRegex(lib.OrderError, r"optimizer\.step\(\) first"):
                use()
        optimizer.step()
        optimizer.zero_grad()
        model(self.batch(0)).sum().backward()
        optimizer.param_groups[0]["lr"] = 0.5
        with self.assertRaisesRegex(lib.OrderError, "lr was changed"):
            optimizer.step()

    def test_a_gradient_that_is_not_finite(self):
        """If it is found before any update, nothing changes. After an update the state must be loaded."""
        model = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False))
        optimizer = tt.AdamW(model.parameters(), updates="backward")
        x = torch.ones(2, 4)
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(2):
                model(x).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            optimizer.save(folder + "/state")
            expected = [parameter.detach().clone() for parameter in model.parameters()]
            (model(x) * float("inf")).sum().backward()
            with self.assertRaisesRegex(lib.NotFiniteError, "nothing was updated"):
                optimizer.step()
            optimizer.zero_grad()
            self.assertTrue(all(torch.equal(a, b) for a, b in zip(expected, model.parameters())))

            def spoil(gradient):
                optimizer._session.wait_parameter(1)
                return gradient * float("nan")

            hook = model[0].weight.register_hook(spoil)
            model(x).sum().backward()
            hook.remove()
            with self.assertRaisesRegex(lib.NotFiniteError, r"already updated.*optimizer\.load\(\)"):
                optimizer.step()
            optimizer.zero_grad()
            with self.assertRaisesRegex(lib.FailedSessionError, r"optimizer\.load\(\)"):
                model(x).sum().backward()
            optimizer.load(folder + "/state")
            self.assertTrue(all(torch.equal(a, b) for a, b in zip(expected, model.parameters())))

    def test_gradient_that_cannot_be_added_fails_the_step(self):
        """This is as if a GPU failed while the gradient is copied. step() must not leave its tensor out."""
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
        optimizer = tt.AdamW(model.parameters(), updates="backward")
        x = torch.ones(2, 4)
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        with tempfile.TemporaryDirectory() as folder:
            optimizer.save(folder + "/state")
            expected = [p.detach().clone() for p in model.parameters()]
            add = optimizer._session.add_gradient

            def fail_at_the_first(number, buffer, owner):
                if number == 0:
                    raise lib.UnsuitableSystemError("the GPU has failed")
                add(number, buffer)

            with mock.patch.object(optimizer._session, "add_gradient", fail_at_the_first):
                with self.assertRaisesRegex(lib.UnsuitableSystemError, "GPU has failed"):
                    model(x).sum().backward()
            with self.assertRaisesRegex(lib.FailedSessionError, r"optimizer\.load\(\)"):
                optimizer.step()
            optimizer.load(folder + "/state")
            self.assertTrue(all(torch.equal(a, b) for a, b in zip(expected, model.parameters())))
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            self.assertFalse(any(torch.equal(a, b) for a, b in zip(expected, model.parameters())))


if __name__ == "__main__":
    unittest.main(verbosity=1)
