#!/usr/bin/env python3
"""Tests terrace.torch under other training loops: torch_trainer_test.py PACKAGE_FOLDER

These are transformers' Trainer, Accelerate, and DistributedDataParallel with gloo. Needs TERRACE_LIBRARY.
"""

import os
import sys
import tempfile
import unittest

if __name__ == "__main__":  # else this is a rank, which that process has started
    os.environ["TERRACE_TEST_PACKAGE"] = sys.argv.pop(1)
sys.path.insert(0, os.environ["TERRACE_TEST_PACKAGE"])
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch  # noqa: E402
from transformers import (GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments,  # noqa: E402
                          get_linear_schedule_with_warmup)

import terrace.torch as tt  # noqa: E402
from terrace import library as lib  # noqa: E402

torch.set_num_threads(1)
SETTINGS = {"lr": 5e-3, "max_grad_norm": 0.5, "weight_decay": 0.01}


def make_model():
    torch.manual_seed(5)
    return GPT2LMHeadModel(GPT2Config(vocab_size=97, n_positions=32, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0,
                                      embd_pdrop=0, attn_pdrop=0))


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        ids = torch.randint(0, 97, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


class UnderTrainer(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def trainer(self, name, *, own_optimizer=False, steps=12, **more):
        model = make_model()
        arguments = TrainingArguments(
            output_dir=f"{self.folder}/{name}", per_device_train_batch_size=2, gradient_accumulation_steps=4,
            max_steps=steps, save_steps=4, logging_steps=1, report_to=[], use_cpu=True, seed=1, learning_rate=5e-3,
            max_grad_norm=0.0, weight_decay=SETTINGS["weight_decay"], disable_tqdm=True)
        settings = {**SETTINGS, **more}
        if own_optimizer:
            decay = settings.pop("weight_decay")  # the Trainer makes such groups
            groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": decay},
                      {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}]
            optimizer = tt.AdamW(groups, **settings)
            schedule = get_linear_schedule_with_warmup(optimizer, 0, steps)
            return tt.attach(Trainer(model, arguments, train_dataset=Texts(), optimizers=(optimizer, schedule)))
        return tt.attach(Trainer(model, arguments, train_dataset=Texts(),
                                 optimizer_cls_and_kwargs=(tt.AdamW, settings)))

    @staticmethod
    def weights(trainer):
        return [p.detach().clone() for p in trainer.model.parameters()]

    def test_both_ways_of_passing_it_and_a_resume_are_equal(self):
        first = self.trainer("first")
        first.train()
        norms = [row["grad_norm"] for row in first.state.log_history if "loss" in row]
        self.assertEqual(len(norms), 12)
        self.assertTrue(all(norm > 0.5 for norm in norms), norms)
        expected = self.weights(first)

        self.assertTrue(all(torch.equal(a, b) for a, b in zip(
            expected, self.trained("early", own_optimizer=True), strict=True)))
        drive = self.trainer("drive", state="nvme", nvme=self.folder)
        drive.train()
        again = self.trainer("first")
        again.train(resume_from_checkpoint=f"{self.folder}/first/checkpoint-8")
        for trainer in (drive, again):
            self.assertTrue(all(torch.equal(a, b) for a, b in zip(expected, self.weights(trainer), strict=True)))

    def trained(self, name, **more):
        trainer = self.trainer(name, **more)
        trainer.train()
        return self.weights(trainer)

    def test_updates_under_the_backward(self):
        """Windows have 4 micro-batches, and 3 at the end of an epoch of 11. A run is resumed within an epoch."""
        def trained(name, resume=None, **more):
            trainer = self.trainer(name, max_grad_norm=0, **more)
            trainer.train_dataset = torch.utils.data.Subset(Texts(), range(22))
            trainer.train(resume_from_checkpoint=resume)
            return trainer

        expected = trained("step")
        for own in (False, True):
            got = trained(f"backward{own}", updates="backward", own_optimizer=own)
            again = trained(f"backward{own}", updates="backward", own_optimizer=own,
                            resume=f"{self.folder}/backward{own}/checkpoint-4")
            for trainer in (got, again):
                self.assertTrue(all(torch.equal(a, b)
                                    for a, b in zip(self.weights(expected), self.weights(trainer), strict=True)))
        norms = [row["grad_norm"] for row in expected.state.log_history if "loss" in row]
        self.assertEqual(norms, [row["grad_norm"] for row in got.state.log_history if "loss" in row])

    def test_an_optimizer_that_is_made_before(self):
        trainer = self.trainer("own", own_optimizer=True)
        trainer.train()
        resumed = self.trainer("own", own_optimizer=True)
        resumed.train(resume_from_checkpoint=f"{self.folder}/own/checkpoint-4")
        self.assertTrue(all(torch.equal(a, b)
                            for a, b in zip(self.weights(trainer), self.weights(resumed), strict=True)))

    def test_it_trains_as_torch_does(self):
        ours = self.trainer("ours")
        ours.train()
        theirs = self.trainer("theirs")
        theirs.optimizer_cls_and_kwargs = (torch.optim.AdamW, {"lr": 5e-3, "weight_decay": 0.01, "foreach": False})
        theirs.args.max_grad_norm = 0.5
        theirs.train()
        for a, b in zip(self.weights(ours), self.weights(theirs), strict=True):
            self.assertLess(float((a - b).abs().max()), 1e-4)

    def test_clipping_twice_is_refused(self):
        arguments = TrainingArguments(output_dir=self.folder, report_to=[], use_cpu=True)
        with self.assertRaisesRegex(lib.ArgumentError, "max_grad_norm=0"):
            tt.attach(Trainer(make_model(), arguments, train_dataset=Texts(),
                              optimizer_cls_and_kwargs=(tt.AdamW, SETTINGS)))


    def test_clipping_by_the_trainer(self):
        """The Trainer clips the gradients in .grad, also if nothing is attached to it, and knows the norm."""
        def trained(name, settings, max_grad_norm):
            trainer = self.trainer(name)
            trainer.callback_handler.callbacks.pop(0)
            del trainer._get_grad_norm
            trainer.args.max_grad_norm = max_grad_norm
            trainer.optimizer_cls_and_kwargs = (tt.AdamW, {"lr": 5e-3, "weight_decay": 0.01, **settings})
            trainer.train()
            return self.weights(trainer), [row["grad_norm"] for row in trainer.state.log_history if "loss" in row]

        clipped, norms = trained("clipped", {"max_grad_norm": 0.5}, 0.0)
        by_trainer, their_norms = trained("by_trainer", {}, 0.5)
        self.assertTrue(all(norm > 0.5 for norm in norms), norms)
        for a, b in zip(norms, their_norms, strict=True):
            self.assertLess(abs(a - b), 1e-4 * b)
        for a, b in zip(clipped, by_trainer, strict=True):
            self.assertLess(float((a - b).abs().max()), 1e-4)
        for settings in ({"take_gradients": True}, {"updates": "backward"}):
            with self.assertRaisesRegex(lib.OrderError, "the optimizer has taken.*take_gradients=False"):
                trained("taken", settings, 0.5)


class UnderAccelerate(unittest.TestCase):
    def test_clipping(self):
        """The result is the same as torch's optimizer gives under the same clip_grad_norm_() of Accelerate."""
        from accelerate import Accelerator
        results = []
        for make in (lambda p: torch.optim.AdamW(p, lr=5e-3, foreach=False), lambda p: tt.AdamW(p, lr=5e-3)):
            accelerator = Accelerator(cpu=True)
            model = make_model()
            model, optimizer = accelerator.prepare(model, make(model.parameters()))
            norms = []
            for index in range(4):
                ids = Texts()[index]["input_ids"].reshape(1, -1)
                accelerator.backward(model(input_ids=ids, labels=ids).loss)
                norms.append(float(accelerator.clip_grad_norm_(model.parameters(), 0.5)))
                optimizer.step()
                optimizer.zero_grad()
            results.append((norms, [p.detach() for p in model.parameters()]))
        self.assertTrue(all(norm > 0.5 for norm in results[0][0]), results[0][0])
        for a, b in zip(results[0][1], results[1][1], strict=True):
            self.assertLess(float((a - b).abs().max()), 1e-5)

    def test_accumulation_is_as_without(self):
        from accelerate import Accelerator

        def train(accelerator):
            model = make_model()
            optimizer = tt.AdamW(model.parameters(), **SETTINGS)
            batches = torch.utils.data.DataLoader(Texts(), batch_size=4)
            if accelerator is not None:
                model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
            for number, batch in enumerate(batches):
                if accelerator is None:
                    (model(**batch).loss / 4).backward()
                    if number % 4 == 3:
                        optimizer.step()
                        optimizer.zero_grad()
                    continue
                with accelerator.accumulate(model):
                    accelerator.backward(model(**batch).loss)
                    optimizer.step()
                    optimizer.zero_grad()
            return [p.detach() for p in model.parameters()]

        plain = train(None)
        under = train(Accelerator(cpu=True, gradient_accumulation_steps=4))
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(plain, under, strict=True)))


def train_rank(rank, port, answers):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2")
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    model = make_model()
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = tt.AdamW(parallel.parameters(), **SETTINGS)
    texts = Texts()
    for step in range(6):
        batch = torch.stack([texts[step * 4 + rank * 2 + i]["input_ids"] for i in range(2)])
        parallel(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    answers.put((rank, [p.detach().numpy() for p in model.parameters()]))
    torch.distributed.destroy_process_group()


class UnderDistributedDataParallel(unittest.TestCase):
    def test_two_ranks_train_as_one(self):
        context = torch.multiprocessing.get_context("spawn")
        answers = context.Queue()
        port = 20000 + os.getpid() % 20000
        ranks = [context.Process(target=train_rank, args=(rank, port, answers)) for rank in range(2)]
        for process in ranks:
            process.start()
        got = dict(answers.get(timeout=120) for _ in ranks)
        for process in ranks:
            process.join(60)
        model = make_model()
        optimizer = tt.AdamW(model.parameters(), **SETTINGS)
        texts = Texts()
        for step in range(6):
            batch = torch.stack([texts[step * 4 + i]["input_ids"] for i in range(4)])
            model(input_ids=batch, labels=batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        for first, second, whole in zip(got[0], got[1], model.parameters(), strict=True):
            self.assertTrue((first == second).all())
            self.assertLess(float(abs(torch.from_numpy(first) - whole.detach()).max()), 1e-4)


if __name__ == "__main__":
    unittest.main(verbosity=1)
