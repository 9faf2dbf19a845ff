#!/usr/bin/env python3
"""Continues the state of an optimizer in another form of the training: torch_saved_test.py PACKAGE_FOLDER

Parameters are frozen later, or the model is wrapped. Needs TERRACE_LIBRARY.
"""

import copy
import sys
import tempfile
import unittest

PACKAGE = sys.argv.pop(1)
sys.path.insert(0, PACKAGE)

import torch  # noqa: E402

import terrace.torch as tt  # noqa: E402
from terrace import library as lib  # noqa: E402
from torch_training import WIDTH, make_model  # noqa: E402


def train(model, optimizer, steps):
    for step in steps:
        x = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(step))
        (model(x) - 1).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    optimizer.finish_step()


class Wrapper(torch.nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x)


class Saved(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def check(self, model, other):
        for a, b in zip(model.parameters(), other.parameters(), strict=True):
            self.assertTrue(torch.equal(a, b))

    def frozen_later(self, form):
        """Returns a model whose first weight trained in two steps and not in the third, its optimizer, and a copy of
        the model in which the weight is frozen."""
        model = make_model()
        optimizer = tt.AdamW(model.parameters(), lr=1e-2, model=model, **form)
        train(model, optimizer, range(2))
        model[0].weight.requires_grad_(False)
        train(model, optimizer, range(2, 3))
        other = make_model()
        other.load_state_dict(model.state_dict())
        other[0].weight.requires_grad_(False)
        return model, optimizer, other

    def test_a_parameter_that_is_frozen_later(self):
        for form in ({}, {"updates": "forward"}, {"take_gradients": True}):
            model, optimizer, other = self.frozen_later(form)
            second = tt.AdamW(other.parameters(), lr=1e-2, model=other, **form)
            second.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            train(model, optimizer, range(3, 5))
            train(other, second, range(3, 5))
            self.check(model, other)
            # The loaded state of the frozen weight is saved again, and continues where the weight trains.
            self.assertEqual(int(second.state_dict()["state"][0]["step"]), 2)
            again = make_model()
            again.load_state_dict(other.state_dict())
            third = tt.AdamW(again.parameters(), lr=1e-2)
            third.load_state_dict(copy.deepcopy(second.state_dict()))
            for one in (model, again):
                one[0].weight.requires_grad_(True)
            train(model, optimizer, range(5, 7))
            train(again, third, range(5, 7))
            self.check(model, again)

    def test_files_of_a_parameter_that_is_frozen_later(self):
        model, optimizer, other = self.frozen_later({})
        optimizer.save(self.folder + "/state")
        second = tt.AdamW(other.parameters(), lr=1e-2, model=other)
        with self.assertRaisesRegex(lib.StateMismatchError, "0.weight.*frozen here.*after load"):
            second.load(self.folder + "/state")
        other[0].weight.requires_grad_(True)
        second = tt.AdamW(other.parameters(), lr=1e-2, model=other)
        second.load(self.folder + "/state")
        other[0].weight.requires_grad_(False)
        train(model, optimizer, range(3, 5))
        train(other, second, range(3, 5))
        self.check(model, other)

    def test_wrappers_change_no_names(self):
        def inner_compiled(model):
            model[3] = torch.compile(model[3], backend="eager")
            return model

        wraps = {"none": lambda model: model, "compiled": lambda model: torch.compile(model, backend="eager"),
                 "wrapped": Wrapper, "both": lambda model: torch.compile(Wrapper(model), backend="eager"),
                 "wrapped compiled": lambda model: Wrapper(torch.compile(model, backend="eager")),
                 "inner": inner_compiled}
        for name, wrap in wraps.items():
            for by_names in (False, True):
                def make(model, called, by_names=by_names):
                    return (tt.AdamW(called.named_parameters(), lr=1e-2) if by_names
                            else tt.AdamW(called.parameters(), lr=1e-2, model=called))

                with self.subTest(wrap=name, by_names=by_names):
                    model = make_model()
                    called = wrap(model)
                    optimizer = make(model, called)
                    train(called, optimizer, range(2))
                    optimizer.save(f"{self.folder}/{name}")
                    other = make_model()
                    second = make(other, other)
                    second.load(f"{self.folder}/{name}")
                    train(called, optimizer, range(2, 4))
                    train(other, second, range(2, 4))
                    self.check(model, other)

    def test_a_module_of_that_name(self):
        """A model that has a module of the name "module" beside others keeps it in its parameters' names."""
        model = torch.nn.ModuleDict({"module": torch.nn.Linear(4, 4), "head": torch.nn.Linear(4, 4)})
        with self.assertRaisesRegex(lib.DTypeError, "module.weight"):
            optimizer = tt.AdamW(model.double().parameters(), model=model)
            model["module"](torch.ones(1, 4).double()).sum().backward()
            optimizer.step()


if __name__ == "__main__":
    unittest.main(verbosity=1)
