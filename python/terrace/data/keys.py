"""Names a key of a row, and what is wrong with its value, in the words of the program."""

from .errors import DataError
from .json_text import parse_json

FORMS = ('give "messages", a list of objects with "role" and "content", or another form that '
         "docs/conversations.md lists")
SPACE = " \t\r\n"  # the white space that JSON knows
LONGEST_SHOWN = 40  # bytes of a text in a message


def wrong(place, key, what, remedy=FORMS):
    return DataError(f'{place}: key "{key}" {what}', remedy)


def a_kind(value):
    kinds = {str: "a text", bool: "a truth value", int: "a number", float: "a number",
             list: "a list", dict: "an object", type(None): "null"}
    return kinds.get(type(value), type(value).__name__)


def shown(value):
    """Returns a short value itself, and the kind of any other."""
    if isinstance(value, str) and len(value.encode("utf-8")) <= LONGEST_SHOWN:
        return f'"{value}"'
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else a_kind(value)


def without_nulls(values):
    """Leaves out the keys that are null: transformers treats them in a message as absent."""
    return {key: value for key, value in values.items() if value is not None}


def text_at(row, key, place):
    """Returns the text of a key that must be there."""
    if key not in row:
        raise wrong(place, key, "is missing")
    if not isinstance(row[key], str):
        raise wrong(place, key, f"is {a_kind(row[key])}, not a text")
    return row[key]


def value_of_json(text, key, place, remedy):
    try:
        return parse_json(text)
    except (ValueError, RecursionError):
        raise wrong(place, key, "is a text that is not JSON", remedy) from None
