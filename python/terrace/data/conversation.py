"""A conversation, read from a line of JSON or a row of Parquet."""

from dataclasses import dataclass, field

from .forms import ANSWERS, LISTS, QUESTIONS, Turn, form_of, turns_of_list
from .keys import a_kind, value_of_json, without_nulls, wrong
from .thoughts import thoughts_of
from .training_marks import ROW_MARKS, check_row_marks, trained_turns

SYSTEMS = ("system", "system_prompt")
TOOLS = ("tools", "functions")
PREFERENCES = ("chosen", "rejected")
MEDIA = ("image", "images", "video", "videos", "audio", "audios")
OF_OTHER_FORMS = ("prompt", "completion", "history", "input_ids")
# Every key that has a meaning in a row.
KEYS = (*LISTS, "instruction", *QUESTIONS, *ANSWERS, "history", "context", *SYSTEMS, *TOOLS,
        "chat_template_kwargs", *PREFERENCES, "label", *MEDIA, "input_ids", *ROW_MARKS)
A_LIST_OF_TOOLS = "give a list of tools, or the JSON text of one"


@dataclass
class Conversation:
    messages: list
    tools: list | None = None
    variables: dict = field(default_factory=dict)  # further variables of the template
    untrained: set = field(default_factory=set)  # indices of answers that are context only
    thoughts: list = field(default_factory=list)  # (index, key, text) of the assistant's thoughts

    def assistant_turns(self):
        """Returns the indices of the messages that are trained on."""
        return [i for i, message in enumerate(self.messages)
                if message["role"] == "assistant" and i not in self.untrained]


def check_row(row, place):
    """Refuses what is not built, and what would say without effect what is trained on."""
    for key in PREFERENCES:
        if key in row:
            raise wrong(place, key, "is for training on preferences, which is not built",
                        'give the conversations to train on as "messages"')
    if isinstance(row.get("label"), bool):
        raise wrong(place, "label", "is for training on preferences, which is not built",
                    "keep the good conversations, and remove the key")
    for key in MEDIA:
        if row.get(key):
            raise wrong(place, key, "is not read: models are trained on texts only",
                        "leave the row out, or remove the key")
    check_row_marks(row, place)


def check_other_forms(row, form, place):
    """Refuses keys of other forms that would be passed over."""
    for key in OF_OTHER_FORMS:
        if key not in row or key in form.keys:
            continue
        if key == "prompt" and begins_with(form.turns, row[key], place):
            continue
        what = ("differs from the beginning of the conversation" if key == "prompt" else
                "is not read beside the conversation")
        raise wrong(place, key, what, "remove the key, or the conversation")
    is_list = any(key in row for key in LISTS)
    if not is_list and row.get("context"):
        raise wrong(place, "context", "is not read beside a question",
                    "put its text into the question, or remove the key")


def begins_with(turns, prompt, place):
    """Returns whether a prompt repeats the first question, or the first messages."""
    if isinstance(prompt, str):
        questions = [turn.message for turn in turns if turn.message["role"] == "user"]
        return bool(questions) and questions[0].get("content") == prompt
    if not isinstance(prompt, list) or not prompt:
        return False
    first = [turn.message for turn in turns_of_list(prompt, "prompt", place)]
    return [turn.message for turn in turns[:len(first)]] == first


def with_system(turns, row, place):
    """Puts the system text beside a conversation in front of it, unless it is in there already."""
    given = [(key, row[key]) for key in SYSTEMS if key in row and row[key] != ""]
    for key, text in given:
        if not isinstance(text, str):
            raise wrong(place, key, f"is {a_kind(text)}, not a text", "give the text")
        if text != given[0][1]:
            raise wrong(place, key, f'differs from "{given[0][0]}"', "keep one of the two")
    if not given:
        return turns
    key, text = given[0]
    own = [turn for turn in turns if turn.message["role"] == "system"]
    for turn in own:
        if turn.message.get("content") != text:
            raise wrong(place, key, f'differs from the system message "{turn.path}"',
                        "keep one of the two")
    return turns if own else [Turn({"role": "system", "content": text}, key), *turns]


def wrapped_tool(tool, path, place):
    """Returns a tool in the form that templates read. A bare function is put into an object."""
    if not isinstance(tool, dict):
        raise wrong(place, path, f"is {a_kind(tool)}, not an object", A_LIST_OF_TOOLS)
    if isinstance(tool.get("name"), str) and "function" not in tool and "type" not in tool:
        return {"type": "function", "function": tool}
    return tool


def tools_of(row, place):
    found = None
    for key in TOOLS:
        value = row.get(key)
        if isinstance(value, str):
            empty = not value.strip()
            value = None if empty else value_of_json(value, key, place, A_LIST_OF_TOOLS)
        if value is None:
            continue
        if not isinstance(value, list):
            raise wrong(place, key, f"is {a_kind(value)}, not a list", A_LIST_OF_TOOLS)
        if not value:
            continue
        if found:
            raise wrong(place, key, f'is not read beside "{TOOLS[0]}"', "keep one of the two")
        found = [wrapped_tool(tool, f"{key}[{i}]", place) for i, tool in enumerate(value)]
    return found


def read_conversation(row, place):
    """Reads a row. Raises a DataError that names the key; `place` says where the row is."""
    row = without_nulls(row)
    check_row(row, place)
    form = form_of(row, place)
    check_other_forms(row, form, place)
    trained = trained_turns(form.turns, form.context, place)
    turns = with_system(form.turns, row, place)
    trained = [False] * (len(turns) - len(form.turns)) + trained  # the system message
    variables = row.get("chat_template_kwargs", {})
    if not isinstance(variables, dict):
        raise wrong(place, "chat_template_kwargs", f"is {a_kind(variables)}, not an object",
                    "give the template's variables")
    untrained = {i for i, turn in enumerate(turns)
                 if turn.message["role"] == "assistant" and not trained[i]}
    return Conversation([turn.message for turn in turns], tools_of(row, place), variables, untrained,
                        thoughts_of(turns, place))
