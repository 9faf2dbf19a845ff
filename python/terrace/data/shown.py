"""Checks that a rendered conversation has what the template could pass over without a word."""

import re

from .errors import DataError
from .thoughts import answer_in_content

OTHER_TEMPLATE = "name a template that shows it with --chat-template"
# Switches in the texts of some models' system messages, which their templates take out.
SWITCH = re.compile("/no_think|/think")


def function_of(tool):
    """Returns the part of a tool or of a call that has its name."""
    return tool["function"] if isinstance(tool.get("function"), dict) else tool


def missing_part(message, text):
    """Returns the part of a message that the text does not show; or None."""
    if answer_in_content(message) not in text:
        return "its content as it is"
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        if not isinstance(call, dict):
            continue
        name, number = function_of(call).get("name"), call.get("id")  # Kimi-K2 shows the id alone
        if isinstance(name, str) and name not in text and \
                not (isinstance(number, str) and number in text):
            return f'its call of "{name}"'
    return None


def shows_system(content, text):
    return not isinstance(content, str) or \
        all(part.strip() in text for part in SWITCH.split(content))


def check_shown(conversation, turns, text, place):
    """Raises a DataError if `text` lacks a system message, a tool, or what one of `turns` says.

    Templates leave thoughts out of earlier turns. A turn without its thought teaches to answer
    without thinking, so it may stand in a conversation, but is not trained on.
    """
    def lacks(i, what, remedy):
        return DataError(f"{place}: message {i}: the chat template does not show {what}", remedy)

    for i, message in enumerate(conversation.messages):
        if message["role"] == "system" and not shows_system(message.get("content"), text):
            raise lacks(i, "the system message",
                        f"put its text into the first question, or {OTHER_TEMPLATE}")
    for i in turns:
        if missing := missing_part(conversation.messages[i], text):
            raise lacks(i, missing, OTHER_TEMPLATE)
    for i, key, thought in conversation.thoughts:
        if i in turns and thought not in text:
            raise lacks(i, f'the thought in "{key}"', "leave the thought out, give the message "
                        f'"train": false, or {OTHER_TEMPLATE}')
    for tool in conversation.tools or []:
        name = function_of(tool).get("name")
        if isinstance(name, str) and name not in text:
            raise DataError(f'{place}: the chat template does not show the tool "{name}"',
                            f"leave the tools out, or {OTHER_TEMPLATE}")
