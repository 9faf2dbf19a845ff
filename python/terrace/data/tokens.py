"""Ids of a text and the places in it that they are of, by the model's own tokenizer."""

from pathlib import Path

from .errors import CORRUPT, DataError, optional_package


class Bytes:
    """The bytes of UTF-8, as `terrace train --tokenizer bytes` has them."""

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
        except Exception as problem:  # the package throws nothing else
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
        """The id that stands before a text by the tokenizer's own template; None: none does."""
        alone = self.tokenizer.encode("a", add_special_tokens=False).ids
        ids = self.tokenizer.encode("a", add_special_tokens=True).ids
        return ids[0] if len(ids) > len(alone) and ids[1:1 + len(alone)] == alone else None

    def text_of(self, token):
        return self.tokenizer.id_to_token(token)


class Transformers:
    """A tokenizer.model, as transformers reads it."""

    def __init__(self, directory):
        transformers = optional_package("transformers", f"{directory}/tokenizer.model",
                                        "transformers sentencepiece")
        try:
            self.tokenizer = transformers.AutoTokenizer.from_pretrained(
                str(directory), local_files_only=True, trust_remote_code=False)
        except Exception as problem:  # of any kind, of many packages
            raise DataError(f"--model {directory}: transformers cannot read its tokenizer: "
                            f"{problem}", "give a tokenizer.json beside it", CORRUPT) from problem
        if not self.tokenizer.is_fast:
            raise DataError(f"--model {directory}: its tokenizer tells no places in the text",
                            "give a tokenizer.json beside it")

    def encode(self, text):
        found = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return found["input_ids"], found["offset_mapping"]

    def special_texts(self):
        return set(self.tokenizer.all_special_tokens)

    def begin_id(self):
        return self.tokenizer.bos_token_id

    def text_of(self, token):
        return self.tokenizer.convert_ids_to_tokens(token)


def tokenizer_of_model(directory):
    """As `terrace train --tokenizer auto` chooses."""
    directory = Path(directory)
    if (path := directory / "tokenizer.json").is_file():
        return TokenizerFile(path)
    if (directory / "tokenizer.model").is_file():
        return Transformers(directory)
    return Bytes()
