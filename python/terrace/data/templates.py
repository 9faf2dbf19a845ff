"""Chat templates: finds a model's template, and renders conversations with it.

A template is somebody else's program, so it runs in jinja2's sandbox, and sees nothing but the
conversation. The environment is the one that transformers describes on its page "Chat templates":
trim_blocks and lstrip_blocks, loop controls, `raise_exception`, `strftime_now`, a `tojson` that
does not escape, and the block `{% generation %}` ... `{% endgeneration %}` around what the
assistant says.
"""

import datetime
import json
import re

from .errors import CORRUPT, DataError, optional_package

MARK = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
NO_TEMPLATE = "name a file that has one: --chat-template FILE"


def read_json(path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as problem:
        raise DataError(f"{path}: not JSON: {problem}", "restore the file", CORRUPT) from problem


def special_tokens_of(directory):
    """Returns the texts of the model's special tokens, by the names that templates use."""
    tokens = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):  # the latter wins
        names = read_json(directory / name)
        if not isinstance(names, dict):
            continue
        for key, value in names.items():
            if not key.endswith("_token"):
                continue
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                tokens[key] = text
    return tokens


def named_template(value, tools, path):
    """Returns the template. Among several with names it is "tool_use", if there are tools and there
    is one of that name, or else "default".
    """
    if isinstance(value, list):
        value = {one.get("name"): one.get("template") for one in value if isinstance(one, dict)}
    if isinstance(value, dict):
        name = "tool_use" if tools and "tool_use" in value else "default"
        if name not in value:
            raise DataError(f"{path}: of its chat templates ({', '.join(map(str, value))}) none is "
                            "called default", NO_TEMPLATE)
        value = value[name]
    if value is not None and not isinstance(value, str):
        raise DataError(f"{path}: its chat_template is no text", NO_TEMPLATE, CORRUPT)
    return value


def template_of_model(directory, tools=False):
    """Returns the text of the model's template, and the file that has it."""
    if tools and (path := directory / "additional_chat_templates" / "tool_use.jinja").is_file():
        return path.read_text(encoding="utf-8"), path
    if (path := directory / "chat_template.jinja").is_file():
        return path.read_text(encoding="utf-8"), path
    for name in ("chat_template.json", "tokenizer_config.json"):
        path = directory / name
        values = read_json(path)
        value = values.get("chat_template") if isinstance(values, dict) else None
        text = named_template(value, tools, path)
        if text is not None:
            return text, path
    adapter = read_json(directory / "adapter_config.json")
    base = adapter.get("base_model_name_or_path") if isinstance(adapter, dict) else None
    raise DataError(f"--model {directory}: no chat template in chat_template.jinja or "
                    "tokenizer_config.json",
                    f"name the base of this adapter: --model {base}" if base else NO_TEMPLATE)


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def generation_block(jinja2):
    """Returns the block that notes in `environment.said` where the assistant's words stand."""
    from jinja2.ext import Extension

    class Generation(Extension):
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_told"), [], [], body).set_lineno(line)

        def _told(self, caller):
            text = caller()
            self.environment.said.append((sum(map(len, self.environment.before)), text))
            return text

    return Generation


def make_environment():
    jinja2 = optional_package("jinja2", "a chat template", "'jinja2>=3.1.6'")
    version = tuple(int(part) for part in jinja2.__version__.split(".")[:3])
    if version < (3, 1, 6):
        raise DataError(f"jinja2 {jinja2.__version__} has known ways out of its sandbox",
                        "pip install -U jinja2", 4)
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True,
        extensions=[generation_block(jinja2), "jinja2.ext.loopcontrols"])

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    environment.before = []
    environment.said = []
    return environment


class Template:
    """A template, ready to render. Used by one thread."""

    def __init__(self, text, path, special_tokens):
        self.text = text
        self.path = path
        self.special_tokens = special_tokens
        self.environment = make_environment()
        self.jinja2 = optional_package("jinja2", "a chat template")
        try:
            self.template = self.environment.from_string(text)
            self.marks_turns = MARK.search(text) is not None
        except self.jinja2.exceptions.TemplateError as problem:
            raise DataError(f"{path}: line {getattr(problem, 'lineno', '?')}: {problem}",
                            NO_TEMPLATE, CORRUPT) from problem

    def render(self, conversation, messages, place, is_prompt=False):
        """Returns the text of `messages`, and the spans in it that the template marks as generated.

        With `is_prompt` the text ends with the beginning of the assistant's next turn.
        """
        environment = self.environment
        environment.before, environment.said = [], []
        values = {**self.special_tokens, **conversation.variables, "messages": messages,
                  "tools": conversation.tools, "documents": None,
                  "add_generation_prompt": is_prompt}
        try:
            for piece in self.template.generate(values):
                environment.before.append(piece)
        except Exception as problem:  # the template's program may raise anything
            raise DataError(f"{place}: the chat template ({self.path}) refuses it: {problem}",
                            "give messages in the order that the template takes, or another "
                            "template") from problem
        text = "".join(environment.before)
        for begin, said in environment.said:
            if not text.startswith(said, begin):
                raise DataError(f"{place}: the chat template ({self.path}) moves what it marks as "
                                "generated, as in a macro or a {% set %}",
                                "mark it where it is put out, or take the marks away")
        return text, [(begin, begin + len(said)) for begin, said in environment.said]
