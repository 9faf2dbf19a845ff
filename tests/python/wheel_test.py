#!/usr/bin/env python3
"""Installs a wheel into a fresh virtual environment, and uses it where nothing of the checkout is found:
wheel_test.py WHEEL CHECKOUT

Without WHEEL it first builds one by tools/build_wheel.sh, which calls this test again. With torch (TERRACE_TORCH
names a folder of site-packages that has it), three lines of Python also train.
"""

import os
import subprocess
import sys
import tempfile
import unittest
import venv
import zipfile
from pathlib import Path

if len(sys.argv) == 2:
    sys.exit(subprocess.call([f"{sys.argv[1]}/tools/build_wheel.sh"]))
WHEEL, CHECKOUT = Path(sys.argv[1]), sys.argv[2]
del sys.argv[1:]
TORCH = os.environ.get("TERRACE_TORCH", "")

# Trains in three lines, and prints whether the loss fell.
THREE_LINES = """
import torch, terrace.torch
model = torch.nn.Linear(4, 4); optimizer = terrace.torch.AdamW(model.parameters(), lr=0.1)
losses = [(loss := model(torch.ones(2, 4)).square().mean(), loss.backward(), optimizer.step(), optimizer.zero_grad())
          for _ in range(20)]
print(losses[-1][0].item() < losses[0][0].item())
"""


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        venv.create(cls.folder / "fresh", with_pip=True)
        cls.python = cls.folder / "fresh/bin/python"
        cls.run_quietly(cls.python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", str(WHEEL))

    @classmethod
    def run_quietly(cls, *command, **more):
        kept = {name: value for name, value in os.environ.items()
                if name not in ("TERRACE_LIBRARY", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME")}
        done = subprocess.run(command, text=True, errors="replace", capture_output=True, cwd=cls.folder,
                              env={**kept, **more})
        if done.returncode != 0:
            raise AssertionError(f"{command}: exit {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def test_its_tag_is_the_one_that_it_is_built_for(self):
        self.assertTrue(WHEEL.name.endswith("-py3-none-manylinux_2_36_x86_64.whl"), WHEEL.name)

    def test_licence_and_types_and_libraries_are_in_it(self):
        names = zipfile.ZipFile(WHEEL).namelist()
        self.assertIn("terrace/py.typed", names)
        self.assertTrue([name for name in names if name.endswith("/LICENSE")], names)
        for library in ("libdnnl", "libtbb", "libhwloc", "liburing"):
            self.assertTrue([name for name in names if f".libs/{library}" in name], library)

    def test_the_version_is_that_of_the_distribution(self):
        code = "import importlib.metadata as m, terrace; print(terrace.__version__, m.version('terrace-runtime'))"
        library, metadata = self.run_quietly(self.python, "-c", code).split()
        self.assertEqual(library, metadata)
        self.assertIn(library, WHEEL.name)

    def test_nothing_of_the_checkout_is_loaded(self):
        code = ("import terrace, terrace.library; terrace.library.library(); print(terrace.__file__); "
                "print(open('/proc/self/maps').read())")
        told = self.run_quietly(self.python, "-c", code)
        self.assertIn("libterrace", told)
        self.assertIn(str(self.folder), told)
        self.assertNotIn(CHECKOUT + "/", told)

    def test_its_command_trains_and_samples(self):
        terrace = self.folder / "fresh/bin/terrace"
        (self.folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 200)
        told = self.run_quietly(terrace, "train", "--model", "nano", "--data", "text.txt", "--sequence-length", "32",
                                "--max-steps", "3", "--run-dir", "run")
        self.assertIn("step 3", told)
        sampled = self.run_quietly(terrace, "sample", "--model", "run/final", "--prompt", "the ", "--max-new-tokens",
                                   "4")
        self.assertTrue(sampled.startswith("the "), sampled)

    @unittest.skipUnless(TORCH, "TERRACE_TORCH names no folder with torch")
    def test_three_lines_train_with_torch(self):
        self.assertEqual(self.run_quietly(self.python, "-c", THREE_LINES, PYTHONPATH=TORCH).strip(), "True")


if __name__ == "__main__":
    unittest.main()
