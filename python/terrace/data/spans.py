"""Finds where the assistant's turns stand in a rendered conversation.

A template that marks its turns with `{% generation %}` says so itself. With any other template, a
turn is found by rendering parts of the conversation again:

* The turn begins behind the prompt from which it would be generated: the messages before it, and
  the template's generation prompt. The whole text must begin with that prompt.
* The turn ends where the text of the messages up to and including it ends, if the whole text begins
  with that text. It need not: some templates leave things out of turns that are not the last. Then
  the turn is rendered once more, as the last one, with a placeholder word as its content. The text
  behind that word is the end of the turn, and must stand behind the content in the whole text too.

White space behind the token that ends a turn does not belong to the turn: generation stops at that
token.
"""

from .errors import DataError

# The placeholder for the content of a turn; no conversation has it.
WORD = "\ue000terrace-turn\ue001"
MARK_TURNS = ("put {% generation %} and {% endgeneration %} around what the assistant says in the "
              "template, and name the file with --chat-template")


class TurnFinder:
    """Finds turns of one conversation. `render(messages, is_prompt)` returns a text."""

    def __init__(self, render, messages, text, ends):
        self.render = render
        self.messages = messages
        self.text = text
        self.ends = sorted(ends, key=len, reverse=True)  # texts of tokens that may end a turn

    def span(self, index, place):
        """Returns the span of the message's turn in the text."""
        prompt = self.render(self.messages[:index], True)
        if not self.text.startswith(prompt):
            raise DataError(f"{place}: message {index}: the template renders the prompt for it "
                            "otherwise than the conversation begins, so that its turn is not found",
                            MARK_TURNS)
        end = self.end_of_turn(index, len(prompt))
        if end is None:
            raise DataError(f"{place}: message {index}: the template renders it otherwise with "
                            "what follows, so that the end of its turn is not found", MARK_TURNS)
        return len(prompt), self.without_space_behind(len(prompt), end)

    def end_of_turn(self, index, begin):
        if index + 1 == len(self.messages):
            return len(self.text)
        through = self.render(self.messages[:index + 1], False)
        if self.text.startswith(through) and len(through) >= begin:
            return len(through)
        content = self.messages[index].get("content")
        if not isinstance(content, str):
            return None
        before, after = self.around(self.messages[:index], index, self.messages[index + 1:])
        behind = self.around(self.messages[:index], index, [])[1]
        if before is None or behind is None or len(before) + len(after) > len(self.text):
            return None
        if not (self.text.startswith(before) and self.text.endswith(after)):
            return None
        end_of_content = len(self.text) - len(after)
        if len(before) < begin or not after.startswith(behind):
            return None
        return end_of_content + len(behind)

    def around(self, messages, index, more):
        """Returns the text before and behind WORD, rendered in place of the message's content.

        Returns (None, None) unless the word is rendered exactly once.
        """
        spoken = [*messages, {**self.messages[index], "content": WORD}, *more]
        parts = self.render(spoken, False).split(WORD)
        return tuple(parts) if len(parts) == 2 else (None, None)

    def without_space_behind(self, begin, end):
        turn = self.text[begin:end]
        stripped = turn.rstrip()
        if stripped != turn and any(stripped.endswith(one) for one in self.ends):
            return begin + len(stripped)
        return end


def mask_of(offsets, spans, size):
    """Returns 1 for each token whose text lies at least partly in a span, else 0.

    Offsets and spans are in order.
    """
    mask = [0] * size
    at = 0
    for token, (begin, end) in enumerate(offsets):
        while at < len(spans) and begin >= spans[at][1]:
            at += 1
        if at == len(spans):
            break
        if end > spans[at][0]:
            mask[token] = 1
    return mask


def parts_within(spans, limits):
    """Returns the parts of the spans that lie in one of the limits; both are in order."""
    parts = []
    for begin, end in spans:
        for low, high in limits:
            if max(begin, low) < min(end, high):
                parts.append((max(begin, low), min(end, high)))
    return parts
