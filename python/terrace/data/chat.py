"""Makes the prompt of a conversation, in the form that `terrace sample --prompt` takes."""

import sys
from pathlib import Path

from .conversation import Conversation, read_conversation
from .errors import DataError
from .prepare import check_model, template_for
from .rows import rows_of
from .templates import read_json, special_tokens_of
from .thoughts import with_thoughts_named
from .tokens import Bytes, tokenizer_of_model


def conversation_for(texts, system, messages_file):
    """Returns the conversation that the flags give, or a file's first one; and its place."""
    if messages_file:
        if texts or system:
            raise DataError("--messages and a text name two conversations", "give one of them")
        for place, values in rows_of(messages_file, []):
            return read_conversation(values, place), place
        raise DataError(f"--messages {messages_file}: no conversation", "give a file with one")
    if not texts:
        raise DataError("no text is given", "say something, or give --messages FILE")
    messages = [{"role": "system", "content": system}] if system else []
    for i, text in enumerate(texts):
        messages.append({"role": "assistant" if i % 2 else "user", "content": text})
    return Conversation(messages), "the conversation"


def prompt_of(model, chat_template, conversation, place):
    """Returns the prompt without the token that the program itself puts before a prompt."""
    check_model(model)
    if conversation.messages and conversation.messages[-1].get("role") == "assistant":
        raise DataError(f"{place} ends with what the assistant says",
                        "end with a question: leave the last answer out")
    template = template_for(model, chat_template, bool(conversation.tools))
    messages = with_thoughts_named(conversation.messages, template.text)
    text = template.render(conversation, messages, place, is_prompt=True)[0]
    return text.removeprefix(begin_of_prompts(Path(model)))


def begin_of_prompts(model):
    """Returns the text of the token that the program itself puts before a prompt, or ""."""
    config = read_json(model / "tokenizer_config.json")
    adds = config.get("add_bos_token") if isinstance(config, dict) else None
    tokenizer = tokenizer_of_model(model)
    begin = tokenizer.begin_id()
    if adds is True and not isinstance(tokenizer, Bytes):
        return special_tokens_of(model).get("bos_token", "")
    return "" if begin is None or adds is False else tokenizer.text_of(begin)


def print_prompt(text):
    """Prints the text and nothing behind it, not even an end of line."""
    sys.stdout.buffer.write(text.encode("utf-8"))
    sys.stdout.buffer.flush()
