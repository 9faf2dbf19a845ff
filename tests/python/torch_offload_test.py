#!/usr/bin/env python3
"""Compares models of transformers whose parameters Terrace moves with the same models without Terrace:
torch_offload_test.py PACKAGE_FOLDER

Needs TERRACE_LIBRARY, the library of this build.
"""

import copy
import filecmp
import multiprocessing
import os
import pickle
import sys
import tempfile
import unittest
import warnings

PACKAGE = sys.argv.pop(1)
sys.path.insert(0, PACKAGE)

import torch  # noqa: E402
import transformers  # noqa: E402

import terrace.torch as tt  # noqa: E402
from terrace import library as lib  # noqa: E402
from terrace.torch.offload import movement_of  # noqa: E402

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
VOCABULARY = 97


def llama(tied=True, dtype=torch.float32):
    config = transformers.LlamaConfig(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=3,
                                      num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                                      tie_word_embeddings=tied, bos_token_id=0, eos_token_id=1, pad_token_id=2)
    torch.manual_seed(1)
    return transformers.LlamaForCausalLM(config).to(dtype)


def gpt2(tied=True, dtype=torch.float32):
    config = transformers.GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=3, n_head=4, n_positions=64,
                                     tie_word_embeddings=tied, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
                                     bos_token_id=0, eos_token_id=1, pad_token_id=2)
    torch.manual_seed(1)
    return transformers.GPT2LMHeadModel(config).to(dtype)


def optimizer_of(model, **more):
    return tt.AdamW(model.parameters(), lr=1e-2, arithmetic="terrace", **{"max_grad_norm": 1.0, **more})


def tokens(seed, length=16):
    return torch.randint(3, VOCABULARY, (2, length), generator=torch.Generator().manual_seed(seed))


def one_step(model, optimizer, step, micro_batches=2, length=16):
    """Does one step. Returns its losses."""
    losses = []
    for m in range(micro_batches):
        ids = tokens(10 * step + m, length)
        loss = model(input_ids=ids, labels=ids).loss / micro_batches
        loss.backward()
        losses.append(loss.item())
    optimizer.step()
    optimizer.zero_grad()
    return losses


class OffloadTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.nvme = folder.name

    def assert_same_parameters(self, plain, model):
        with tt.materialize(model):
            for (name, expected), (_, parameter) in zip(plain.named_parameters(), model.named_parameters()):
                self.assertTrue(torch.equal(expected, parameter), name)

    def assert_runs_compiled(self, model):
        """Does a step, and checks that it runs in the order of the compiled step."""
        movement = movement_of(model)
        optimizer = movement.optimizer()
        told = []
        deviate = movement._deviate
        movement._deviate = lambda *a, **k: (told.append(1), deviate(*a, **k))
        one_step(model, optimizer, 77)
        movement._deviate = deviate
        self.assertEqual(told, [])

    def assert_same_training(self, make, run, **options):
        """Trains a model with and without offload. Compares parameters, and the results of run(model, optimizer)."""
        plain = make()
        expected = run(plain, optimizer_of(plain, take_gradients=True))  # adds micro-batches in fp32, as offload does
        model = tt.offload(make(), **options)
        optimizer = optimizer_of(model)
        self.assertEqual(run(model, optimizer), expected)
        self.assert_same_parameters(plain, model)
        return model, optimizer


class Trainings(OffloadTest):
    def test_heads_and_tiers(self):
        """Losses and parameters are the same to the bit: with clipping and micro-batches, on drives and the host."""
        def run(model, optimizer):
            return [one_step(model, optimizer, step) for step in range(4)]

        for make in (llama, gpt2):
            for tied in (True, False):
                for options in ({"nvme": self.nvme}, {}, {"nvme": self.nvme, "parameters": "nvme",
                                                          "gradients": "nvme", "optimizer": "nvme",
                                                          "activations": "nvme"}):
                    with self.subTest(make=make, tied=tied, options=options):
                        self.assert_same_training(lambda: make(tied), run, **options)

    def test_gradient_checkpointing(self):
        """Both kinds of checkpointing give the same training, with activations with torch and on a drive."""
        def run(model, optimizer):
            return [one_step(model, optimizer, step) for step in range(4)]

        for make in (llama, gpt2):
            for reentrant in (True, False):
                for options in ({}, {"activations": "nvme"}):
                    with self.subTest(make=make, reentrant=reentrant, options=options):
                        def checkpointed():
                            model = make()
                            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
                            model.enable_input_require_grads() if reentrant else None
                            return model.train()

                        model, _ = self.assert_same_training(checkpointed, run, nvme=self.nvme, **options)
                        self.assert_runs_compiled(model)

    def test_bf16(self):
        def run(model, optimizer):
            return [one_step(model, optimizer, step) for step in range(4)]

        for make in (llama, gpt2):
            with self.subTest(make=make):
                self.assert_same_training(lambda: make(dtype=torch.bfloat16), run, nvme=self.nvme)

    def test_frozen_parts(self):
        """Freezes whole units, and parts of units."""
        def frozen(names):
            model = gpt2()
            for name, parameter in model.named_parameters():
                parameter.requires_grad = not any(part in name for part in names)
            return model

        def run(model, optimizer):
            return [one_step(model, optimizer, step) for step in range(4)]

        for names in (("h.1.",), ("attn", "ln_f"), ("wte", "wpe", "h.0.")):
            for dtype in (torch.float32, torch.bfloat16):
                with self.subTest(names=names, dtype=dtype):
                    model, _ = self.assert_same_training(lambda: frozen(names).to(dtype), run, nvme=self.nvme)
                    self.assert_runs_compiled(model)

    def test_evaluation_between_steps(self):
        """Evaluates between steps, between micro-batches, and between forward and backward."""
        def run(model, optimizer):
            told = []
            for step in range(4):
                told.append(one_step(model, optimizer, step))
                with torch.no_grad():
                    told.append(model(input_ids=tokens(99)).logits.sum().item())
                told.append(model.generate(tokens(98, 4), max_new_tokens=4, do_sample=False).tolist())
                if step == 2:
                    for m in range(2):
                        loss = model(input_ids=tokens(m), labels=tokens(m)).loss
                        with torch.inference_mode():
                            told.append(model(input_ids=tokens(97)).logits.sum().item())
                        loss.backward()
                        told.append(loss.item())
                        with torch.no_grad():
                            told.append(model(input_ids=tokens(97)).logits.sum().item())
                    optimizer.step()
                    optimizer.zero_grad()
            return told

        for make in (llama, gpt2):
            for options in ({}, {"activations": "nvme"}):
                for dtype in (torch.float32, torch.bfloat16):
                    with self.subTest(make=make, options=options, dtype=dtype):
                        self.assert_same_training(lambda: make(dtype=dtype), run, nvme=self.nvme, **options)

    def test_steps_that_take_another_way(self):
        """Steps have fewer or more micro-batches, longer texts, two forwards before two backwards, another learning
        rate, gradients that are forgotten, an exception in the middle, or a part that freezes later."""
        def run(model, optimizer):
            told = [one_step(model, optimizer, 0), one_step(model, optimizer, 1)]
            told += [one_step(model, optimizer, 2 + i, micro_batches=m) for i, m in enumerate((1, 3, 3, 2, 3))]
            told += [one_step(model, optimizer, 7 + i, length=length) for i, length in enumerate((30, 30, 16))]
            for step in range(3):
                losses = [model(input_ids=tokens(m), labels=tokens(m)).loss for m in range(2)]
                told.append([loss.item() for loss in losses])
                sum(losses).backward()
                optimizer.step()
                optimizer.zero_grad()
            model(input_ids=tokens(5), labels=tokens(5)).loss.backward()
            optimizer.param_groups[0]["lr"] = 3e-3
            optimizer.step()
            optimizer.zero_grad()
            model(input_ids=tokens(5), labels=tokens(5)).loss.backward()
            optimizer.zero_grad()
            loss = model(input_ids=tokens(6), labels=tokens(6)).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            with self.assertRaises(IndexError):
                model(input_ids=torch.full((2, 16), VOCABULARY))
            told += [one_step(model, optimizer, 11 + i) for i in range(2)]
            for name, parameter in model.named_parameters():
                parameter.requires_grad = "h.0." not in name and "layers.0." not in name
            told += [one_step(model, optimizer, 13 + i) for i in range(3)]
            return told

        for make in (llama, gpt2):
            for options in ({}, {"activations": "nvme"}):
                with self.subTest(make=make, options=options), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    self.assert_same_training(make, run, nvme=self.nvme, **options)

    def test_parameters_are_gone_between_uses(self):
        model = tt.offload(llama(), nvme=self.nvme)
        optimizer = optimizer_of(model)
        most = []

        def measure(*_):
            sizes = [p.untyped_storage().nbytes() for p in model.parameters()]
            most.append(sum(sizes))

        for module in model.modules():
            if not list(module.children()):
                module.register_forward_hook(measure)
        for step in range(3):
            one_step(model, optimizer, step)
            self.assertEqual(sum(p.untyped_storage().nbytes() for p in model.parameters()), 0)
            self.assertTrue(all(p.grad is None for p in model.parameters()))
        layer = 4 * sum(p.numel() for p in model.model.layers[0].parameters())
        embedding = 4 * model.lm_head.weight.numel()
        self.assertLessEqual(max(most), max(layer, embedding))


class Files(OffloadTest):
    def trained_pair(self, make, dtype=torch.float32):
        """Returns a saved model twice, loaded by transformers and by Terrace, each after two steps."""
        source = os.path.join(self.nvme, "source")
        make(dtype=dtype).save_pretrained(source)
        plain = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
        model = tt.load_pretrained(source, nvme=self.nvme)
        self.assertEqual(model.dtype, dtype)
        optimizers = optimizer_of(plain, take_gradients=True), optimizer_of(model)
        for step in range(2):
            self.assertEqual(one_step(plain, optimizers[0], step), one_step(model, optimizers[1], step))
        return plain, model, optimizers

    def test_load_train_save(self):
        """Files of save_pretrained() have equal bytes, and a resumed training goes on with the same bits."""
        for make in (llama, gpt2):
            for dtype in (torch.float32, torch.bfloat16):
                with self.subTest(make=make, dtype=dtype):
                    plain, model, optimizers = self.trained_pair(make, dtype)
                    folders = [os.path.join(self.nvme, name) for name in ("plain", "ours")]
                    plain.save_pretrained(folders[0])
                    model.save_pretrained(folders[1])
                    names = sorted(os.listdir(folders[0]))
                    self.assertEqual(sorted(os.listdir(folders[1])), names)
                    self.assertEqual(filecmp.cmpfiles(*folders, names, shallow=False), (names, [], []))
                    again = transformers.AutoModelForCausalLM.from_pretrained(folders[1], dtype=dtype)
                    self.assertTrue(all(torch.equal(a, b) for a, b in zip(again.parameters(), plain.parameters())))

                    state = os.path.join(self.nvme, "optimizer.pt")
                    torch.save(optimizers[1].state_dict(), state)
                    resumed = tt.load_pretrained(folders[1], nvme=self.nvme, parameters="host")
                    optimizer = optimizer_of(resumed)
                    optimizer.load_state_dict(torch.load(state, weights_only=True))
                    for step in range(2, 4):
                        expected = one_step(plain, optimizers[0], step)
                        self.assertEqual(one_step(model, optimizers[1], step), expected)
                        self.assertEqual(one_step(resumed, optimizer, step), expected)
                    self.assert_same_parameters(plain, resumed)

    def test_state_goes_back(self):
        """Loads a state after steps: of the optimizer without offload, into that one and into this one."""
        plain, model, optimizers = self.trained_pair(gpt2, torch.float32)
        expected = optimizers[0].state_dict()
        told = optimizers[1].state_dict()
        self.assertEqual(told["state"].keys(), expected["state"].keys())
        for number, fields in expected["state"].items():
            for name, value in fields.items():
                self.assertTrue(torch.equal(told["state"][number][name], value), (number, name))
        earlier = {key: copy.deepcopy(value) for key, value in expected.items()}
        one_step(model, optimizers[1], 5)
        one_step(plain, optimizers[0], 5)
        for optimizer in optimizers:
            optimizer.load_state_dict(copy.deepcopy(earlier))
        self.assertEqual(one_step(model, optimizers[1], 6), one_step(plain, optimizers[0], 6))
        self.assert_same_parameters(plain, model)

    def test_state_dict(self):
        """Compares the state_dict() of the model and of a module in it, before the first step and after, and between
        forward and backward."""
        plain, model = gpt2(), tt.offload(gpt2(), nvme=self.nvme)
        optimizers = optimizer_of(plain), optimizer_of(model)
        for step in range(3):
            for expected, told in ((plain.state_dict(), model.state_dict()),
                                   (plain.transformer.h[1].state_dict(), model.transformer.h[1].state_dict())):
                self.assertEqual(list(told), list(expected))
                self.assertTrue(all(torch.equal(told[name], expected[name]) for name in told))
            losses = [m(input_ids=tokens(step), labels=tokens(step)).loss for m in (plain, model)]
            self.assertTrue(torch.equal(model.state_dict()["lm_head.weight"], plain.lm_head.weight))
            for loss, optimizer in zip(losses, optimizers):
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        self.assert_same_parameters(plain, model)
        told = model.state_dict()
        self.assertEqual(told["lm_head.weight"].data_ptr(), told["transformer.wte.weight"].data_ptr())

    def test_a_model_on_the_meta_device(self):
        values = {name: p.detach().clone() for name, p in llama().named_parameters()}
        with tt.parameters_on_meta():
            made = llama()
        with self.assertRaisesRegex(lib.ArgumentError, "initialize="):
            tt.offload(made, nvme=self.nvme)
        asked = []

        def initialize(name, tensor):
            asked.append(name)
            tensor.copy_(values[name])

        model = tt.offload(made, nvme=self.nvme, initialize=initialize)
        self.assertEqual(len(asked), len(set(asked)))
        plain = llama()
        optimizers = optimizer_of(plain), optimizer_of(model)
        for step in range(3):
            self.assertEqual(one_step(model, optimizers[1], step), one_step(plain, optimizers[0], step))
        self.assert_same_parameters(plain, model)

    def test_scratch_files_go(self):
        model = tt.offload(gpt2(), nvme=self.nvme, activations="nvme")
        optimizer = optimizer_of(model)
        one_step(model, optimizer, 0)
        one_step(model, optimizer, 1)
        kept = model.state_dict()
        self.assertEqual(os.listdir(self.nvme), [])
        del kept


class Activations(OffloadTest):
    def test_where_they_are(self):
        """Activations are in the memory of their unit, or in a file while a step is recorded, and none with torch."""
        model = tt.offload(llama(tied=False), nvme=self.nvme, activations="nvme")
        optimizer = optimizer_of(model)
        movement = movement_of(model)
        kept = []
        store = movement.store
        movement.store = lambda saved, *rest: (
            store(saved, *rest), kept.append((saved.tensor, saved.file, saved.task)))
        for step in range(3):
            one_step(model, optimizer, step, micro_batches=1, length=60)
            self.assertGreater(len(kept), 30)
            for tensor, file, task in kept:
                self.assertIsNone(tensor)
                self.assertEqual((file is None, task is None), (step > 0, step == 0))
            kept.clear()
        sizes = [part.saved_bytes for parts in movement.compiled.parts.values() for part in parts]
        hidden_states = 2 * 60 * 32 * 4
        self.assertEqual(sum(size > 10 * hidden_states for size in sizes), 3, sizes)

    def test_a_graph_that_is_kept(self):
        """A second backward of one forward reads the same saved tensors as the first."""
        def run(model, optimizer):
            told = []
            for step in range(3):
                loss = model(input_ids=tokens(step), labels=tokens(step)).loss
                loss.backward(retain_graph=True)
                loss.backward()
                told.append(loss.item())
                optimizer.step()
                optimizer.zero_grad()
            return told

        for options in ({}, {"activations": "nvme"}):
            with self.subTest(options=options):
                self.assert_same_training(llama, run, nvme=self.nvme, **options)


class Refusals(OffloadTest):
    def offloaded(self):
        model = tt.offload(gpt2(), nvme=self.nvme)
        return model, optimizer_of(model)

    def test_copies_and_moves(self):
        model, optimizer = self.offloaded()
        one_step(model, optimizer, 0)
        self.assertIs(model.to("cpu"), model)
        for wrong, text in ((lambda: model.to(torch.bfloat16), "choose the type"), (model.half, "choose the type"),
                            (lambda: model.transformer.to("meta"), "stays"),
                            (lambda: copy.deepcopy(model), "copied"), (lambda: copy.deepcopy(model.lm_head), "copied"),
                            (lambda: pickle.dumps(model), "pickled"),
                            (lambda: model.load_state_dict(gpt2().state_dict()), "load_pretrained"),
                            (lambda: optimizer.save(self.nvme), "state_dict"), (lambda: optimizer.adopt([]), "before")):
            with self.assertRaisesRegex(lib.UnsupportedError, text):
                wrong()
        with self.assertRaisesRegex(lib.OrderError, "already"):
            tt.offload(model)
        one_step(model, optimizer, 1)

    def test_optimizers(self):
        model, _ = self.offloaded()
        matrices = [p for p in model.parameters() if p.dim() == 2]
        others = [p for p in model.parameters() if p.dim() != 2]
        for groups, error, text in (
                ([{"params": matrices, "lr": 1e-4}, {"params": others}], lib.UnsupportedError, "learning rates"),
                ([{"params": matrices, "betas": (0.8, 0.9)}, {"params": others}], lib.UnsupportedError, "adam_beta1"),
                ([{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.2}],
                 lib.UnsupportedError, "weight_decay 0.1 and 0.2"),
                (matrices, lib.UnsupportedError, "is in no group"),
                (list(model.parameters()) + [torch.nn.Parameter(torch.ones(3))], lib.ArgumentError, "none of")):
            with self.assertRaisesRegex(error, text):
                tt.AdamW(groups)
        for wrong in ({"state": "nvme"}, {"host_memory": "1GiB"}, {"nvme": self.nvme}, {"threads": 2},
                      {"take_gradients": False}):
            with self.assertRaisesRegex(lib.ArgumentError, next(iter(wrong))):
                tt.AdamW(model.parameters(), **wrong)

    def test_groups_that_differ_in_weight_decay(self):
        def run(model, _):
            groups = [{"params": [p for p in model.parameters() if p.dim() == 2], "weight_decay": 0.1},
                      {"params": [p for p in model.parameters() if p.dim() != 2], "weight_decay": 0.0}]
            optimizer = tt.AdamW(groups, lr=1e-2, arithmetic="terrace", max_grad_norm=1.0)
            return [one_step(model, optimizer, step) for step in range(3)]

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.assert_same_training(gpt2, run, nvme=self.nvme)

    def test_arguments(self):
        for wrong, text in (({"parameters": "disk"}, "parameters='disk'"), ({"optimizer": "nvme"}, "nvme="),
                            ({"nvme": "/nowhere"}, "/nowhere"), ({"host_memory": "much"}, "no size"),
                            ({"activations": "nvme"}, "activations")):
            with self.assertRaisesRegex(lib.ArgumentError, text):
                tt.offload(gpt2(), **wrong)
        with self.assertRaisesRegex(lib.DTypeError, "wte.weight"):
            tt.offload(gpt2().half())
        mixed = gpt2()
        mixed.transformer.ln_f.to(torch.bfloat16)
        with self.assertRaisesRegex(lib.UnsupportedError, "ln_f.weight"):
            tt.offload(mixed)

    def test_a_budget_that_is_too_small(self):
        model = tt.offload(gpt2(), nvme=self.nvme, host_memory="64KiB")
        optimizer = optimizer_of(model)
        with self.assertRaisesRegex(lib.DoesNotFitError, "host_memory="):
            one_step(model, optimizer, 0)

    def test_gradients_that_are_missing_or_not_finite(self):
        model, optimizer = self.offloaded()
        plain = gpt2()
        other = optimizer_of(plain)
        for step in range(3):
            one_step(model, optimizer, step)
            one_step(plain, other, step)
            (model(input_ids=tokens(1), labels=tokens(1)).loss * float("inf")).backward()
            with self.assertRaises(lib.NotFiniteError):
                optimizer.step()
            optimizer.zero_grad()
        self.assert_same_parameters(plain, model)
        model.transformer.wte(tokens(3)).sum().backward()
        with self.assertRaisesRegex(lib.MissingGradientError, "requires_grad_"):
            optimizer.step()

    def test_a_parameter_that_is_written(self):
        model, optimizer = self.offloaded()
        with self.assertRaisesRegex(lib.ParameterChangedError, "ln_f.weight"):
            with tt.materialize(model, ["transformer.ln_f.weight"]), torch.no_grad():
                model.transformer.ln_f.weight.mul_(2)
        with self.assertRaisesRegex(lib.ArgumentError, "nothing"):
            tt.materialize(model, ["nothing"])

    def test_a_forked_process(self):
        model, optimizer = self.offloaded()
        one_step(model, optimizer, 0)

        def use(queue):
            try:
                with torch.no_grad():
                    model(input_ids=tokens(1))
                queue.put("no error")
            except lib.ForkedError as error:
                queue.put(str(error))

        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        child = context.Process(target=use, args=(queue,))
        child.start()
        self.assertIn("spawn", queue.get(timeout=60))
        child.join()


if __name__ == "__main__":
    unittest.main()
