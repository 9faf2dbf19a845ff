#!/usr/bin/env python3
"""Compares runtime/jinja with jinja2 on random templates: render_templates_test.py PROGRAM PACKAGE [BEGIN END]

The program renders a template at most as jinja2 does: it gives the same text and the same marks, or
it refuses. What it may refuse, and jinja2 does not, is named in MAY_REFUSE.
"""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, sys.argv[2])
sys.path.insert(0, str(Path(__file__).parent))

from random_templates import draw  # noqa: E402
from terrace.data.templates import Template  # noqa: E402

SECONDS = 12
LEAST = 300  # renders, on a machine that is busy
MAY_REFUSE = re.compile(r"not supported|is not known|64 bits|cannot be sliced|Markup")
# Python prints the address of a function or an iterator, which is never wanted.
ADDRESS = re.compile(r"<(generator|built-in|Macro|\w+ object|bound|function|[\w.]+ \d+/|Namespace|class|reversed)|object at 0x")


def by_jinja2(text, values):
    """Returns the text and the marks, or None and the problem."""
    try:
        template = Template(text, "x", {})
    except Exception as problem:  # Python's compiler refuses some code of jinja2
        return None, f"not compiled: {problem}"
    environment = template.environment
    try:
        for piece in template.template.generate(values):
            environment.before.append(piece)
        whole = "".join(environment.before)
    except Exception as problem:
        return None, str(problem)
    for begin, said in environment.said:
        if not whole.startswith(said, begin):
            return None, "moves what it marks"
    return whole, [[begin, begin + len(said)] for begin, said in environment.said]


class Comparison:
    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.counts = {"same": 0, "refused by both": 0, "refused": 0}
        self.differences = []

    def compare(self, seed):
        text, values = draw(seed)
        self.process.stdin.write(json.dumps({"template": text, "values": values}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"seed {seed}: the program ended on {text!r}")
        got = json.loads(line)
        want, marks = by_jinja2(text, values)
        if "problem" in got and want is None:
            self.counts["refused by both"] += 1
        elif want is not None and ADDRESS.search(want):
            self.counts["refused"] += "problem" in got
        elif "problem" in got and MAY_REFUSE.search(got["problem"]):
            self.counts["refused"] += 1
        elif (got.get("text"), got.get("generated")) == (want, marks):
            self.counts["same"] += 1
        elif not str(marks).startswith("not compiled: unhashable"):  # of a part that is not run
            self.differences.append(f"seed {seed}: {text!r}\n  of {values}\n  gives {got}\n"
                                    f"  jinja2: {want!r} {marks}")


def main():
    comparison = Comparison(sys.argv[1])
    begin, end = (int(argument) for argument in sys.argv[3:5]) if len(sys.argv) > 4 else (1, 4000)
    is_drawn = len(sys.argv) > 4
    started = time.monotonic()
    count = 0
    for seed in range(begin, end):
        comparison.compare(seed)
        count += 1
        if not is_drawn and count >= LEAST and time.monotonic() - started > SECONDS:
            break
    print(f"{count} templates: {comparison.counts}, {len(comparison.differences)} differ")
    print("\n".join(comparison.differences[:20]))
    if comparison.counts["same"] * 5 < count:
        sys.exit("too few templates are rendered for this to test anything")
    sys.exit(1 if comparison.differences else 0)


if __name__ == "__main__":
    main()
