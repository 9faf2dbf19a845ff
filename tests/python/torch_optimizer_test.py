#!/usr/bin/env python3
"""Compares terrace.torch's optimizers with torch's, tests files and mistakes: torch_optimizer_test.py PACKAGE_FOLDER

Needs TERRACE_LIBRARY, the library of this build.
"""

import copy
import ctypes
import gc
import multiprocessing
import os
import sys
import tempfile
import unittest
import warnings

PACKAGE = sys.argv.pop(1)
sys.path.insert(0, PACKAGE)

import torch  # noqa: E402

import terrace.torch as tt  # noqa: E402
from terrace import library as lib  # noqa: E402
from torch_training import STEPS, WIDTH, Training, groups_of, make_model, ours  # noqa: E402


class GradientsInPlace(unittest.TestCase):
    """The first gradient of a step is not copied if nobody else has its memory."""

    def setUp(self):
        self.parameter = torch.nn.Parameter(torch.arange(64.0))
        self.addresses = []
        self.parameter.register_post_accumulate_grad_hook(lambda p: self.addresses.append(p.grad.data_ptr()))

    def address(self, optimizer):
        return ctypes.addressof(optimizer._session.gradient(0))

    def test_it_is_the_one_that_the_backward_made(self):
        optimizer = tt.SGD([self.parameter], lr=1.0, momentum=0.0, take_gradients=True)
        for _ in range(2):
            (self.parameter * 3).sum().backward()
            self.assertEqual(self.address(optimizer), self.addresses[-1])
            optimizer.step()
            optimizer.zero_grad()
        self.assertEqual(self.parameter.tolist(), (torch.arange(64.0) - 6).tolist())
        self.assertEqual(optimizer._session._lent, {})

    def test_a_second_one_is_added_to_a_copy(self):
        self.parameter = torch.nn.Parameter(torch.arange(64.0))
        optimizer = tt.SGD([self.parameter], lr=1.0, momentum=0.0, take_gradients=True)
        (self.parameter * 3).sum().backward()
        first = self.address(optimizer)
        (self.parameter * 3).sum().backward()
        self.assertNotEqual(self.address(optimizer), first)
        self.assertEqual(optimizer._session._lent, {})
        optimizer.step()
        self.assertEqual(self.parameter.tolist(), (torch.arange(64.0) - 6).tolist())

    def test_a_part_of_a_larger_buffer_is_copied(self):
        workspace = torch.zeros(128)

        class IntoWorkspace(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.sum()

            @staticmethod
            def backward(ctx, grad):
                return workspace[:64].fill_(float(grad))

        optimizer = tt.SGD([self.parameter], lr=1.0, momentum=0.0, take_gradients=True)
        IntoWorkspace.apply(self.parameter).backward()
        workspace.fill_(100)
        optimizer.step()
        self.assertEqual(self.parameter.tolist(), (torch.arange(64.0) - 1).tolist())

    def test_one_that_others_have_is_copied_before_step_returns(self):
        model = torch.nn.Linear(1 << 10, 1 << 10, bias=False)
        before = model.weight.detach().clone()
        optimizer = tt.SGD(model.parameters(), lr=1.0, momentum=0.0, updates="forward", model=model)
        kept = torch.ones_like(before)
        for _ in range(5):
            model.weight.grad = kept.fill_(1)
            optimizer.step()
            kept.fill_(100)
            optimizer.finish_step()
        self.assertTrue(torch.equal(model.weight, before - 1 - 1 - 1 - 1 - 1))

    def test_it_lives_as_long_as_a_step_of_an_optimizer_that_is_gone(self):
        model = torch.nn.Linear(1 << 11, 1 << 11, bias=False)
        before = model.weight.detach().clone()
        optimizer = tt.SGD(model.parameters(), lr=1.0, momentum=0.0, updates="forward", model=model)
        model(torch.ones(1, 1 << 11)).sum().backward()
        optimizer.step()
        del optimizer
        gc.collect()
        self.assertTrue(torch.equal(model.weight, before - 1))


class AgainstTorch(unittest.TestCase):
    def test_state_has_the_bits_of_torch(self):
        """Every step begins from equal state. Only the square root may differ: torch uses MKL's, which does not
        round correctly on every processor."""
        torch_model, our_model = make_model(), make_model()
        settings = {"lr": 3e-3, "betas": (0.9, 0.98), "weight_decay": 0.05}
        theirs = torch.optim.AdamW(torch_model.parameters(), foreach=False, fused=False, **settings)
        mine = tt.AdamW(our_model.parameters(), max_grad_norm=0.5, **settings)
        for step in range(20):
            random = torch.Generator().manual_seed(step)
            x = torch.randn(8, WIDTH, generator=random)
            for model in (torch_model, our_model):
                (model(x) ** 2).mean().backward()
            before = copy.deepcopy(list(torch_model.parameters()))
            norm = torch.nn.utils.clip_grad_norm_(torch_model.parameters(), 0.5)
            theirs.step()
            theirs.zero_grad()
            mine.step()
            mine.zero_grad()
            self.assertEqual(float(norm), mine.grad_norm)
            self.compare(theirs, mine, before)
            our_model.load_state_dict(torch_model.state_dict())
            mine.load_state_dict(theirs.state_dict())

    def compare(self, theirs, mine, before):
        state = mine.state_dict()["state"]
        pairs = zip(theirs.param_groups[0]["params"], mine.param_groups[0]["params"], before)
        for number, (their, our, old) in enumerate(pairs):
            kept = theirs.state[their]
            self.assertTrue(torch.equal(kept["exp_avg"], state[number]["exp_avg"]))
            self.assertTrue(torch.equal(kept["exp_avg_sq"], state[number]["exp_avg_sq"]))
            roots = kept["exp_avg_sq"].sqrt()
            is_rounded = roots == kept["exp_avg_sq"].double().sqrt().float()
            self.assertTrue(torch.equal(their[is_rounded], our[is_rounded]))
            step = (their - old).abs() + torch.finfo(torch.float32).eps * old.abs()
            self.assertTrue(bool(((their - our).abs() <= 2 * torch.finfo(torch.float32).eps * (step + old.abs())).all()))

    def test_fused_and_threads_of_torch_are_near(self):
        ours_trained = Training(ours()).run()
        for threads, form in ((1, {"fused": True}), (2, {"foreach": False, "fused": False}), (2, {"foreach": True})):
            torch.set_num_threads(threads)
            self.addCleanup(torch.set_num_threads, 1)
            trained = Training(lambda model: torch.optim.AdamW(groups_of(model), lr=1e-2, **form)).run()
            torch.set_num_threads(1)
            for a, b in zip(ours_trained, trained, strict=True):
                self.assertLess(float((a - b).abs().max()), 2e-5, form)

    def test_sgd_follows_torch(self):
        def train(make):
            model = make_model()
            optimizer = make(model.parameters())
            for step in range(20):
                x = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(step))
                (model(x) ** 2).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            return [parameter.detach() for parameter in model.parameters()]

        settings = {"lr": 1e-2, "momentum": 0.9, "weight_decay": 1e-3}
        for a, b in zip(train(lambda p: torch.optim.SGD(p, **settings)), train(lambda p: tt.SGD(p, **settings))):
            self.assertLess(float((a - b).abs().max()), 1e-6)

    def test_a_state_of_torch_is_taken_and_given(self):
        def train(first, second):
            model = make_model()
            optimizer = first(model)
            for step in range(12):
                if step == 5:
                    state = copy.deepcopy(optimizer.state_dict())
                    optimizer = second(model)
                    optimizer.load_state_dict(state)
                x = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(step))
                (model(x) ** 2).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            return [parameter.detach() for parameter in model.parameters()]

        def theirs(model):
            return torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)

        def mine(model):
            return tt.AdamW(model.parameters(), lr=1e-2)

        plain = train(theirs, theirs)
        for first, second in ((mine, theirs), (theirs, mine), (mine, mine)):
            for a, b in zip(plain, train(first, second)):
                self.assertLess(float((a - b).abs().max()), 1e-6)


    def test_a_loaded_state_takes_the_place_of_all(self):
        def trained(make):
            model = make_model()
            optimizer = make(model.parameters())
            model(torch.ones(2, WIDTH)).sum().backward()
            optimizer.step()
            return optimizer

        for make, field in ((lambda p: tt.AdamW(p), "exp_avg"), (lambda p: tt.SGD(p), "momentum_buffer"),
                            (lambda p: tt.Lion(p), "exp_avg")):
            optimizer = trained(make)
            full = copy.deepcopy(optimizer.state_dict())
            self.assertEqual(len(full["state"]), 6)
            optimizer.load_state_dict({**full, "state": {}})
            self.assertEqual(optimizer.state_dict()["state"], {})
            partial = {**full, "state": {1: full["state"][1]}}
            optimizer.load_state_dict(partial)
            self.assertEqual(list(optimizer.state_dict()["state"]), [1])
            lacking = {name: values for name, values in full["state"][1].items() if name != field}
            with self.assertRaisesRegex(lib.StateMismatchError, field):
                optimizer.load_state_dict({**full, "state": {1: lacking}})
            wrong = {**full, "state": {1: {**full["state"][1], field: torch.zeros(2)}}}
            with self.assertRaisesRegex(lib.StateMismatchError, field):
                optimizer.load_state_dict(wrong)
            self.assertTrue(torch.equal(optimizer.state_dict()["state"][1][field], full["state"][1][field]))
        theirs = trained(lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9)).state_dict()
        optimizer = trained(lambda p: tt.SGD(p))
        optimizer.load_state_dict(theirs)
        got = optimizer.state_dict()["state"]
        for number, fields in theirs["state"].items():
            self.assertTrue(torch.equal(fields["momentum_buffer"], got[number]["momentum_buffer"]))
        with self.assertRaisesRegex(lib.StateMismatchError, "another optimizer"):
            trained(lambda p: tt.AdamW(p)).load_state_dict(theirs)
        theirs["param_groups"][0]["nesterov"] = True
        with self.assertRaisesRegex(lib.UnsupportedError, "nesterov"):
            optimizer.load_state_dict(theirs)

    def test_a_norm_beyond_fp32_is_clipped(self):
        parameter = torch.nn.Parameter(torch.ones(64))
        optimizer = tt.AdamW([parameter], lr=1e-3, weight_decay=0, max_grad_norm=1.0)
        (parameter * 1e25).sum().backward()
        optimizer.step()
        kept = optimizer.state_dict()["state"][0]["exp_avg"]
        self.assertLess(float(kept.abs().max()), 0.1)

    def test_tied_parameters_count_once(self):
        weight = torch.nn.Parameter(torch.ones(8, 8))
        again = torch.nn.Parameter(weight.data)
        optimizer = tt.AdamW([weight, again], max_grad_norm=100.0)
        (weight.sum() + again.sum()).backward()
        optimizer.step()
        self.assertAlmostEqual(optimizer.grad_norm, 16.0, places=5)


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def test_saved_state_goes_on_with_equal_bits(self):
        expected = Training(ours(), torch.bfloat16).run()
        training = Training(ours(), torch.bfloat16)
        training.run(until=20)
        training.optimizer.save(self.folder + "/state")
        training.model = make_model(torch.bfloat16)
        training.optimizer = ours()(training.model)
        training.optimizer.load(self.folder + "/state")
        rates = [1e-2, 5e-3]
        for step in range(20, STEPS):
            for group, rate in zip(training.optimizer.param_groups, rates):
                group["lr"] = rate / (1 + step / 20)
            training.one_step(step)
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(expected, training.model.parameters())))

    def test_torch_saves_a_state_dict(self):
        training = Training(ours(state="nvme", nvme=self.folder))
        training.run(until=3)
        torch.save(training.optimizer.state_dict(), self.folder + "/optimizer.pt")
        loaded = torch.load(self.folder + "/optimizer.pt", weights_only=True)
        other = Training(ours())
        other.optimizer.load_state_dict(loaded)
        again = other.optimizer.state_dict()["state"]
        for number, fields in loaded["state"].items():
            for name, values in fields.items():
                self.assertTrue(torch.equal(values, again[number][name]), name)

    def test_a_pause_changes_no_bits(self):
        expected = Training(ours(), torch.bfloat16).run()
        for tier, directory in ({}, self.folder), ({"state": "auto", "nvme": self.folder}, None):
            training = Training(ours(**tier), torch.bfloat16)
            one_step = training.one_step

            def pausing_step(step):
                if step in (7, 20):
                    training.optimizer.pause(directory)
                    with self.assertRaisesRegex(lib.OrderError, r"optimizer\.resume\(\)"):
                        one_step(step)
                    training.optimizer.resume()
                    training.optimizer.zero_grad()
                    training.model.zero_grad()
                one_step(step)

            training.one_step = pausing_step
            self.assertTrue(all(torch.equal(a, b) for a, b in zip(expected, training.run())))
            self.assertEqual(os.listdir(self.folder), [])
        training = Training(ours())
        with self.assertRaisesRegex(lib.ArgumentError, "name a directory"):
            training.optimizer.pause()
        with self.assertRaisesRegex(lib.OrderError, "not paused"):
            training.optimizer.resume()

    def test_nothing_stays_on_the_drive(self):
        training = Training(ours(state="nvme", nvme=self.folder))
        training.run(until=2)
        self.assertGreater(training.optimizer.metrics()["nvme_write_bytes"], 0)
        del training
        gc.collect()
        self.assertEqual(os.listdir(self.folder), [])


class Mistakes(unittest.TestCase):
    def trained(self, **more):
        model = make_model()
        optimizer = tt.AdamW(model.parameters(), **more)
        model(torch.ones(2, WIDTH)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        return model, optimizer

    def test_types(self):
        parameter = torch.nn.Parameter(torch.ones(4, dtype=torch.float64))
        optimizer = tt.AdamW([parameter])
        with self.assertRaisesRegex(lib.DTypeError, "float64"):
            parameter.sum().backward()
            optimizer.step()

    def test_a_gradient_that_is_not_finite(self):
        model, optimizer = self.trained()
        before = [p.detach().clone() for p in model.parameters()]
        (model(torch.ones(2, WIDTH)) * float("inf")).sum().backward()
        with self.assertRaisesRegex(lib.NotFiniteError, "not finite.*zero_grad"):
            optimizer.step()
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(before, model.parameters())))
        optimizer.zero_grad()
        model(torch.ones(2, WIDTH)).sum().backward()
        optimizer.step()

    def test_a_parameter_of_16_bits_that_somebody_wrote(self):
        model = make_model(torch.bfloat16)
        optimizer = tt.AdamW(model.parameters())
        x = torch.ones(2, WIDTH, dtype=torch.bfloat16)
        model(x).sum().backward()
        optimizer.step()
        with torch.no_grad():
            model[0].weight.mul_(2)
        model(x).sum().backward()
        with self.assertRaisesRegex(lib.ParameterChangedError, "optimizer.adopt"):
            optimizer.step()

        model(x).sum().backward()  # this batch is given up
        optimizer.zero_grad()
        optimizer.adopt([model[0].weight])
        model(x).sum().backward()
        optimizer.step()
        model(x).sum().backward()
        optimizer.step()

    def test_a_gradient_that_is_given_up_is_not_added_again(self):
        model = make_model(torch.bfloat16)
        optimizer = tt.AdamW(model.parameters(), lr=0)
        x = torch.ones(2, WIDTH, dtype=torch.bfloat16)
        model(x).sum().backward()
        optimizer.step()
        once = optimizer.grad_norm
        with torch.no_grad():
            model[0].weight.mul_(2)
        model(x).sum().backward()
        with self.assertRaises(lib.ParameterChangedError):
            optimizer.step()
        with torch.no_grad():
            model[0].weight.mul_(0.5)
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        self.assertEqual(optimizer.grad_norm, once)

    def test_a_parameter_that_moved(self):
        for use in (lambda o: o.step(), lambda o: o.save("/nowhere/state"), lambda o: o.state_dict()):
            model, optimizer = self.trained()
            model[0].weight.data = model[0].weight.data.clone()
            model(torch.ones(2, WIDTH)).sum().backward()
            with self.assertRaisesRegex(lib.OrderError, "has moved"):
                use(optimizer)

    def test_a_step_that_fails_under_the_forward_fails_once(self):
        model = make_model()
        optimizer = tt.AdamW(model.parameters(), updates="forward", model=model)
        x = torch.ones(2, WIDTH)
        (model(x) * float("inf")).sum().backward()
        optimizer.step()
        with self.assertRaises(lib.NotFiniteError):
            model(x)
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        optimizer.finish_step()

    def test_a_second_optimizer_is_told(self):
        model, optimizer = self.trained(take_gradients=True)
        with self.assertWarnsRegex(UserWarning, "another optimizer"):
            other = tt.AdamW(model.parameters())
        del other, optimizer

    def test_copies_are_refused(self):
        model = make_model()
        optimizer = tt.AdamW(model.parameters(), updates="forward", model=model)
        with self.assertRaisesRegex(lib.UnsupportedError, "state_dict"):
            copy.deepcopy(optimizer)
        self.assertTrue(torch.equal(copy.deepcopy(model)[0].weight, model[0].weight))

    def test_settings_and_groups_after_the_first_step(self):
        model, optimizer = self.trained()
        with self.assertRaisesRegex(lib.OrderError, "after the first"):
            optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(3))]})
        optimizer.param_groups[0]["betas"] = (0.5, 0.9)
        model(torch.ones(2, WIDTH)).sum().backward()
        with self.assertRaisesRegex(lib.OrderError, "only lr may change"):
            optimizer.step()

    def test_names_of_settings(self):
        model = make_model()
        for settings in ({"state": "disk"}, {"updates": "later"}, {"updates": "forward"}, {"arithmetic": "exact"}):
            with self.subTest(settings=settings), self.assertRaises(lib.ArgumentError):
                optimizer = tt.AdamW(model.parameters(), **settings)
                model(torch.ones(2, WIDTH)).sum().backward()
                optimizer.step()
        with self.assertRaisesRegex(lib.ArgumentError, "in no module"):
            tt.AdamW(model.parameters(), updates="forward", model=make_model())
        with self.assertRaisesRegex(lib.ArgumentError, "not a directory"):
            tt.AdamW(model.parameters(), state="nvme", nvme="/nowhere")
        with self.assertRaisesRegex(lib.ArgumentError, "4 gigs"):
            tt.AdamW(model.parameters(), host_memory="4 gigs")

    def test_a_budget_that_is_too_small(self):
        model = make_model()
        optimizer = tt.AdamW(model.parameters(), host_memory="4KiB")
        with self.assertRaisesRegex(lib.DoesNotFitError, "state='nvme'"):
            model(torch.ones(2, WIDTH)).sum().backward()
            optimizer.step()

    def test_a_forked_process(self):
        model, optimizer = self.trained()

        def child(answers):
            try:
                optimizer.save("/nowhere/state")
            except lib.ForkedError as error:
                answers.put(str(error))
            except BaseException as error:  # noqa: BLE001
                answers.put(repr(error))

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            context = multiprocessing.get_context("fork")
            answers = context.Queue()
            process = context.Process(target=child, args=(answers,))
            process.start()
            self.assertIn("spawn", answers.get(timeout=60))
            process.join(60)

    def test_frozen_parameters_stay(self):
        model = make_model()
        model[0].weight.requires_grad_(False)
        before = model[0].weight.clone()
        optimizer = tt.AdamW(model.parameters(), weight_decay=0.5)
        model(torch.ones(2, WIDTH)).sum().backward()
        optimizer.step()
        self.assertTrue(torch.equal(before, model[0].weight))
        self.assertEqual(sorted(optimizer.state_dict()["state"]), [1, 2, 3, 4, 5])


if __name__ == "__main__":
    unittest.main(verbosity=1)
