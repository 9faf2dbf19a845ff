"""Reads the rows of files: JSON, which may be compressed, and rows of Parquet."""

import codecs
import gzip
import zlib

from .errors import CORRUPT, DataError, optional_package
from .json_array import array_rows, is_array
from .json_text import DECODER, LONGEST_LINE, NOT_UTF8, checked_object

PIECE = 1 << 16
JSON_REMEDY = "a JSONL file has one object on each line, in UTF-8"


class Zstandard:
    """Decompresses frames one after the other."""

    def __init__(self, path):
        self.module = zstd_module(path)
        self.frame = None

    def decompress(self, piece):
        text = b""
        while piece:
            if self.frame is None:
                self.frame = self.module.ZstdDecompressor()
                if hasattr(self.frame, "decompressobj"):  # the package zstandard
                    self.frame = self.frame.decompressobj()
            text += self.frame.decompress(piece)
            if not self.frame.eof:
                return text
            piece, self.frame = self.frame.unused_data, None
        return text

    def is_whole(self):
        return self.frame is None


def zstd_module(path):
    try:
        from compression import zstd  # Python 3.14 and later
        return zstd
    except ImportError:
        return optional_package("zstandard", str(path))


def pieces_of(path):
    """Yields a file's bytes in pieces, decompressed as its first bytes tell."""
    with open(path, "rb") as file:
        front = file.read(4)
        file.seek(0)
        if front.startswith(b"\x1f\x8b"):
            with gzip.GzipFile(fileobj=file) as text:
                while piece := text.read(PIECE):
                    yield piece
        elif front == b"\x28\xb5\x2f\xfd":
            frames = Zstandard(path)
            while piece := file.read(PIECE // 16):  # decompressed, it may be many times as long
                yield frames.decompress(piece)
            if not frames.is_whole():
                raise EOFError("the compressed file ends in the middle")
        else:
            while piece := file.read(PIECE):
                yield piece


def byte_lines(path):
    """Yields (number, line) pairs; lines are numbered from 1, and have no end of line."""
    begun, number = [], 1
    size = 0
    for piece in pieces_of(path):
        *ends, rest = piece.split(b"\n")
        for end in ends:
            yield number, b"".join([*begun, end])
            begun, size, number = [], 0, number + 1
        begun.append(rest)
        size += len(rest)
        if size > LONGEST_LINE:
            raise DataError(f"{path}:{number}: the line is longer than {LONGEST_LINE} bytes",
                            "cut long conversations before", CORRUPT)
    if size:
        yield number, b"".join(begun)


def object_of(line, place):
    try:
        text = line.decode("utf-8")
        row = DECODER.decode(text)
    except UnicodeDecodeError as problem:
        raise DataError(f"{place}: byte {line[problem.start]:#04x} at {problem.start} of the line "
                        "is not UTF-8", NOT_UTF8, CORRUPT) from problem
    except (ValueError, RecursionError) as problem:
        raise DataError(f"{place}: not a JSON object: {problem}", JSON_REMEDY, CORRUPT) from problem
    return checked_object(row, text, place, JSON_REMEDY)


def line_rows(path):
    for number, line in byte_lines(path):
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if line.strip():
            yield f"{path}:{number}", object_of(line, f"{path}:{number}")


def json_rows(path):
    """Yields the objects of JSON lines or of one array. The text decides, whatever the file's name."""
    try:
        if is_array(pieces_of(path)):
            yield from array_rows(path, pieces_of(path))
        else:
            yield from line_rows(path)
    except (EOFError, zlib.error, gzip.BadGzipFile) as problem:
        raise DataError(f"{path}: damaged or cut: {problem}", "restore the file",
                        CORRUPT) from problem
    except Exception as problem:
        if type(problem).__name__ != "ZstdError":  # either of two packages has this class
            raise
        raise DataError(f"{path}: damaged: {problem}", "restore the file", CORRUPT) from problem


def without_nulls(value):
    """Leaves out the keys that are null, at every depth.

    A column of Parquet has all its keys in every row, and so have the objects in it.
    """
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def parquet_rows(path, columns):
    """Yields (place, row) pairs; a row has those of `columns` that the file has."""
    parquet = optional_package("pyarrow.parquet", str(path))
    arrow = optional_package("pyarrow", str(path))
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            taken = [name for name in columns if name in names]
            if not taken:
                wanted = ", ".join(columns[:8]) + (", ..." if len(columns) > 8 else "")
                raise DataError(f"{path}: it has the columns {', '.join(names)}, and none of "
                                f"{wanted}", "name one of texts: --text-column NAME")
            for batch in file.iter_batches(batch_size=256, columns=taken):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}: row {number}", without_nulls(row)
    except (arrow.ArrowException, OSError) as problem:
        if isinstance(problem, FileNotFoundError):
            raise
        raise DataError(f"{path}: behind row {number}: damaged or cut: {problem}",
                        "restore the file", CORRUPT) from problem


def is_parquet(path):
    with open(path, "rb") as file:
        return file.read(4) == b"PAR1" or str(path).lower().endswith(".parquet")


def rows_of(path, columns):
    """Returns an iterator over (place, row) pairs; the place is for messages."""
    return parquet_rows(path, columns) if is_parquet(path) else json_rows(path)
