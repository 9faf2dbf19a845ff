"""Reads the objects of a file that has one JSON array, without having the whole file in memory."""

import codecs

from .errors import CORRUPT, DataError
from .json_text import DECODER, LONGEST_LINE, NOT_UTF8, checked_object
from .keys import SPACE

FIRST_TRY = 1 << 16  # characters
REMEDY = "a file with one JSON array has objects with commas between them, in UTF-8"


class ArrayText:
    """A text that is read from the front, piece by piece."""

    def __init__(self, pieces):
        self.pieces = pieces
        self.decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self.text = ""
        self.at = 0  # the text before it was used

    def read(self, size):
        """Drops the used text, and reads on until there are `size` characters, or to the end.

        Returns how many there are.
        """
        parts = [self.text[self.at:]]
        have = len(parts[0])
        while have < size and (piece := next(self.pieces, None)) is not None:
            parts.append(self.decoder.decode(piece))
            have += len(parts[-1])
        if have < size:
            self.decoder.decode(b"", final=True)
        self.text, self.at = "".join(parts), 0
        return have

    def next_character(self):
        """Passes over white space. Returns the next character, or "" at the end."""
        while True:
            while self.at < len(self.text) and self.text[self.at] in SPACE:
                self.at += 1
            if self.at < len(self.text) or not self.read(1):
                return self.text[self.at:self.at + 1]

    def passes(self, character):
        """Passes over the next character and white space, if it is this one."""
        if self.next_character() != character:
            return False
        self.at += 1
        self.next_character()
        return True

    def object(self, place):
        """Reads an object. If it does not end in the text at hand, reads twice as much of it."""
        size = FIRST_TRY
        while True:
            have = self.read(size)
            try:
                row, self.at = DECODER.raw_decode(self.text)
                return checked_object(row, self.text[:self.at], place, REMEDY)
            except (ValueError, RecursionError) as problem:
                if have >= size and size <= LONGEST_LINE:
                    size *= 2
                    continue
                within = f" within {size} characters" if have >= size else ""
                raise DataError(f"{place}: not a JSON object{within}: {problem}", REMEDY,
                                CORRUPT) from problem


def array_rows(path, pieces):
    """Yields (place, row) pairs; a place counts the objects from 1, as jq does from 0."""
    text = ArrayText(pieces)
    number, place = 0, path
    try:
        text.passes("[")
        while not text.passes("]"):
            place = f"{path}: object {number + 1} (jq '.[{number}]')"
            if number and not text.passes(","):
                raise DataError(f"{place}: neither a comma nor the end of the array is before it",
                                REMEDY, CORRUPT)
            yield place, text.object(place)
            number += 1
        if text.next_character():
            raise DataError(f"{path}: has more text behind its JSON array", REMEDY, CORRUPT)
    except UnicodeDecodeError as problem:
        raise DataError(f"{place}: in or behind it is byte {problem.object[problem.start]:#04x}, "
                        "which is not UTF-8", NOT_UTF8, CORRUPT) from problem


def is_array(pieces):
    """Returns whether a text begins as a JSON array does."""
    for piece in pieces:
        piece = piece.removeprefix(codecs.BOM_UTF8).lstrip()
        if piece:
            return piece.startswith(b"[")
    return False
