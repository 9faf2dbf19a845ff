#!/usr/bin/env python3
"""Models of transformers whose parameters Terrace moves, against the same models without: torch_offload_test.py
PACKAGE_FOLDER

Needs TERRACE_LIBRARY, the library of this build.
"""

import sys
import tempfile
import unittest

PACKAGE = sys.argv.pop(1)
sys.path.insert(0, PACKAGE)

import torch  # noqa: E402
import transformers  # noqa: E402

import terrace.torch as tt  # noqa: E402

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


if __name__ == "__main__":
    unittest.main()
