#!/usr/bin/env python3
"""Other code works on gradients between backward and step(): torch_gradients_test.py PACKAGE_FOLDER

Each way of doing so gives the same as with torch's optimizers, or is refused. Needs TERRACE_LIBRARY.
"""

import sys
import unittest

PACKAGE = sys.argv.pop(1)
sys.path.insert(0, PACKAGE)

import torch  # noqa: E402

import terrace.torch as tt  # noqa: E402
from terrace import library as lib  # noqa: E402
from torch_training import WIDTH, make_model  # noqa: E402

STEPS = 4


def each_gradient(model, change):
    for parameter in model.parameters():
        if parameter.grad is not None:
            change(parameter)


def set_gradients(model, value):
    for parameter in model.parameters():
        parameter.grad = None if value is None else torch.full_like(parameter, value)


# By name of each way, a function that changes the model after the backward of a step. If it returns True, step() is
# not called.
WAYS = {
    "none": lambda model, step: None,
    "clipped by norm": lambda model, step: torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1),
    "clipped by value": lambda model, step: torch.nn.utils.clip_grad_value_(model.parameters(), 1e-3),
    "divided": lambda model, step: each_gradient(model, lambda p: p.grad.div_(32)),
    "divided through .data": lambda model, step: each_gradient(model, lambda p: p.grad.data.div_(32)),
    "added to": lambda model, step: each_gradient(model, lambda p: p.grad.add_(torch.ones_like(p))),
    "replaced": lambda model, step: set_gradients(model, 0.5),
    "given up by the model's zero_grad()": lambda model, step: step == 1 and (model.zero_grad() or True),
    "given up by zeros": lambda model, step: step == 1 and (model.zero_grad(set_to_none=False) or True),
    "given up by None": lambda model, step: step == 1 and (set_gradients(model, None) or True),
    "one given up": lambda model, step: setattr(model[0].weight, "grad", None),
}


def zeros(model, optimizer):
    optimizer.zero_grad(set_to_none=False)


def zeros_by_the_model(model, optimizer):
    model.zero_grad(set_to_none=False)


def no_zeros(model, optimizer):
    pass


class Others(unittest.TestCase):
    def loss(self, model, step, micro_batch):
        random = torch.Generator().manual_seed(10 * step + micro_batch)
        return (model(torch.randn(8, WIDTH, generator=random)) - 1).square().mean()

    def train(self, make, way, zero=None, hook=None, has_parts=False):
        model = make_model()
        optimizer = make(model)
        for parameter in model.parameters() if hook is not None else ():
            parameter.register_post_accumulate_grad_hook(hook)
        for step in range(STEPS):
            for micro_batch in range(2):
                used = model[0] if has_parts and step % 2 else model
                self.loss(used, step, micro_batch).backward()
            if WAYS[way](model, step) is True:
                continue
            optimizer.step()
            (zero or (lambda model, optimizer: optimizer.zero_grad()))(model, optimizer)
        getattr(optimizer, "finish_step", lambda: None)()
        return [parameter.detach() for parameter in model.parameters()]

    def check(self, *arguments, **more):
        """The forms that leave gradients in .grad give torch's bits, except for square roots on some processors."""
        settings = {"lr": 1e-2, "weight_decay": 0.1}
        expected = self.train(lambda m: torch.optim.SGD(m.parameters(), lr=1e-2, momentum=0.9), *arguments, **more)
        rooted = self.train(lambda m: torch.optim.AdamW(m.parameters(), foreach=False, **settings), *arguments, **more)
        for form in ({}, {"updates": "forward"}):
            def of_model(model, form=form):
                return {**form, "model": model} if form else form

            got = self.train(lambda m: tt.SGD(m.parameters(), lr=1e-2, momentum=0.9, **of_model(m)), *arguments,
                             **more)
            for a, b in zip(got, expected, strict=True):
                self.assertLess(float((a - b).abs().max()), 1e-7, form)
            got = self.train(lambda m: tt.AdamW(m.parameters(), **settings, **of_model(m)), *arguments, **more)
            for a, b in zip(got, rooted, strict=True):
                self.assertLess(float((a - b).abs().max()), 1e-6, form)

    def test_ways(self):
        for way in WAYS:
            with self.subTest(way=way):
                self.check(way)

    def test_hooks_that_are_made_later(self):
        def halve(parameter):
            parameter.grad.mul_(0.5)

        self.check("none", hook=halve)

    def test_zeros(self):
        """With zeros, parameters without a new gradient go on decaying. Without zeroing, gradients add up."""
        for zero in (zeros, zeros_by_the_model, no_zeros):
            with self.subTest(zero=zero.__name__):
                self.check("none", zero=zero, has_parts=True)

    def test_a_step_twice(self):
        """The second step() finds the gradient that is still there, as torch's step() does."""
        results = []
        for make in (lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9), lambda p: tt.SGD(p, lr=1e-2, momentum=0.9)):
            model = make_model()
            optimizer = make(model.parameters())
            self.loss(model, 0, 0).backward()
            optimizer.step()
            optimizer.step()
            results.append([parameter.detach() for parameter in model.parameters()])
        for a, b in zip(*results, strict=True):
            self.assertLess(float((a - b).abs().max()), 1e-7)

    def test_gradients_under_updates(self):
        """Code that uses .grad while updates read it waits for them, and gets the gradient itself."""
        model = torch.nn.Linear(1 << 10, 1 << 10, bias=False)
        optimizer = tt.SGD(model.parameters(), lr=1.0, momentum=0.0, updates="forward", model=model)
        before = model.weight.detach().clone()
        model(torch.ones(1, 1 << 10)).sum().backward()
        optimizer.step()
        model.weight.grad.mul_(100)
        self.assertTrue(torch.equal(model.weight, before - 1))
        self.assertEqual(float(model.weight.grad[0, 0]), 100)
        self.assertIs(type(model.weight.grad), torch.Tensor)


class Taken(unittest.TestCase):
    """With take_gradients=True the optimizer has the gradients, and says so."""

    FORMS = ({"take_gradients": True}, {"updates": "backward"})

    def begin(self, form, steps=0):
        model = make_model()
        optimizer = tt.AdamW(model.parameters(), **form)
        for _ in range(steps):
            self.backward(model)
            optimizer.step()
            optimizer.zero_grad()
        self.backward(model)
        return model, optimizer

    @staticmethod
    def backward(model):
        model(torch.ones(2, WIDTH)).sum().backward()

    def test_work_on_them_is_refused(self):
        for form in self.FORMS:
            model, optimizer = self.begin(form)
            before = [parameter.detach().clone() for parameter in model.parameters()]
            for use in (lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0),
                        lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True),
                        lambda: torch.nn.utils.clip_grad_value_(model.parameters(), 1.0),
                        lambda: model[0].weight.grad.div_(32), lambda: model[0].weight.grad.data.zero_(),
                        lambda: model[0].weight.grad.numpy(), lambda: model[0].weight.grad.tolist(),
                        lambda: model[0].weight.grad + 1, lambda: model.zero_grad(set_to_none=False)):
                with self.assertRaisesRegex(lib.OrderError, "0.*the optimizer has taken.*max_grad_norm.*"
                                                            "take_gradients=False"):
                    use()
            self.assertIn("taken", repr(model[0].weight.grad))
            self.assertTrue(all(torch.equal(a, b) for a, b in zip(before, model.parameters())))
            optimizer.step()
            with self.assertRaisesRegex(lib.OrderError, "used up: call zero_grad"):
                self.backward(model)
            with self.assertRaisesRegex(lib.OrderError, "used up: call zero_grad"):
                optimizer.step()

    def test_all_may_be_given_up(self):
        for give_up in (lambda model: model.zero_grad(), lambda model: set_gradients(model, None),
                        lambda model: set_gradients(model, 0.5)):
            results = []
            for form in ({}, {"take_gradients": True}, {"take_gradients": True, "updates": "forward"}):
                model = make_model()
                optimizer = tt.AdamW(model.parameters(), **form, model=model)
                for step in range(3):
                    self.backward(model)
                    if step == 1:
                        give_up(model)
                        self.backward(model)
                    optimizer.step()
                    optimizer.zero_grad()
                optimizer.finish_step()
                results.append([parameter.detach() for parameter in model.parameters()])
            for other in results[1:]:
                self.assertTrue(all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True)))

    def test_some_may_not(self):
        for change in (lambda weight: setattr(weight, "grad", None),
                       lambda weight: setattr(weight, "grad", torch.ones_like(weight))):
            model, optimizer = self.begin({"take_gradients": True})
            change(model[0].weight)
            for use in (optimizer.step, lambda model=model: self.backward(model)):
                with self.assertRaisesRegex(lib.OrderError, "was removed or replaced"):
                    use()
            optimizer.zero_grad()
            self.backward(model)
            optimizer.step()

    def test_what_updates_have_used_may_not(self):
        model, optimizer = self.begin({"updates": "backward"}, steps=1)
        model.zero_grad()
        with self.assertRaisesRegex(lib.FailedSessionError, "removed after updates"):
            optimizer.step()

    def test_sums_are_those_of_torch(self):
        """Zeros count as gradients, and a parameter without a gradient is left as it is."""
        results = []
        for form in ({}, {"take_gradients": True}):
            model = make_model()
            optimizer = tt.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1, **form)
            for step in range(4):
                if step % 2:
                    model[0](torch.ones(2, WIDTH)).square().sum().backward()
                else:
                    self.backward(model)
                optimizer.step()
                optimizer.zero_grad(set_to_none=step == 2)
            results.append([parameter.detach() for parameter in model.parameters()])
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(*results, strict=True)))

    def test_a_later_optimizer_leaves_them(self):
        model, optimizer = self.begin({"take_gradients": True})
        with self.assertWarnsRegex(UserWarning, "another optimizer"):
            other = tt.SGD(model.parameters(), lr=1.0, momentum=0.0)
        model.zero_grad()
        self.backward(model)
        expected = model[3].bias.detach() - model[3].bias.grad
        other.step()
        self.assertTrue(torch.equal(model[3].bias, expected))
        del optimizer


if __name__ == "__main__":
    unittest.main(verbosity=1)
