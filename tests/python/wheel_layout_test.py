#!/usr/bin/env python3
"""Makes the tree of pyproject.toml's wheel from a build, by `cmake --install`, and uses it where it stands:
wheel_layout_test.py SOURCE BUILD CMAKE
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import unittest
from pathlib import Path

SOURCE, BUILD, CMAKE = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
del sys.argv[1:]
SETTINGS = tomllib.loads((SOURCE / "pyproject.toml").read_text())
BACKEND = SETTINGS["tool"]["scikit-build"]


class WheelLayout(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.tree = Path(folder.name)
        for component in BACKEND["install"]["components"]:
            subprocess.run([CMAKE, "--install", BUILD, "--prefix", cls.tree, "--component", component], check=True,
                           stdout=subprocess.DEVNULL)
        cls.compiled = {path.relative_to(cls.tree) for path in cls.tree.rglob("*") if not path.is_dir()}
        for package in BACKEND["wheel"]["packages"]:
            shutil.copytree(SOURCE / package, cls.tree / Path(package).name, dirs_exist_ok=True,
                            ignore=shutil.ignore_patterns("__pycache__"))

    def run_in_tree(self, code, *arguments):
        environment = {name: value for name, value in os.environ.items()
                       if name not in ("TERRACE_LIBRARY", "LD_LIBRARY_PATH")}
        done = subprocess.run([sys.executable, "-B", "-c", code, *arguments], text=True, capture_output=True,
                              cwd="/", env={**environment, "PYTHONPATH": str(self.tree)})
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.strip()

    def test_every_module_of_the_sources_is_there(self):
        sources = {path.relative_to(SOURCE / "python") for path in (SOURCE / "python").rglob("*.py")}
        self.assertGreater(len(sources), 10)
        self.assertEqual({path.relative_to(self.tree) for path in self.tree.rglob("*.py")}, sources)

    def test_the_package_is_marked_as_typed(self):
        self.assertTrue((self.tree / "terrace/py.typed").exists())

    def test_what_is_compiled_is_the_library_and_the_program(self):
        self.assertEqual(self.compiled, {Path("terrace/lib/libterrace.so.1"), Path("terrace/bin/terrace")})

    def test_only_what_is_installed_is_compiled(self):
        self.assertEqual(BACKEND["build"]["targets"], ["terrace_c", "terrace"])
        self.assertEqual({BACKEND["cmake"]["define"][f"TERRACE_{part}"] for part in ("TESTS", "MPI", "CUDA")}, {"OFF"})

    def test_the_library_is_found_in_the_package_and_has_its_version(self):
        code = "import terrace; from terrace import library as l; print(terrace.__version__, l.library()._name)"
        version, path = self.run_in_tree(code).split(" ", 1)
        self.assertEqual(path, str(self.tree / "terrace/lib/libterrace.so.1"))
        rule = BACKEND["metadata"]["version"]
        named = re.search(rule["regex"], (SOURCE / rule["input"]).read_text())["value"]
        self.assertEqual(version, named)

    def test_the_command_is_the_program(self):
        module, function = SETTINGS["project"]["scripts"]["terrace"].split(":")
        code = f"import {module} as m; m.{function}()"
        told = self.run_in_tree(code, "--version")
        direct = subprocess.run([self.tree / "terrace/bin/terrace", "--version"], text=True, capture_output=True,
                                check=True)
        self.assertTrue(told)
        self.assertEqual(told, direct.stdout.strip())

    def test_a_package_without_the_program_says_so(self):
        spec = importlib.util.spec_from_file_location("program", SOURCE / "python/terrace/program.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.PROGRAM = self.tree / "none"
        with self.assertRaises(SystemExit) as refused:
            module.main()
        self.assertIn("install the package again", str(refused.exception.code))


if __name__ == "__main__":
    unittest.main()
