"""Turns conversations into lines of ids with a mask, which `terrace train` reads."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from .conversation import KEYS, read_conversation
from .errors import DataError
from .output import LinesWriter, check_output
from .rows import rows_of
from .shown import check_shown
from .spans import TurnFinder, mask_of, parts_within
from .templates import Template, special_tokens_of, template_of_model
from .thoughts import with_thoughts_named
from .tokens import Bytes, tokenizer_of_model


def template_for(model, chat_template, tools=False):
    """Returns the template that the flags name."""
    specials = special_tokens_of(Path(model)) if model else {}
    if chat_template:
        try:
            text, path = Path(chat_template).read_text(encoding="utf-8"), Path(chat_template)
        except (OSError, UnicodeDecodeError) as problem:
            reason = getattr(problem, "strerror", None) or problem
            raise DataError(f"--chat-template {chat_template}: {reason}",
                            "name a file with a template of Jinja") from problem
    elif model:
        text, path = template_of_model(Path(model), tools)
    else:
        raise DataError("no chat template is named", "give --model DIR or --chat-template FILE")
    return Template(text, path, specials)


def check_model(model):
    if model and not Path(model).is_dir():
        raise DataError(f"--model {model}: there is no such directory, and nothing is downloaded",
                        "name a directory with the model's files")


@dataclass
class Counts:
    conversations: int = 0
    tokens: int = 0
    trained: int = 0


class Preparer:
    """Turns conversations into rows for the program."""

    def __init__(self, model, chat_template, loss_on):
        check_model(model)
        self.model = model
        self.chat_template = chat_template
        self.loss_on = loss_on
        self.tokenizer = tokenizer_of_model(model) if model else Bytes()
        self.templates = {}  # by whether the conversation has tools

    def template(self, tools=False):
        if tools not in self.templates:
            self.templates[tools] = template_for(self.model, self.chat_template, tools)
        return self.templates[tools]

    def spans(self, conversation, place):
        """Returns the rendered conversation, and the spans of it that are trained on."""
        template = self.template(bool(conversation.tools))
        messages = with_thoughts_named(conversation.messages, template.text)
        text, marked = template.render(conversation, messages, place)
        turns = conversation.assistant_turns()
        if self.loss_on == "last":
            turns = turns[-1:]
        check_shown(conversation, turns, text, place)
        if self.loss_on == "all":
            return text, [(0, len(text))]
        if not turns:
            raise DataError(f"{place}: no turn of the assistant to train on",
                            "leave the conversation out, or give --loss-on all")
        is_all = self.loss_on == "assistant" and not conversation.untrained
        if template.marks_turns and is_all:
            return text, marked
        finder = TurnFinder(
            lambda some, is_prompt: template.render(conversation, some, place, is_prompt)[0],
            messages, text, self.ends(template))
        found = [finder.span(turn, place) for turn in turns]
        return text, parts_within(marked, found) if template.marks_turns else found

    def ends(self, template):
        return self.tokenizer.special_texts() | {one for one in template.special_tokens.values()
                                                 if one}

    def row(self, values, place):
        conversation = read_conversation(values, place)
        text, spans = self.spans(conversation, place)
        ids, offsets = self.tokenizer.encode(text)
        return {"input_ids": ids, "loss_mask": mask_of(offsets, spans, len(ids))}


def text_row(values, column, place):
    text = values.get(column)
    if not isinstance(text, str):
        raise DataError(f'{place}: key "{column}" ' +
                        ("is missing" if text is None else f"is a {type(text).__name__}, not a text"),
                        "name a column of texts: --text-column NAME")
    return {"text": text}


def prepare(paths, output, preparer, text_column=None):
    """Writes `output`, and returns the counts. Raises DataError and OSError."""
    for path in paths:
        os.stat(path)
        if os.path.isdir(path):
            raise DataError(f"{path}: it is a directory", "name the files in it")
    check_output(output, paths)
    columns = [text_column] if text_column else KEYS
    counts = Counts()
    with LinesWriter(output) as lines:
        for path in paths:
            for place, values in rows_of(path, columns):
                row = text_row(values, text_column, place) if text_column else \
                    preparer.row(values, place)
                lines.write(row, place)
                counts.conversations += 1
                counts.tokens += len(row.get("input_ids", ()))
                counts.trained += sum(row.get("loss_mask", ()))
        if counts.conversations == 0:
            raise DataError(f"{', '.join(map(str, paths))}: no conversation", "give files with some")
    return counts


def tell(counts, output, text_column):
    if text_column:
        print(f"{output}: {counts.conversations} texts", file=sys.stderr)
        return
    share = 100 * counts.trained / max(1, counts.tokens)
    print(f"{output}: {counts.conversations} conversations, {counts.tokens} tokens, "
          f"{share:.3g} % of them trained on", file=sys.stderr)
