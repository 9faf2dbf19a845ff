"""The thoughts of the assistant: under which keys messages have them, and templates read them."""

import re

from .keys import a_kind, wrong

# The keys for a thought, the one that most templates read first.
THOUGHTS = ("reasoning_content", "reasoning", "thinking")


def thought_in_content(content):
    """Returns the thought at the front of a text, up to </think>, without the tags; or ""."""
    before, tag, _ = content.partition("</think>")
    return before.rpartition("<think>")[2].strip() if tag else ""


def answer_in_content(message):
    """Returns the content of a message behind the thought at its front; "" if it is no text."""
    content = message.get("content")
    return content.rpartition("</think>")[2].strip() if isinstance(content, str) else ""


def thoughts_of(turns, place):
    """Returns (index, key, text) for each thought of the assistant."""
    thoughts = []
    for i, turn in enumerate(turns):
        message = turn.message
        if message["role"] != "assistant":
            continue
        for key in THOUGHTS:
            value = message.get(key, "")
            if not isinstance(value, str):
                raise wrong(place, f"{turn.path}.{key}", f"is {a_kind(value)}, not a text")
            if value.strip():
                thoughts.append((i, key, value.strip()))
        content = message.get("content")
        if isinstance(content, str) and (thought := thought_in_content(content)):
            thoughts.append((i, "content", thought))
    return thoughts


def reads_key(template_text, key):
    """Returns whether a template reads the key of a message, as in message.KEY or ['KEY']."""
    return re.search(rf"""[.'"]{key}(?![A-Za-z0-9_])""", template_text) is not None


def with_thoughts_named(messages, template_text):
    """Returns the messages with thoughts under the key that the template reads.

    A thought is copied if it is there under one key, which the template does not read, and the
    template reads another of the keys.
    """
    read = [key for key in THOUGHTS if reads_key(template_text, key)]
    named = []
    for message in messages:
        keys = [key for key in THOUGHTS if key in message]
        if message["role"] == "assistant" and len(keys) == 1 and read and keys[0] not in read:
            message = {**message, read[0]: message[keys[0]]}
        named.append(message)
    return named
