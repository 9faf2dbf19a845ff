"""A conversation, read from a line of JSON or a row of Parquet."""

from dataclasses import dataclass, field

from .errors import DataError

# ShareGPT's names of the two sides.
ROLES_OF_FROM = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant",
                 "system": "system"}
FORMS = ('give "messages", a list of objects with "role" and "content"; "conversations" of "from" '
         'and "value"; or "prompt" and "completion" that are such lists')


@dataclass
class Conversation:
    messages: list
    tools: list | None = None
    variables: dict = field(default_factory=dict)  # further variables of the template
    untrained: set = field(default_factory=set)  # indices of messages that are context only

    def assistant_turns(self):
        """Returns the indices of the messages that are trained on."""
        return [i for i, message in enumerate(self.messages)
                if message["role"] == "assistant" and i not in self.untrained]


def wrong(place, key, what, remedy=FORMS):
    return DataError(f'{place}: key "{key}" {what}', remedy)


def kind_of(value):
    kinds = {str: "text", bool: "truth value", int: "number", float: "number", list: "list",
             dict: "object", type(None): "null"}
    return kinds.get(type(value), type(value).__name__)


def without_nulls(values):
    """Leaves out the keys that are null: transformers treats them in a message as absent."""
    if not isinstance(values, dict):
        return values
    return {key: value for key, value in values.items() if value is not None}


def check_message(message, key, place):
    if not isinstance(message, dict):
        raise wrong(place, key, f"is a {kind_of(message)}, not a message")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise wrong(place, f"{key}.role", "is missing" if role is None else "is not a text")
    content = message.get("content")
    if content is None:
        if not any(message.get(other) for other in ("tool_calls", "function_call")):
            raise wrong(place, f"{key}.content", "is missing")
    elif not isinstance(content, (str, list)):
        raise wrong(place, f"{key}.content", f"is a {kind_of(content)}, not a text")


def messages_of(value, key, place):
    if not isinstance(value, list):
        raise wrong(place, key, f"is a {kind_of(value)}, not a list of messages")
    if not value:
        raise wrong(place, key, "has no message")
    messages = [without_nulls(message) for message in value]
    for i, message in enumerate(messages):
        check_message(message, f"{key}[{i}]", place)
    return messages


def from_sharegpt(value, place):
    if not isinstance(value, list):
        raise wrong(place, "conversations", f"is a {kind_of(value)}, not a list of messages")
    messages = []
    for i, turn in enumerate(value):
        if not isinstance(turn, dict) or "from" not in turn:
            messages.append(turn)  # it may have "role", and is checked as such
            continue
        role = ROLES_OF_FROM.get(turn["from"])
        if role is None:
            raise wrong(place, f"conversations[{i}].from",
                        f"is {turn['from']!r}, which is none of {', '.join(ROLES_OF_FROM)}")
        messages.append({"role": role, "content": turn.get("value")})
    return messages


def untrained_by_weight(messages, key, place):
    """Removes the weights of messages, and returns the indices of the messages with weight 0.

    OpenAI's files may give a message of the assistant a weight of 0 or 1.
    """
    untrained = set()
    for i, message in enumerate(messages):
        weight = message.pop("weight", 1)
        if weight not in (0, 1):
            raise wrong(place, f"{key}[{i}].weight", f"is {weight!r}", "a weight is 0 or 1")
        if weight == 0:
            untrained.add(i)
    return untrained


def read_conversation(row, place):
    """Reads a row. Raises a DataError that names the key; `place` says where the row is."""
    row = without_nulls(row)
    found = [key for key in ("messages", "conversations", "prompt") if key in row]
    if len(found) != 1:
        say = ", ".join(f'"{key}"' for key in found)
        raise DataError(f"{place}: " + (f"more than one of {say} is there" if found else
                                        'none of "messages", "conversations" and "prompt" is there'),
                        FORMS)
    key = found[0]
    prompt_messages = 0
    if key == "conversations":
        messages = messages_of(from_sharegpt(row[key], place), key, place)
    else:
        messages = messages_of(row[key], key, place)
    if key == "prompt":
        prompt_messages = len(messages)
        messages += messages_of(row.get("completion"), "completion", place)
    variables = row.get("chat_template_kwargs", {})
    tools = row.get("tools")
    if not isinstance(variables, dict):
        raise wrong(place, "chat_template_kwargs", "is no object", "give the template's variables")
    if tools is not None and not isinstance(tools, list):
        raise wrong(place, "tools", f"is a {kind_of(tools)}, not a list", "give a list of tools")
    untrained = untrained_by_weight(messages, key, place) | set(range(prompt_messages))
    return Conversation(messages, tools or None, variables, untrained)
