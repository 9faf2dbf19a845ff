"""Encodes a text with the model's own tokenizer: ids, and the place of each one in the text."""

from pathlib import Path

from .errors import CORRUPT, DataError, optional_package


class Bytes:
    """Takes the bytes of UTF-8 as ids, like `terrace train --tokenizer bytes`."""

    def begin_id(self):
        return None

    def encode(self, text):
        ids, offsets = [], []
        for at, character in enumerate(text):
            for byte in character.encode("utf-8"):
                ids.append(byte)
                offsets.append((at, at + 1))
        return ids, offsets

    def special_texts(self):
        return set()


class TokenizerFile:
    """A tokenizer.json, read by the package tokenizers."""

    def __init__(self, path):
        tokenizers = optional_package("tokenizers", str(path))
        try:
            self.tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as problem:  # the package raises no narrower class
            raise DataError(f"{path}: not a tokenizer: {problem}", "restore the file",
                            CORRUPT) from problem
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()

    def encode(self, text):
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def special_texts(self):
        tokens = self.tokenizer.get_added_tokens_decoder().values()
        return {token.content for token in tokens if token.special}

    def begin_id(self):
        """Returns the id that the tokenizer's own template puts before a text, or None."""
        alone = self.tokenizer.encode("a", add_special_tokens=False).ids
        ids = self.tokenizer.encode("a", add_special_tokens=True).ids
        return ids[0] if len(ids) > len(alone) and ids[1:1 + len(alone)] == alone else None

    def text_of(self, token):
        return self.tokenizer.id_to_token(token)


def tokenizer_of_model(directory):
    """Returns the tokenizer that `terrace train --tokenizer auto` chooses."""
    directory = Path(directory)
    if (path := directory / "tokenizer.json").is_file():
        return TokenizerFile(path)
    if (directory / "tokenizer.model").is_file():
        # SentencePiece takes the special tokens of a template for text.
        raise DataError(f"--model {directory}: it has a tokenizer.model alone, which does not know "
                        "the special tokens of a chat template",
                        "make a tokenizer.json of it: AutoTokenizer of transformers, "
                        "from_pretrained() and save_pretrained()")
    return Bytes()
