#!/usr/bin/env python3
"""Checks that every phrase which the package rewords is part of a message of the library: wording_test.py SOURCES

A message that changes would otherwise reach a Python program with the names of C in it, and nobody would notice.
SOURCES is the root of the tree, whose C++ sources are read; neither the library nor torch is needed.
"""

import importlib.util
import re
import sys
import types
import unittest
from pathlib import Path

ROOT = Path(sys.argv.pop(1))
FOLDERS = ["base", "kernels", "memory", "offload", "optim", "parallel", "runtime"]
# String literals that stand side by side in the source are one text.
LITERALS = re.compile(r'"(?:[^"\\\n]|\\.)*"(?:\s*"(?:[^"\\\n]|\\.)*")*')
PIECE = re.compile(r'"((?:[^"\\\n]|\\.)*)"')


def load(name, path, package=""):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def wordings():
    """Returns terrace.wording and terrace.torch.wording without importing their packages, which need torch."""
    sys.modules["terrace"] = types.ModuleType("terrace")
    plain = load("terrace.wording", ROOT / "python/terrace/wording.py")
    return plain, load("terrace.torch.wording", ROOT / "python/terrace/torch/wording.py")


def texts_of_sources():
    """Returns all texts of the sources, with // comments left out."""
    texts = set()
    for folder in FOLDERS:
        for path in [*(ROOT / folder).rglob("*.cc"), *(ROOT / folder).rglob("*.h")]:
            source = re.sub(r"^\s*//.*$", "", path.read_text(encoding="utf-8"), flags=re.M)
            for run in LITERALS.findall(source):
                texts.add("".join(PIECE.findall(run)))
    return texts


def is_part_of(phrase, texts):
    """Errors join what happened and its remedy by "; ", so that each half is a text of its own."""
    return all(any(half in text for text in texts) for half in phrase.split("; "))


def functions_of_headers():
    headers = (ROOT / "runtime/capi").glob("terrace*.h")
    return {f"{name}()" for header in headers for name in re.findall(r"\b(terrace_\w+)\(", header.read_text())}


PLAIN, TORCH = wordings()
TEXTS = texts_of_sources()
FUNCTIONS = functions_of_headers()


class EveryPhraseIsCurrent(unittest.TestCase):
    def expect_current(self, phrases):
        gone = [phrase for phrase in phrases if phrase not in FUNCTIONS and not is_part_of(phrase, TEXTS)]
        self.assertEqual(gone, [], "no message of the library has these phrases any more: say the new ones")

    def test_sessions(self):
        self.expect_current(PLAIN.SESSION_PHRASES)

    def test_units(self):
        self.expect_current(PLAIN.UNITS_PHRASES)

    def test_optimizers_and_offloaded_models(self):
        settings = TORCH._SETTING_PHRASES
        self.expect_current(phrase for phrase in {**TORCH.OPTIMIZER_PHRASES, **TORCH.OFFLOAD_PHRASES}
                            if phrase not in settings)
        # Settings are named by a message with two holes: the key, and the optimizer's rule.
        self.assertTrue(is_part_of("{} of {} is", TEXTS))
        header = (ROOT / "runtime/capi/terrace.h").read_text(encoding="utf-8")
        for phrase in settings:
            with_holes = re.fullmatch(r"(\w+) of (\w+) is", phrase)
            if not with_holes:
                self.expect_current([phrase])
            for name in with_holes.groups() if with_holes else ():
                self.assertRegex(header, rf"\b{name}\b", "the C interface does not list this name")


if __name__ == "__main__":
    unittest.main()
