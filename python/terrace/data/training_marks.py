"""Reads the keys that say whether a message is trained on."""

from .keys import shown, wrong

# The keys of a message, each with true or 1 for a message that is trained on. They are OpenAI's,
# axolotl's, ms-swift's, and others'.
MARKS = ("weight", "train", "training", "trainable", "loss", "loss_mask")
# Keys that mark what is trained on and what is not by different rules in different programs.
UNCLEAR_MARKS = ("mask", "masks", "masked", "labels", "train_on", "train_detail", "training_detail",
                 "loss_scale")
# Keys of a row that say what is trained on.
ROW_MARKS = (*MARKS, *UNCLEAR_MARKS, "weights", "loss_masks", "train_on_input", "train_on_inputs")
INSTEAD = 'give messages "train": true or false instead'


def take_mark(message, path, place):
    """Removes the marks of a message. Returns True, False, or None for a message without marks."""
    for key in UNCLEAR_MARKS:
        if key in message:
            raise wrong(place, f"{path}.{key}",
                        "does not have one meaning that all programs agree on", INSTEAD)
    mark = None
    for key in MARKS:
        if key not in message:
            continue
        value = message.pop(key)
        if not isinstance(value, (bool, int, float)) or value not in (0, 1):
            raise wrong(place, f"{path}.{key}", f"is {shown(value)}, not true, false, 1 or 0",
                        "give one of these")
        if mark is not None and mark != bool(value):
            raise wrong(place, f"{path}.{key}", "contradicts another key of the message",
                        "keep one key that says whether the message is trained on")
        mark = bool(value)
    return mark


def trained_turns(turns, context, place):
    """Returns for each turn whether it is trained on, and removes the marks from the messages.

    Only turns of the assistant behind the first `context` turns can be trained on.
    """
    trained = []
    for i, turn in enumerate(turns):
        can_be = turn.message["role"] == "assistant" and i >= context
        mark = take_mark(turn.message, turn.path, place)
        if mark and not can_be:
            raise wrong(place, turn.path, "is marked to be trained on, and is not an answer of the "
                        "assistant", "mark answers only")
        trained.append(can_be and mark is not False)
    return trained


def check_row_marks(row, place):
    for key in ROW_MARKS:
        if key in row:
            raise wrong(place, key, "is not read beside a conversation, where it could say what is "
                        "trained on", f"{INSTEAD}, or remove the key")
