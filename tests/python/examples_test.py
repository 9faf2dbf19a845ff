#!/usr/bin/env python3
"""Runs the examples as somebody does who has not read them: examples_test.py EXAMPLES_FOLDER LIBRARY HEADER_FOLDER

Without arguments the examples say how they are called. The example in C builds with the command that it names. Needs
torch and transformers, TERRACE_LIBRARY, and python/ in PYTHONPATH.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

EXAMPLES, LIBRARY, HEADERS = (Path(sys.argv.pop(1)).resolve() for _ in range(3))


class Examples(unittest.TestCase):
    def test_python_without_arguments(self):
        for path in sorted((EXAMPLES / "python").glob("*.py")):
            done = subprocess.run([sys.executable, "-B", path], capture_output=True, text=True, check=False,
                                  timeout=300)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertRegex(done.stderr, rf"(?m)^usage: {path.name} .*directory$")
            self.assertNotIn("Traceback", done.stderr)

    def test_c_builds_with_the_command_that_it_names(self):
        source = EXAMPLES / "c_trainer.c"
        command = re.search(r"^ \*\s+(cc .*pkg-config.*)$", source.read_text(encoding="utf-8"), re.MULTILINE)
        self.assertIsNotNone(command, "c_trainer.c names no command")
        if shutil.which("cc") is None:
            self.skipTest("there is no cc")
        flags = f"-I{HEADERS} {LIBRARY}"  # what pkg-config prints for an installed library
        words = re.sub(r"\$\(pkg-config [^)]*\)", flags, command[1])
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(source, folder)
            done = subprocess.run(words, shell=True, cwd=folder, capture_output=True, text=True, check=False,
                                  timeout=120)
            self.assertEqual(done.returncode, 0, done.stderr)
            done = subprocess.run([f"{folder}/c_trainer"], capture_output=True, text=True, check=False,
                                  env={**os.environ, "LD_LIBRARY_PATH": str(LIBRARY.parent)}, timeout=60)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("usage", (done.stdout + done.stderr).lower())


if __name__ == "__main__":
    unittest.main(verbosity=1)
