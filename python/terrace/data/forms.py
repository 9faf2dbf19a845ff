"""The forms in which a row has a conversation. Each gives a list of turns."""

from dataclasses import dataclass

from .errors import DataError
from .keys import FORMS, a_kind, shown, text_at, value_of_json, without_nulls, wrong

LISTS = ("messages", "conversations", "conversation")
PAIRS = (("question", "answer"), ("question", "response"), ("query", "response"),
         ("prompt", "response"), ("input", "output"))
QUESTIONS = ("question", "query", "prompt", "input")
ANSWERS = ("answer", "response", "output", "completion")

# ShareGPT's names of the speakers.
ROLES_OF_FROM = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant",
                 "model": "assistant", "chatgpt": "assistant", "bot": "assistant",
                 "system": "system", "function_call": "call", "observation": "tool",
                 "tool": "tool", "tool_response": "tool", "function_response": "tool"}
# Roles that templates know.
ROLES = ("system", "user", "assistant", "tool", "developer", "function", "ipython", "environment",
         "observation", "model")
A_CALL = ('give {"name": ..., "arguments": ...}, a list of such objects, or the JSON text of '
          "either")


@dataclass
class Turn:
    message: dict
    path: str  # the key of the row that has it: "messages[0]"


@dataclass
class Form:
    turns: list
    keys: tuple  # the keys of the row that were read
    context: int = 0  # the turns at the front that are never trained on


def edit_distance(a, b):
    row = list(range(len(b) + 1))
    for i, letter in enumerate(a):
        diagonal, row[0] = row[0], i + 1
        for j, other in enumerate(b):
            changed = diagonal + (letter != other)
            diagonal = row[j + 1]
            row[j + 1] = min(changed, row[j + 1] + 1, row[j] + 1)
    return row[-1]


def check_role(role, path, place):
    """Refuses a known role with an error in its spelling; others may belong to the template."""
    if role in ROLES:
        return
    meant = min(ROLES, key=lambda known: edit_distance(role.lower(), known))
    if edit_distance(role.lower(), meant) <= (1 if len(meant) < 6 else 2):
        raise wrong(place, f"{path}.role", f'is "{role}"', f'did you mean "{meant}"?')


def check_message(message, path, place):
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise wrong(place, f"{path}.role", "is missing" if role is None else "is not a role's name")
    check_role(role, path, place)
    content = message.get("content")
    if content is None:
        if not any(message.get(other) for other in ("tool_calls", "function_call")):
            raise wrong(place, f"{path}.content", "is missing")
    elif not isinstance(content, (str, list)):
        raise wrong(place, f"{path}.content", f"is {a_kind(content)}, not a text")


def calls_of(value, path, place):
    """Returns the tool calls in the value of a ShareGPT turn "function_call"."""
    if isinstance(value, str):
        value = value_of_json(value, path, place, A_CALL)
    calls = value if isinstance(value, list) else [value]
    for call in calls:
        if not (isinstance(call, dict) and isinstance(call.get("name"), str) and "arguments" in call):
            raise wrong(place, path, "is not a call of a function", A_CALL)
    if not calls:
        raise wrong(place, path, "has no call of a function", A_CALL)
    return [{"type": "function", "function": call} for call in calls]


def message_of_sharegpt(turn, path, place):
    role = ROLES_OF_FROM.get(turn["from"]) if isinstance(turn["from"], str) else None
    if role is None:
        raise wrong(place, f"{path}.from", f"is {shown(turn['from'])}, which is none of "
                    f"{', '.join(ROLES_OF_FROM)}", "use one of these names")
    for key in ("role", "content"):
        if key in turn:
            raise wrong(place, f"{path}.{key}", 'is not read beside "from"',
                        'give "from" and "value", or "role" and "content"')
    value = turn.get("value")
    if value is None:
        raise wrong(place, f"{path}.value", "is missing")
    further = {key: item for key, item in turn.items() if key not in ("from", "value")}
    if role == "call":
        return {"role": "assistant", "content": "",
                "tool_calls": calls_of(value, f"{path}.value", place), **further}
    if not isinstance(value, (str, list)):
        raise wrong(place, f"{path}.value", f"is {a_kind(value)}, not a text")
    return {"role": role, "content": value, **further}


def turns_of_list(value, key, place):
    """Reads a list of messages, each with "role" and "content" or with ShareGPT's names."""
    if not isinstance(value, list):
        raise wrong(place, key, f"is {a_kind(value)}, not a list of messages")
    if not value:
        raise wrong(place, key, "has no message")
    turns = []
    for i, message in enumerate(value):
        path = f"{key}[{i}]"
        if not isinstance(message, dict):
            raise wrong(place, path, f"is {a_kind(message)}, not a message")
        message = without_nulls(message)
        if "from" in message:
            message = message_of_sharegpt(message, path, place)
        else:
            check_message(message, path, place)
        turns.append(Turn(message, path))
    return turns


def question_and_answer(question, answer, question_path, answer_path):
    return [Turn({"role": "user", "content": question}, question_path),
            Turn({"role": "assistant", "content": answer}, answer_path)]


def turns_of_history(row, place):
    """Reads "history": a list of earlier questions, each with its answer."""
    history = row.get("history", [])
    if not isinstance(history, list):
        raise wrong(place, "history", f"is {a_kind(history)}, not a list")
    turns = []
    for i, pair in enumerate(history):
        path = f"history[{i}]"
        if not (isinstance(pair, list) and len(pair) == 2 and
                all(isinstance(text, str) for text in pair)):
            raise wrong(place, path, "is not a list of two texts",
                        "give each question with its answer: [question, answer]")
        turns += question_and_answer(*pair, f"{path}[0]", f"{path}[1]")
    return turns


def alpaca_form(row, place):
    """Reads Alpaca's form, and joins instruction and input as LLaMA-Factory does."""
    texts = [text_at(row, "instruction", place)]
    if "input" in row:
        texts.append(text_at(row, "input", place))
    question = "\n".join(text for text in texts if text)
    turns = turns_of_history(row, place)
    turns += question_and_answer(question, text_at(row, "output", place), "instruction", "output")
    return Form(turns, ("history",))


def pair_form(row, question, answer, place):
    turns = turns_of_history(row, place)
    turns += question_and_answer(text_at(row, question, place), text_at(row, answer, place),
                                 question, answer)
    return Form(turns, ("history", question))


def completion_form(row, place):
    """Reads "prompt" and "completion", two lists of messages."""
    prompt = turns_of_list(row["prompt"], "prompt", place)
    if "completion" not in row:
        raise wrong(place, "completion", "is missing")
    completion = turns_of_list(row["completion"], "completion", place)
    return Form(prompt + completion, ("prompt", "completion"), len(prompt))


def quoted(keys):
    return ", ".join(f'"{key}"' for key in keys)


def form_of(row, place):
    """Reads the form that a row has. The row has no nulls."""
    lists = [key for key in LISTS if key in row]
    if len(lists) > 1:
        raise DataError(f"{place}: has more than one of {quoted(LISTS)}", "keep one of them")
    if lists:
        return Form(turns_of_list(row[lists[0]], lists[0], place), ())
    if "instruction" in row:
        return alpaca_form(row, place)
    questions = [key for key in QUESTIONS if key in row]
    answers = [key for key in ANSWERS if key in row]
    if questions == ["prompt"] and answers in ([], ["completion"]):
        return completion_form(row, place)
    if len(questions) == 1 and len(answers) == 1 and (questions[0], answers[0]) in PAIRS:
        return pair_form(row, questions[0], answers[0], place)
    if questions and answers:
        raise DataError(f"{place}: has {quoted(questions + answers)}, which are not the names of "
                        "one question and its answer", FORMS)
    some = quoted(list(row)[:8]) or "no keys"
    raise DataError(f"{place}: has no form of a conversation: it has {some}", FORMS)
