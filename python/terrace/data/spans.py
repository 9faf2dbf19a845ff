"""Finds where the assistant's turns stand in a rendered conversation.

A template that marks its turns with `{% generation %}` says so itself. With any other template, a
turn is found by rendering parts of the conversation again.

The turn begins behind the prompt from which it would be generated: the messages before it, and the
template's generation prompt. Usually the whole text begins with that prompt. If it does not, the
template has moved something (a system message goes to the last question), or its generation prompt
has more than a conversation has (it begins a thought). Then the place is found between two words
that are rendered in place of the turn's content and of the content before it:

    whole text      ... content before | gap    | content of the turn ...
    prompt          ... content before | header

If the gap begins with the header, the turn begins behind the header. If the header begins with the
gap, the turn begins behind the gap, which is where its content begins. Otherwise it is not known.

The turn ends where the text of the messages up to and including it ends, if the whole text goes on
from there; for the last message, the text with a generation prompt at its end. If it does not go on
so, the template renders the turn differently as the last one: it leaves thoughts out of earlier
turns, or ends the text with a token. Then both are rendered with a word in place of a part of the
turn:

    whole text      ... | word | end of the turn, and what follows
    as the last     ... | word | end of the turn, and perhaps a token that ends the text

The end of the turn is the text behind the word that both have. The place of the word in the text
itself is known if the text ends as the one with the word does.

White space behind the token that ends a turn does not belong to the turn: generation stops at that
token.
"""

from .errors import DataError
from .shown import missing_part

# The placeholders; no conversation has them.
WORD = "\ue000terrace-turn\ue001"
WORD_BEFORE = "\ue000terrace-before\ue001"
MARK_TURNS = ("put {% generation %} and {% endgeneration %} around what the assistant says in the "
              "template, and name the file with --chat-template")


def with_content(message, word):
    """Returns the message with a word as its content, which stays a list if it is one."""
    is_list = isinstance(message.get("content"), list)
    return {**message, "content": [{"type": "text", "text": word}] if is_list else word}


def with_part(message, word):
    """Yields the message with a word in place of a part: its content, its last call's name or id."""
    yield with_content(message, word)
    calls = message.get("tool_calls")
    call = calls[-1] if isinstance(calls, list) and calls else None
    if not isinstance(call, dict):
        return
    function = call.get("function")
    named = {**call, "name": word}
    if isinstance(function, dict):
        named = {**call, "function": {**function, "name": word}}
    for changed in (named, {**call, "id": word}):
        yield {**message, "tool_calls": [*calls[:-1], changed]}


class TurnFinder:
    """Finds turns of one conversation. `render(messages, is_prompt)` returns a text."""

    def __init__(self, render, messages, text, ends):
        self.render = render
        self.messages = messages
        self.text = text
        self.ends = sorted(ends, key=len, reverse=True)  # texts of tokens that may end a turn

    def span(self, index, place):
        """Returns the span of the message's turn in the text."""
        begin = self.begin_of_turn(index)
        if begin is None:
            raise DataError(f"{place}: message {index}: its turn is not found, because the text "
                            "before it differs where the template renders it as a prompt",
                            MARK_TURNS)
        end = self.end_of_turn(index, begin)
        if end is None:
            raise DataError(f"{place}: message {index}: the end of its turn is not found, because "
                            "the template renders it differently where messages follow", MARK_TURNS)
        if missing := missing_part(self.messages[index], self.text[begin:end]):
            raise DataError(f"{place}: message {index}: the turn that is found for it does not show "
                            f"{missing}", MARK_TURNS)
        return begin, self.without_space_behind(begin, end)

    def begin_of_turn(self, index):
        prompt = self.variation(self.messages[:index], True)
        if prompt is not None and self.text.startswith(prompt):
            return len(prompt)
        if index == 0:
            return None
        before, later = self.messages[:index], self.messages[index + 1:]
        worded = [*before[:-1], with_content(before[-1], WORD_BEFORE)]
        header = self.around(WORD_BEFORE, worded, True)
        for turn in with_part(self.messages[index], WORD):
            whole = self.around(WORD, [*before, turn, *later], False)
            both = self.around(WORD, [*worded, turn, *later], False)
            if not (header and whole and both and self.text.startswith(whole[0])):
                continue
            _, word, gap = both[0].rpartition(WORD_BEFORE)
            if not word or not whole[0].endswith(gap):
                continue
            if gap.startswith(header[1]):
                return len(whole[0]) - len(gap) + len(header[1])
            if header[1].startswith(gap):
                return len(whole[0])
        return None

    def end_of_turn(self, index, begin):
        before, later = self.messages[:index], self.messages[index + 1:]
        if later:
            through = self.variation(self.messages[:index + 1], False)
            if through is not None and self.text.startswith(through) and len(through) >= begin:
                return len(through)
        elif (self.variation(self.messages, True) or "").startswith(self.text):
            return len(self.text)
        for turn in with_part(self.messages[index], WORD):
            last = self.around(WORD, [*before, turn], False)
            whole = self.around(WORD, [*before, turn, *later], False)
            follows = self.around(WORD, [*before, turn, *later], not later)
            if not (last and whole and follows and self.text.endswith(whole[1])):
                continue
            size = self.size_of_end(last[1], follows[1], "tool_calls" in turn)
            end_of_word = len(self.text) - len(whole[1])
            if size is not None and end_of_word >= begin:
                return end_of_word + size
        return None if later else len(self.text)

    def size_of_end(self, last, follows, has_calls):
        """Returns the size of the end of a turn: as the last one, and with text that follows.

        A token that only the last turn has does not count. In front of it there must be an end that
        both have; calls of tools could be taken for one.
        """
        if follows.startswith(last):
            return len(last)
        for token in [] if has_calls else self.ends:
            end = last.removesuffix(token)
            if end != last and end.strip() and follows.startswith(end):
                return len(end)
        return None

    def variation(self, messages, is_prompt):
        """Returns the text of messages that are not in the data; None if the template refuses them."""
        try:
            return self.render(messages, is_prompt)
        except DataError:
            return None

    def around(self, word, messages, is_prompt):
        """Returns the text before and behind the word, or None unless it is rendered once."""
        parts = (self.variation(messages, is_prompt) or "").split(word)
        return tuple(parts) if len(parts) == 2 else None

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
