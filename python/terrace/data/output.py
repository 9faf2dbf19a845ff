"""Writes a file that appears whole or not at all."""

import gzip
import json
import os
from pathlib import Path

from .errors import DataError
from .rows import LONGEST_LINE, zstd_module

ENDINGS = (".jsonl", ".jsonl.gz", ".jsonl.zst")


def check_output(output, inputs):
    """Refuses a name that the program would not recognize, and an output that replaces an input."""
    if not str(output).lower().endswith(ENDINGS):
        raise DataError(f"--output {output}: terrace train knows JSON lines by their name",
                        f"end the name in one of {' '.join(ENDINGS)}")
    if Path(output).is_dir():
        raise DataError(f"--output {output}: this is a directory", "name a file")
    if not Path(output).absolute().parent.is_dir():
        raise DataError(f"--output {output}: there is no directory for it", "make it first")
    for path in inputs:
        if Path(output).exists() and os.path.samefile(path, output):
            raise DataError(f"--output {output} would replace {path}, which is read",
                            "write another file")


def open_lines(name, file):
    """Returns an object to write bytes to, which compresses as the ending of the name says.

    Closing it leaves `file` open.
    """
    if name.endswith(".gz"):
        return gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0)
    module = zstd_module(name)
    if hasattr(module, "ZstdFile"):
        return module.ZstdFile(file, "wb")
    return module.ZstdCompressor().stream_writer(file, closefd=False)


class LinesWriter:
    """Writes lines of JSON to a file with a temporary name, and renames the file at the end.

    Used with `with`: an exception leaves nothing behind, and a file that had the name stays.
    """

    def __init__(self, output):
        self.output = Path(output)
        self.partial = self.output.with_name(f".{self.output.name}.{os.getpid()}.partial")

    def __enter__(self):
        self.file = open(self.partial, "xb")
        name = self.output.name.lower()
        try:
            self.lines = self.file if name.endswith(".jsonl") else open_lines(name, self.file)
        except BaseException:
            self.file.close()
            self.partial.unlink()
            raise
        return self

    def write(self, row, place):
        line = json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
        if len(line) > LONGEST_LINE:
            raise DataError(f"{place}: makes a line of {len(line)} bytes, and the program reads "
                            f"{LONGEST_LINE}", "cut the conversation")
        self.lines.write(line + b"\n")

    def __exit__(self, kind, problem, trace):
        try:
            if self.lines is not self.file:
                self.lines.close()
            self.file.flush()
            os.fsync(self.file.fileno())
            self.file.close()
            if kind is None:
                os.replace(self.partial, self.output)
        finally:
            self.file.close()
            self.partial.unlink(missing_ok=True)
        return False
