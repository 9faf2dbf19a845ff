#!/usr/bin/env python3
"""Models of transformers whose parameters Terrace moves, against the same models without: torch_offload_test.py
PACKAGE_FOLDER

Needs TERRACE_LIBRARY, the library of this build.
"""

import sys
import tempfile
import unittest
import warnings

PACKAGE = sys.argv.pop(1)
sys.path.insert(0, PACKAGE)

import torch  # noqa: E402
import transformers  # noqa: E402

import terrace.torch as tt  # noqa: E402
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
    """Returns the losses."""
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
        """The next step keeps to the way that was compiled."""
        movement = movement_of(model)
        optimizer = movement.optimizer()
        told = []
        deviate = movement._deviate
        movement._deviate = lambda *a, **k: (told.append(1), deviate(*a, **k))
        one_step(model, optimizer, 77)
        movement._deviate = deviate
        self.assertEqual(told, [])

    def assert_same_training(self, make, run, **options):
        """run(model, optimizer) returns what is compared, beside the parameters."""
        plain = make()
        expected = run(plain, optimizer_of(plain))
        model = tt.offload(make(), **options)
        optimizer = optimizer_of(model)
        self.assertEqual(run(model, optimizer), expected)
        self.assert_same_parameters(plain, model)
        return model, optimizer


class Trainings(OffloadTest):
    def test_heads_and_tiers(self):
        """The same losses and parameters to the bit: forward, clipping, micro-batches, on drives and the host."""
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
        """Of both kinds, with heads that are tied and are not, and activations with torch and on a drive."""
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
        """Whole units that are frozen, and parts of units."""
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
        """Between steps, between micro-batches, and between forward and backward."""
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
        """Fewer and more micro-batches, longer texts, two forwards before two backwards, another learning rate,
        gradients that are forgotten, an exception in the middle, a part that freezes later."""
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

if __name__ == "__main__":
    unittest.main()
