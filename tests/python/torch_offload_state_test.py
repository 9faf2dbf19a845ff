#!/usr/bin/env python3
"""Tests the state of offloaded models and of their optimizers, and what is refused: torch_offload_state_test.py
PACKAGE_FOLDER

Small models are compared with the same models without offload. Needs TERRACE_LIBRARY, the library of this build.
"""

import copy
import inspect
import os
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

PACKAGE = sys.argv.pop(1)
sys.path.insert(0, PACKAGE)
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch  # noqa: E402

import terrace.torch as tt  # noqa: E402
from terrace import library as lib  # noqa: E402
from terrace.torch import movement as movement_module  # noqa: E402
from terrace.torch.offload import movement_of  # noqa: E402
from terrace.torch.optimizer import TieredOptimizer  # noqa: E402

torch.set_num_threads(1)
WIDTH = 64
RATE = 1e-1


def make_model(dtype=torch.float32):
    torch.manual_seed(3)
    return torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU())
                                 for _ in range(3))).to(dtype)


def batch(seed, dtype=torch.float32):
    return torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(seed)).to(dtype)


@torch.no_grad()
def forward(model):
    return model(batch(9, next(model.parameters()).dtype))


def one_step(model, optimizer, seed):
    loss = model(batch(seed, next(model.parameters()).dtype)).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def train(model, optimizer, steps):
    return [one_step(model, optimizer, step) for step in steps]


class OffloadedTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    @staticmethod
    def offloaded(model=None, rule=tt.AdamW, **options):
        model = tt.offload(make_model() if model is None else model, **options)
        return model, rule(model.parameters(), lr=RATE)

    def assert_equal_states(self, expected, got):
        self.assertEqual(expected["state"].keys(), got["state"].keys())
        self.assertGreater(len(got["state"]), 0)
        for place, fields in expected["state"].items():
            self.assertEqual(fields.keys(), got["state"][place].keys())
            for name, value in fields.items():
                self.assertTrue(torch.equal(value, got["state"][place][name]), f"{place}: {name}")

    def assert_equal_values(self, expected, got):
        self.assertEqual(expected.keys(), got.keys())
        for name, value in expected.items():
            self.assertTrue(torch.equal(value, got[name]), name)


class States(OffloadedTest):
    def test_a_state_is_saved_again_before_a_step(self):
        """The state is of each rule, with parameters in host memory and on a drive, and of torch's optimizer."""
        for dtype in (torch.float32, torch.bfloat16):
            for rule in (tt.AdamW, tt.Lion, tt.SGD):
                for options in ({}, {"nvme": self.folder, "parameters": "nvme", "optimizer": "nvme"}):
                    with self.subTest(dtype=dtype, rule=rule, options=options):
                        model, optimizer = self.offloaded(make_model(dtype), rule, **options)
                        train(model, optimizer, range(2))
                        saved = copy.deepcopy(optimizer.state_dict())
                        _, other = self.offloaded(make_model(dtype), rule, **options)
                        other.load_state_dict(saved)
                        self.assert_equal_states(saved, other.state_dict())
        plain = make_model()
        theirs = torch.optim.AdamW(plain.parameters(), lr=RATE)
        train(plain, theirs, range(2))
        _, other = self.offloaded()
        other.load_state_dict(theirs.state_dict())
        self.assert_equal_states(theirs.state_dict(), other.state_dict())

    def test_a_state_without_masters_has_those_of_the_parameters(self):
        """Torch's optimizer over bf16 writes such a state. The masters then equal the parameters."""
        model = make_model(torch.bfloat16)
        values = copy.deepcopy(model.state_dict())
        theirs = torch.optim.AdamW(model.parameters(), lr=RATE)
        train(model, theirs, range(1))
        _, optimizer = self.offloaded(make_model(torch.bfloat16))
        optimizer.load_state_dict(theirs.state_dict())
        for (name, value), fields in zip(values.items(), optimizer.state_dict()["state"].values(), strict=True):
            self.assertTrue(torch.equal(fields["master"], value.float()), name)

    def test_parameters_are_those_of_loaded_masters(self):
        """forward and state_dict() have the parameters at once, before the first step and after one."""
        for options in ({}, {"nvme": self.folder, "parameters": "nvme"}):
            for steps_before in (0, 1):
                with self.subTest(options=options, steps_before=steps_before):
                    model, optimizer = self.offloaded(make_model(torch.bfloat16), **options)
                    train(model, optimizer, range(2))
                    saved = copy.deepcopy(optimizer.state_dict())
                    values = copy.deepcopy(model.state_dict())
                    expected = forward(model)
                    other, resumed = self.offloaded(make_model(torch.bfloat16), **options)
                    train(other, resumed, range(5, 5 + steps_before))
                    resumed.load_state_dict(saved)
                    self.assertTrue(torch.equal(expected, forward(other)))
                    self.assert_equal_values(values, other.state_dict())
                    self.assertEqual(train(model, optimizer, range(2, 4)), train(other, resumed, range(2, 4)))
                    self.assert_equal_values(copy.deepcopy(model.state_dict()), other.state_dict())

    def test_loaded_masters_are_rounded_as_a_step_rounds(self):
        """Masters are halfway between two bf16 values. The parameters are the same before and after a step is
        compiled."""
        model, optimizer = self.offloaded(make_model(torch.bfloat16))
        train(model, optimizer, range(1))
        saved = copy.deepcopy(optimizer.state_dict())
        for fields in saved["state"].values():
            fields["master"].view(torch.int32).bitwise_and_(-65536).bitwise_or_(0x8000)
        _, other = early = self.offloaded(make_model(torch.bfloat16))
        for each in (optimizer, other):
            each.load_state_dict(saved)
        self.assert_equal_values(copy.deepcopy(model.state_dict()), early[0].state_dict())
        with unittest.mock.patch.object(movement_module, "CompiledStep", side_effect=lib.DoesNotFitError("as if")), \
                self.assertRaises(lib.DoesNotFitError):
            optimizer.load_state_dict(saved)
        self.assert_equal_values(copy.deepcopy(early[0].state_dict()), model.state_dict())
        self.assert_equal_states(saved, optimizer.state_dict())
        self.assertEqual(train(model, optimizer, range(2)), train(*early, range(2)))

    def test_parameters_in_memory_are_not_loaded_over(self):
        model, optimizer = self.offloaded(make_model(torch.bfloat16))
        one_step(model, optimizer, 0)
        saved = copy.deepcopy(optimizer.state_dict())
        with tt.materialize(model), self.assertRaisesRegex(lib.OrderError, "materialize"):
            optimizer.load_state_dict(saved)
        optimizer.load_state_dict(saved)

    def test_a_step_that_cannot_be_made_loses_no_state(self):
        """A changed setting needs another compiled step, and making that step fails."""
        for dtype in (torch.float32, torch.bfloat16):
            with self.subTest(dtype=dtype):
                runs = []
                for fails in (False, True):
                    model, optimizer = self.offloaded(make_model(dtype))
                    train(model, optimizer, range(2))
                    for group in optimizer.param_groups:
                        group["weight_decay"] = 0.5
                    if fails:
                        self.fail_once(model, optimizer)
                    losses = train(model, optimizer, range(2, 5))
                    runs.append((losses, copy.deepcopy(optimizer.state_dict()), copy.deepcopy(model.state_dict())))
                (losses, state, values), (got, other_state, other_values) = runs
                self.assertEqual(losses, got)
                self.assert_equal_states(state, other_state)
                self.assert_equal_values(values, other_values)

    def fail_once(self, model, optimizer):
        state, values = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(model.state_dict())
        problem = lib.DoesNotFitError("as if")
        with unittest.mock.patch.object(movement_module, "CompiledStep", side_effect=problem), \
                self.assertRaisesRegex(lib.DoesNotFitError, "as if"):
            one_step(model, optimizer, 7)
        optimizer.zero_grad()
        self.assertIsNone(movement_of(model).compiled)
        self.assert_equal_states(state, optimizer.state_dict())
        self.assert_equal_values(values, model.state_dict())


class Methods(OffloadedTest):
    def test_every_public_method_works_or_is_refused(self):
        """Tries each method that TieredOptimizer has beyond torch's. A method that reads the optimizer's own session
        would not work here."""
        model, optimizer = self.offloaded()
        parameters = list(model.parameters())
        refused = lib.UnsupportedError
        uses = {
            "adopt": (lambda: optimizer.adopt(parameters), refused),
            "add_param_group": (lambda: optimizer.add_param_group({"params": []}), lib.OrderError),
            "finish_step": (optimizer.finish_step, None),
            "grad_norm": (lambda: self.assertGreater(optimizer.grad_norm, 0), None),
            "ledger": (lambda: self.assertIn("host", str(optimizer.ledger())), None),
            "load": (lambda: optimizer.load(self.folder), refused),
            "load_state_dict": (lambda: optimizer.load_state_dict(optimizer.state_dict()), None),
            "metrics": (optimizer.metrics, refused),
            "pause": (lambda: optimizer.pause(self.folder), None),
            "resume": (optimizer.resume, None),
            "save": (lambda: optimizer.save(self.folder), refused),
            "set_is_last_backward": (lambda: optimizer.set_is_last_backward(False), None),
            "state_dict": (lambda: self.assertEqual(len(optimizer.state_dict()["state"]), len(parameters)), None),
            "step": (lambda: self.assertEqual(optimizer.step(lambda: 3), 3), None),
            "takes_gradients": (lambda: self.assertTrue(optimizer.takes_gradients), None),
            "wait_for": (lambda: optimizer.wait_for(parameters), None),
            "zero_grad": (optimizer.zero_grad, None),
        }
        ours = [each for each in TieredOptimizer.__mro__ if each.__module__.startswith("terrace.")]
        public = {name for each in ours for name, value in vars(each).items()
                  if not name.startswith("_") and (inspect.isroutine(value) or isinstance(value, property))}
        self.assertEqual(public, set(uses))
        one_step(model, optimizer, 0)
        for name, (use, error) in uses.items():
            with self.subTest(method=name):
                if error is None:
                    use()
                else:
                    self.assertRaises(error, use)
        with self.assertRaises(refused):
            copy.deepcopy(optimizer)
        self.assertIn("AdamW", repr(optimizer))
        self.assertLess(one_step(model, optimizer, 0), 10)


class Pauses(OffloadedTest):
    def test_a_pause_changes_no_bits(self):
        undisturbed, expected = self.offloaded()
        model, optimizer = self.offloaded()
        for step in range(4):
            self.assertEqual(one_step(undisturbed, expected, step), one_step(model, optimizer, step))
            optimizer.pause(self.folder)
            for use in (lambda: one_step(model, optimizer, step), model.state_dict, optimizer.state_dict,
                        optimizer.ledger, optimizer.step, lambda: optimizer.pause(self.folder),
                        lambda: tt.materialize(model).__enter__()):
                self.assertRaisesRegex(lib.OrderError, r"optimizer\.resume\(\)", use)
            optimizer.zero_grad()
            optimizer.resume()
        self.assert_equal_values(undisturbed.state_dict(), model.state_dict())
        self.assert_equal_states(expected.state_dict(), optimizer.state_dict())

    def test_what_cannot_be_is_refused(self):
        model, optimizer = self.offloaded()
        self.assertRaisesRegex(lib.OrderError, "not paused", optimizer.resume)
        self.assertRaisesRegex(lib.OrderError, "first one", optimizer.pause)
        one_step(model, optimizer, 0)
        self.assertRaisesRegex(lib.ArgumentError, "name a directory", optimizer.pause)
        self.assertRaisesRegex(lib.TerraceError, "none", lambda: optimizer.pause(self.folder + "/none"))
        with tt.materialize(model):
            self.assertRaisesRegex(lib.OrderError, "materialize", lambda: optimizer.pause(self.folder))
        model(batch(1)).sum().backward()
        self.assertRaisesRegex(lib.OrderError, "step()", lambda: optimizer.pause(self.folder))
        optimizer.zero_grad()
        optimizer.pause(self.folder)
        optimizer.resume()
        one_step(model, optimizer, 1)


class Values(OffloadedTest):
    def test_who_writes_to_a_state_dict_changes_no_other(self):
        model, _ = self.offloaded()
        expected = copy.deepcopy(make_model().state_dict())
        kept = model.state_dict()
        for value in kept.values():
            value.mul_(0)
        inner = model[0].state_dict()
        inner["0.weight"].mul_(0)
        self.assert_equal_values(expected, model.state_dict())
        into = {}
        model.state_dict(destination=into)
        self.assert_equal_values(dict(expected), into)
        self.assertEqual(torch.count_nonzero(kept["0.0.weight"]), 0)

    def test_tied_parameters_are_one_tensor_of_a_state_dict(self):
        tied = make_model()
        tied[2][0].weight = tied[0][0].weight
        values = tt.offload(tied).state_dict()
        self.assertEqual(values["0.0.weight"].data_ptr(), values["2.0.weight"].data_ptr())
        self.assertNotEqual(values["0.0.weight"].data_ptr(), values["1.0.weight"].data_ptr())

    def test_buffers_change_their_type(self):
        """A model can only be moved to the parameters' type on the CPU. Buffers take that type."""
        model = torch.nn.Sequential(make_model(), torch.nn.BatchNorm1d(WIDTH))
        model.register_buffer("table", torch.zeros(3, dtype=torch.float64))
        model.register_buffer("nothing", None)
        model[0][0].register_buffer("inner", torch.zeros(3, dtype=torch.float64))
        tt.offload(model)
        self.assertIs(model[0].float(), model[0])
        self.assertEqual((model.table.dtype, model[0][0].inner.dtype), (torch.float64, torch.float32))
        self.assertIs(model.to(torch.float32), model)
        self.assertEqual(model.table.dtype, torch.float32)
        self.assertEqual(model[1].num_batches_tracked.dtype, torch.int64)
        with self.assertRaisesRegex(lib.UnsupportedError, "stays in torch.float32"):
            model.half()
        self.assertEqual(model.table.dtype, torch.float32)
        train(model, tt.AdamW(model.parameters(), lr=RATE), range(2))


class Refusals(OffloadedTest):
    def test_training_without_an_optimizer_of_this_package(self):
        """An optimizer of torch.optim finds no gradients to use. An optimizer that is gone uses none either."""
        for make in (lambda model: torch.optim.AdamW(model.parameters(), lr=RATE), None):
            with self.subTest(make=make):
                model = tt.offload(make_model())
                if make is None:
                    optimizer = tt.AdamW(model.parameters(), lr=RATE)
                    train(model, optimizer, range(2))
                    del optimizer
                    model(batch(2)).sum().backward()
                else:
                    one_step(model, make(model), 0)
                for _ in range(2):
                    with self.assertRaisesRegex(lib.OrderError, "AdamW, Lion or SGD of terrace.torch"):
                        model(batch(3))
                forward(model)
                optimizer = tt.AdamW(model.parameters(), lr=RATE)
                optimizer.zero_grad()
                train(model, optimizer, range(2))

    def test_parameters_of_another_model(self):
        model, optimizer = self.offloaded()
        with self.assertRaisesRegex(lib.ArgumentError, "none of the offloaded model's"):
            tt.AdamW([*model.parameters(), *make_model().parameters()])
        with self.assertRaisesRegex(lib.ArgumentError, "none of the offloaded model's"):
            optimizer.add_param_group({"params": make_model().parameters()})
        self.assertEqual(len(optimizer.param_groups), 1)
        train(model, optimizer, range(2))

    def test_an_optimizer_that_is_made_before_offload(self):
        for more in ({}, {"take_gradients": True}, {"updates": "forward", "take_gradients": True}):
            for steps in (0, 1):
                with self.subTest(more=more, steps=steps):
                    model = make_model()
                    optimizer = tt.AdamW(model.parameters(), lr=RATE, **more, **(
                        {"model": model} if "updates" in more else {}))
                    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)  # makes a cycle of references
                    train(model, optimizer, range(steps))
                    with self.assertRaisesRegex(lib.OrderError, "make the optimizer after terrace.torch.offload()"):
                        tt.offload(model)
                    optimizer.finish_step()
                    one_step(model, optimizer, 1)
                    optimizer.finish_step()
                    del schedule, optimizer
                    train(*self.offloaded(model), range(2))

    def test_an_earlier_optimizer_touches_no_offloaded_parameter(self):
        """offload() does not know of the optimizer, which the test brings about by force."""
        for more in ({}, {"take_gradients": True}):
            for steps in (0, 1):
                with self.subTest(more=more, steps=steps):
                    model = make_model()
                    optimizer = tt.AdamW(model.parameters(), lr=RATE, **more)
                    train(model, optimizer, range(steps))
                    with unittest.mock.patch("terrace.torch.offload.have_owner", return_value=False):
                        tt.offload(model)
                    message = "was offloaded after the optimizer was made"
                    parameter = model[0][0].weight
                    for use in (optimizer.ledger if steps == 0 else optimizer.state_dict,
                                lambda: optimizer.save(self.folder), lambda: optimizer.load(self.folder)):
                        self.assertRaisesRegex(lib.OrderError, message, use)
                    parameter.grad = torch.ones(WIDTH, WIDTH)
                    self.assertRaisesRegex(lib.OrderError, message, optimizer.step)
                    self.assertRaisesRegex(lib.OrderError, message, lambda: one_step(model, optimizer, 0))

    def test_a_backward_before_the_optimizer_is_made(self):
        plain, model = make_model(), tt.offload(make_model())
        results = []
        for each in (plain, model):
            each(batch(0)).square().mean().backward()
            optimizer = tt.AdamW(each.parameters(), lr=RATE)
            optimizer.step()
            results.append(copy.deepcopy(each.state_dict()))
        self.assert_equal_values(*results)


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        ids = torch.randint(0, 97, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


class UnderTrainers(OffloadedTest):
    SETTINGS = {"lr": 5e-3, "max_grad_norm": 0.5, "arithmetic": "terrace"}

    def test_transformers_trainer(self):
        """Compares tt.attach() over an offloaded model with the same training without offload."""
        import transformers

        def trained(offloads):
            torch.manual_seed(5)
            model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
                vocab_size=97, n_positions=32, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0,
                attn_pdrop=0))
            if offloads:
                tt.offload(model, nvme=self.folder)
            optimizer = tt.AdamW(model.parameters(), **self.SETTINGS)
            schedule = transformers.get_linear_schedule_with_warmup(optimizer, 0, 4)
            arguments = transformers.TrainingArguments(
                output_dir=self.folder, per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=4,
                save_strategy="no", logging_steps=1, report_to=[], use_cpu=True, seed=1, max_grad_norm=0.0,
                disable_tqdm=True)
            trainer = tt.attach(transformers.Trainer(model, arguments, train_dataset=Texts(),
                                                     optimizers=(optimizer, schedule)))
            trainer.train()
            rows = [(row["loss"], row["grad_norm"]) for row in trainer.state.log_history if "loss" in row]
            return rows, copy.deepcopy(model.state_dict())

        expected, values = trained(False)
        rows, others = trained(True)
        self.assertEqual(len(expected), 4)
        for (loss, norm), (other_loss, other_norm) in zip(expected, rows, strict=True):
            self.assertEqual(loss, other_loss)
            self.assertAlmostEqual(norm, other_norm, places=12)
        self.assert_equal_values(values, others)

    def test_lightning(self):
        """Compares OptimizerCallback over an offloaded model with the same training without offload."""
        import lightning

        from terrace.torch.lightning import OptimizerCallback

        settings = self.SETTINGS

        class Module(lightning.LightningModule):
            def __init__(self, model):
                super().__init__()
                self.model = model

            def training_step(self, rows, number):
                return (self.model(rows) ** 2).mean()

            def configure_optimizers(self):
                return tt.AdamW(self.model.parameters(), **settings)

        def trained(model):
            trainer = lightning.Trainer(
                accelerator="cpu", max_epochs=2, accumulate_grad_batches=2, logger=False, enable_progress_bar=False,
                enable_model_summary=False, enable_checkpointing=False, callbacks=[OptimizerCallback()],
                default_root_dir=self.folder)
            trainer.fit(Module(model), torch.utils.data.DataLoader(batch(1), batch_size=2))
            return float(trainer.callback_metrics["grad_norm"]), copy.deepcopy(model.state_dict())

        norm, values = trained(make_model())
        other_norm, others = trained(tt.offload(make_model()))
        self.assertAlmostEqual(norm, other_norm, places=12)
        self.assert_equal_values(values, others)


if __name__ == "__main__":
    unittest.main()
