#!/usr/bin/env python3
"""Tests load_pretrained() on directories that are not what they seem, and offload() of models of from_pretrained():
torch_pretrained_test.py PACKAGE_FOLDER

docs/checkpoint.md has the rules, under "Model directories". Needs TERRACE_LIBRARY.
"""

import json
import os
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

PACKAGE = sys.argv.pop(1)
sys.path.insert(0, PACKAGE)
os.environ["HF_HUB_OFFLINE"] = "1"

import torch  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import AutoModelForCausalLM, LlamaConfig  # noqa: E402

import terrace.torch as tt  # noqa: E402
from terrace import library as lib  # noqa: E402

torch.set_num_threads(1)
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
IDS = torch.arange(5, 13).reshape(1, -1)


def make_model(seed=1, **more):
    torch.manual_seed(seed)
    settings = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
                "num_key_value_heads": 1, "vocab_size": 96, "max_position_embeddings": 32, "pad_token_id": None,
                "tie_word_embeddings": False, **more}
    return AutoModelForCausalLM.from_config(LlamaConfig(**settings)).eval()


def logits(model):
    with torch.no_grad():
        return model(IDS).logits


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def saved(self, model, name="model", **more):
        directory = self.folder / name
        shutil.rmtree(directory, ignore_errors=True)
        model.save_pretrained(directory, **more)
        return directory

    def check(self, directory, model):
        self.assertTrue(torch.equal(logits(tt.load_pretrained(directory)), logits(model)))

    def refused(self, directory, *says, error=lib.ArgumentError):
        with self.assertRaises(error) as caught:
            tt.load_pretrained(directory)
        for word in says:
            self.assertIn(word, str(caught.exception))

    @staticmethod
    def change(directory, change, name=SINGLE, to=None):
        tensors = load_file(directory / name)
        change(tensors)
        save_file(tensors, directory / (to or name), metadata={"format": "pt"})

    @staticmethod
    def change_json(path, change):
        values = json.loads(path.read_text(encoding="utf-8"))
        change(values)
        path.write_text(json.dumps(values), encoding="utf-8")


def add_to_all(tensors):
    for name in tensors:
        tensors[name] = tensors[name] + 0.3


class WeightFiles(Case):
    def test_other_files_beside_it_do_not_count(self):
        model = make_model()
        for more in ({}, {"max_shard_size": "8KB"}):
            directory = self.saved(model, **more)
            source = SINGLE if not more else next(directory.glob("model-*.safetensors")).name
            for name in ("consolidated.safetensors", "original.safetensors", "model.fp16.safetensors", "z.safetensors"):
                self.change(directory, add_to_all, source, name)
            self.check(directory, model)

    def test_no_weights_that_can_be_read(self):
        directory = self.saved(make_model())
        (directory / SINGLE).rename(directory / "model.fp16.safetensors")
        self.refused(directory, "neither", "model.fp16.safetensors")
        (directory / "model.fp16.safetensors").rename(directory / "pytorch_model.bin")
        self.refused(directory, "neither", "pytorch_model.bin", "save_pretrained()")
        (directory / SINGLE).symlink_to("../blobs/gone")
        self.refused(directory, SINGLE, "cannot be read")

    def test_the_cache_of_the_hub(self):
        model = make_model()
        cached = self.folder / "models--A--B"
        self.saved(model, "models--A--B/snapshots/one")
        self.check(cached, model)
        self.saved(make_model(2), "models--A--B/snapshots/two")
        self.refused(cached, "there is no refs/main", "one, two")
        (cached / "refs").mkdir()
        (cached / "refs/main").write_text("one")
        self.check(cached, model)
        self.check(cached / "snapshots", model)

    def test_a_pointer_of_git_lfs(self):
        directory = self.saved(make_model())
        (directory / SINGLE).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
        self.refused(directory, SINGLE, "git lfs pull")

    def test_a_download_that_was_cut(self):
        directory = self.saved(make_model())
        whole = (directory / SINGLE).read_bytes()
        for content in (whole[:-4], whole[:100], b""):
            (directory / SINGLE).write_bytes(content)
            self.refused(directory, "no whole safetensors file")

    def test_a_single_file_and_an_index(self):
        model = make_model()
        directory = self.saved(model, max_shard_size="8KB")
        single = self.saved(model, "single") / SINGLE
        shutil.copy(single, directory)
        self.check(directory, model)  # two saves of one model
        next(directory.glob("model-*.safetensors")).unlink()
        self.check(directory, model)

        for other in (make_model(2), make_model(num_hidden_layers=1), make_model().bfloat16()):
            directory = self.saved(model, max_shard_size="8KB")
            shutil.copy(self.saved(other, "single") / SINGLE, directory)
            self.refused(directory, "both", SINGLE, INDEX, "two models")

    def test_an_index_that_is_wrong(self):
        for change, says in ((lambda index: index["weight_map"].update({"model.norm.weight": "gone.safetensors"}),
                              "gone.safetensors"),
                             (lambda index: index["weight_map"].update({"model.norm.weight": "../x.safetensors"}),
                              "beside it"),
                             (lambda index: index.pop("weight_map"), "cannot be read"),
                             (lambda index: index["weight_map"].update({"more": index["weight_map"]
                                                                        ["model.norm.weight"]}), "more")):
            directory = self.saved(make_model(), max_shard_size="8KB")
            self.change_json(directory / INDEX, change)
            self.refused(directory, says)

    def test_a_tied_head_that_is_stored(self):
        model = make_model(tie_word_embeddings=True)
        directory = self.saved(model)

        def add_head(tensors):
            tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

        self.change(directory, add_head)
        self.check(directory, model)
        self.change(directory, lambda tensors: tensors["lm_head.weight"][-1].add_(1))
        self.refused(directory, "lm_head.weight", "tie_word_embeddings")

    def test_codes_of_quantized_weights(self):
        def to_codes(tensors):
            for name in [name for name in tensors if "proj" in name]:
                tensors[name] = (tensors[name] * 100).round().to(torch.int8)

        directory = self.saved(make_model())
        self.change(directory, to_codes)
        self.refused(directory, "int8", "proj", error=lib.DTypeError)
        self.change_json(directory / "config.json", lambda config: config.update(
            quantization_config={"quant_method": "bitsandbytes", "load_in_8bit": True}))
        self.refused(directory, "quantization_config", error=lib.UnsupportedError)


class MappedParameters(Case):
    def test_offload_takes_what_from_pretrained_gives(self):
        for more in ({}, {"tie_word_embeddings": True}, {"dtype": torch.bfloat16}):
            model = make_model(**more)
            directory = self.saved(model)
            loaded = AutoModelForCausalLM.from_pretrained(directory)
            self.assertFalse(loaded.model.norm.weight.untyped_storage().resizable())
            before = list(loaded.parameters())
            offloaded = tt.offload(loaded)
            self.assertTrue(all(a is b for a, b in zip(before, offloaded.parameters(), strict=True)))
            self.assertTrue(torch.equal(logits(offloaded), logits(model)))
            for name in (SINGLE, "config.json"):
                self.assertTrue((directory / name).exists())

    def test_it_trains_and_leaves_the_files_as_they_are(self):
        directory = self.saved(make_model())
        whole = (directory / SINGLE).read_bytes()
        results = []
        for make in (lambda: tt.offload(AutoModelForCausalLM.from_pretrained(directory)),
                     lambda: tt.load_pretrained(directory)):
            model = make()
            optimizer = tt.AdamW(model.parameters(), lr=1e-2)
            for _ in range(3):
                model(input_ids=IDS, labels=IDS).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            results.append(logits(model))
        self.assertTrue(torch.equal(*results))
        self.assertEqual((directory / SINGLE).read_bytes(), whole)

    def test_state_that_is_mapped(self):
        path = self.folder / "state.pt"
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4))
        torch.save(model.state_dict(), path)
        other = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4))
        other.load_state_dict(torch.load(path, mmap=True), assign=True)
        x = torch.ones(2, 8)
        self.assertTrue(torch.equal(tt.offload(other)(x), model(x)))


class TakenGradients(Case):
    """Code that works on the taken gradients of an offloaded model is refused."""

    def begin(self):
        model = tt.offload(make_model())
        optimizer = tt.AdamW(model.parameters(), lr=1e-2, max_grad_norm=1.0)
        self.backward(model)
        return model, optimizer

    @staticmethod
    def backward(model):
        model(input_ids=IDS, labels=IDS).loss.backward()

    def test_clipping_by_others(self):
        model, optimizer = self.begin()
        with self.assertRaisesRegex(lib.OrderError, "the optimizer has taken.*max_grad_norm.*offloaded"):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with self.assertRaisesRegex(lib.OrderError, "used up: call zero_grad"):
            self.backward(model)

    def test_batches_that_are_given_up(self):
        results = []
        for give_up in (None, lambda model, optimizer: model.zero_grad(),
                        lambda model, optimizer: optimizer.zero_grad()):
            model, optimizer = self.begin()
            for step in range(3):
                if step == 1 and give_up is not None:
                    model(input_ids=IDS.flip(1), labels=IDS).loss.backward()
                    give_up(model, optimizer)
                if step:
                    self.backward(model)
                optimizer.step()
                optimizer.zero_grad()
            results.append(logits(model))
        for other in results[1:]:
            self.assertTrue(torch.equal(results[0], other))

    def test_one_that_is_given_up(self):
        model, optimizer = self.begin()
        model.model.norm.weight.grad = None
        for use in (optimizer.step, lambda: self.backward(model)):
            with self.assertRaisesRegex(lib.OrderError, "was removed or replaced|others were not|norm.weight"):
                use()
        optimizer.zero_grad()
        self.backward(model)
        optimizer.step()


if __name__ == "__main__":
    unittest.main(verbosity=1)
