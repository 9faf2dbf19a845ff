"""Vocabularies trained with the packages `tokenizers` and `sentencepiece`, each with the patterns
and flags of a family of models."""

import io
import json

import sentencepiece
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors, trainers)

CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTION + r"\p{N}{1,3}" + REST
QWEN2 = CONTRACTION + r"\p{N}" + REST
# Close to the pattern of GPT-4o, which is not among the known patterns.
UNKNOWN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
           r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
           r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def byte_level(pre_tokenizer, normalizer=None, ignore_merges=False):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer:
        tokenizer.normalizer = normalizer
    return tokenizer


def split(pattern):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def train(tokenizer, texts, vocabulary):
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, show_progress=False, max_token_length=24,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def gpt2(texts, vocabulary):
    tokenizer = train(byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False)), texts, vocabulary)
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer


def llama3(texts, vocabulary):
    tokenizer = train(byte_level(split(LLAMA3), ignore_merges=True), texts, vocabulary)
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>"])
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=True),
        processors.TemplateProcessing(
            single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|> $B",
            special_tokens=[("<|begin_of_text|>", tokenizer.token_to_id("<|begin_of_text|>"))])])
    return tokenizer


def qwen2(texts, vocabulary):
    tokenizer = train(byte_level(split(QWEN2), normalizers.NFC()), texts, vocabulary)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    return tokenizer


def digits(texts, vocabulary):
    """Makes a tokenizer like SmolLM's, with added tokens of every kind."""
    steps = [pre_tokenizers.Digits(individual_digits=True),
             pre_tokenizers.ByteLevel(add_prefix_space=False)]
    tokenizer = train(byte_level(pre_tokenizers.Sequence(steps), normalizers.NFC()), texts, vocabulary)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|end"])
    tokenizer.add_tokens([
        AddedToken("<mask>", lstrip=True), AddedToken("<pad>", rstrip=True),
        AddedToken("<both>", lstrip=True, rstrip=True, normalized=False),
        AddedToken("word", single_word=True), AddedToken("na\u00efve", normalized=True),
        AddedToken("A\u030a", normalized=True), AddedToken("e\u0301", normalized=False)])
    return tokenizer


def unknown(texts, vocabulary):
    return train(byte_level(split(UNKNOWN)), texts, vocabulary)


def prefixed(texts, vocabulary):
    return train(byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True)), texts, vocabulary)


def sentencepiece_model(texts, vocabulary, coverage=0.995):
    """Returns the bytes of a model like llama 2's."""
    model = io.BytesIO()
    lines = (line for text in texts for line in text.split("\n") if line.strip())
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=lines, model_writer=model, model_type="bpe", vocab_size=vocabulary,
        byte_fallback=True, split_digits=True, normalization_rule_name="identity",
        remove_extra_whitespaces=False, allow_whitespace_only_pieces=True, max_sentence_length=100_000,
        character_coverage=coverage, minloglevel=2, num_threads=2)
    return model.getvalue()


def from_sentencepiece(model, metaspace=None):
    """Returns the same vocabulary for `tokenizers`, converted as transformers does. Normalisers make
    the marks of spaces, or else the pre-tokenizer Metaspace with the given scheme and split."""
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
    vocabulary = {pieces.id_to_piece(i): i for i in range(len(pieces))}
    merges = []
    for token, index in vocabulary.items():
        sides = [(token[:i], token[i:]) for i in range(1, len(token))]
        sides = [pair for pair in sides if pair[0] in vocabulary and pair[1] in vocabulary]
        score = pieces.get_score(index)
        merges += [(pair, score) for pair in sorted(sides, key=lambda p: [vocabulary[s] for s in p])]
    merges.sort(key=lambda m: (m[1], len(m[0][0]), len(m[0][1])), reverse=True)
    tokenizer = Tokenizer(models.BPE(vocabulary, [pair for pair, _ in merges], unk_token="<unk>",
                                     fuse_unk=True, byte_fallback=True))
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in ("<unk>", "<s>", "</s>")])
    if metaspace:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(**metaspace)
        tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "),
                                               decoders.ByteFallback(), decoders.Fuse(),
                                               decoders.Strip(" ", 1, 0)])
    else:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"),
                                                     normalizers.Replace(" ", "\u2581")])
        tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "),
                                               decoders.ByteFallback(), decoders.Fuse(),
                                               decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)])
    return tokenizer


def without_byte_fallback(tokenizer, fuse):
    """Returns the same tokenizer, in which code points may be unknown."""
    content = json.loads(tokenizer.to_str())
    content["model"]["byte_fallback"] = False
    content["model"]["fuse_unk"] = fuse
    return Tokenizer.from_str(json.dumps(content))


BYTE_LEVEL = {"gpt2": gpt2, "llama3": llama3, "qwen2": qwen2, "digits": digits, "unknown": unknown,
              "prefixed": prefixed}
