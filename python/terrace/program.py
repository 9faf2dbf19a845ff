"""Runs the program `terrace` that a wheel contains. Pip installs a command of that name, which calls main()."""

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
