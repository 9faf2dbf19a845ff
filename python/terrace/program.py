"""Runs the program `terrace` that a wheel contains: the command of that name, which pip installs, becomes it."""

import os
import sys
from pathlib import Path

PROGRAM = Path(__file__).parent / "bin" / "terrace"


def main():
    """Replaces this process by the program, with the same arguments."""
    try:
        os.execv(PROGRAM, ["terrace", *sys.argv[1:]])
    except OSError as problem:
        sys.exit(f"terrace: {PROGRAM} cannot be run: {problem.strerror}; install the package again, by "
                 "`pip install .` from the sources")
