"""Parses JSON by the rules of the program: no NaN, and no halves of surrogate pairs."""

import json

from .errors import CORRUPT, DataError

LONGEST_LINE = 16 << 20  # bytes, the same limit as the program's
NOT_UTF8 = "convert the file to UTF-8, as with iconv"


def refuse_constant(text):
    raise ValueError(f"{text} is no JSON")


DECODER = json.JSONDecoder(parse_constant=refuse_constant)


def check_characters(value, text):
    """Raises UnicodeEncodeError if a text in `value` has half of a surrogate pair.

    `text` is the JSON of the value.
    """
    if "\\ud" in text.lower():
        json.dumps(value, ensure_ascii=False).encode("utf-8")


def parse_json(text):
    """Returns the value of a JSON text. Raises ValueError or RecursionError."""
    value = DECODER.decode(text)
    check_characters(value, text)
    return value


def checked_object(row, text, place, remedy):
    """Returns a row that was parsed from `text`, if it is an object with proper texts."""
    try:
        check_characters(row, text)
    except UnicodeEncodeError as problem:
        raise DataError(f"{place}: has half of a surrogate pair, which is no text",
                        "write the character whole", CORRUPT) from problem
    if not isinstance(row, dict):
        raise DataError(f"{place}: not a JSON object: it is a {type(row).__name__}", remedy, CORRUPT)
    return row
