"""Writes tests/tokenizer/golden: small vocabularies, and the ids that Python's packages make of texts.

    make_golden.py        in the environment of tools/python_env.sh

A folder for each tokenizer has the tokenizer's file and cases.txt. A line of cases.txt has three fields
with tabs between: the bytes of a text in hexadecimal, the ids that the package makes of it, and the
bytes that it decodes the ids to. The last field is "=" if these are the text's bytes, and "-" if the
decoded text has lost bytes.
"""

import json
import pathlib
import random

import sentencepiece
from tokenizers import Tokenizer, normalizers, pre_tokenizers

import corpus
import vocabularies

FOLDER = pathlib.Path(__file__).resolve().parent / "golden"
VOCABULARY = 900

INVALID = [b"\xff", b"a\xc3", b"\xe4\xbd", b"\xe4\xbdA", b"\xed\xa0\x80", b"\xf4\x90\x80\x80",
           b"\xf0\x9f\x98", b"\xc0\xaf", b"\xe0\x80\xaf", b"x\x80\x80y", b"\xf0\x9f\x98\x80\xf0\x9f",
           b"\xfe\xfe\xff\xff", b"abc\xc3\xa9\xc3", b"\xe0\xa0\xf0\x90\x80e\xcc\x81\xcc"]
PLAIN = ["", " ", "  ", "\n", "\r\n", "\t", "Hello world", " Hello  world ", "a\r\n\r\nb", "x \n y",
         "I'll don't WE'RE it'\u017f 'S'T'RE'VE'M'LL'D '", "1 12 123 1234567 \u0661\u0662\u0663\u0664 \u2167\u00bd",
         "\u00a0NBSP\u3000wide\u200dzwj\u180emvs", "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd",
         "e\u0301 e\u0323\u0301 A\u030a \u00c5 \u212b \uac00\u11a8 \u1100\u1161\u11a8", "q\u0307\u0323 \u0344 a\u0898\u0301\u0897",
         "\u4f60\u597d\u4e16\u754c\u3002\u3053\u3093\u306b\u3061\u306f \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u0645\u0631\u062d\u0628\u0627", "trailing   ", "   leading",
         "a" * 200, " " * 70 + "x", "\n" * 50, "\u00e9" * 60, "x" * 31 + " " + "y" * 32, "\0 nul",
         "\u2581 mark \u2581\u2581", "\U00013000\U000143fa new letters", "tab\tand\x0bvt\x0cff\x85nel\u2028"]
ADDED = ["<|endoftext|>", "a<|endoftext|>b", "<|endoftext|><|endoftext|>", "<|end of", "<|end", "<<|end|>",
         "  <mask>  x", "<pad>  \n x", " <both> <both> \u3000<both>", "word words sword word", "word",
         "a_word \u00e9word word\u0301 word9 (word)", "na\u00efve nai\u0308ve", "A\u030a \u00c5 e\u0301 \u00e9", "<s> x </s> <unk>",
         "<mask><pad><both>", "\n<mask>\n", "<|im_start|>user\nHi<|im_end|>\n"]


def texts():
    draw = random.Random(3)
    points = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    low = [c for c in points if c < 0x3000]
    sampled = sorted(draw.sample(low, 280) + draw.sample(points, 140))
    found = [text.encode() for text in PLAIN + ADDED] + INVALID
    for context in ("x{0}y ", " {0} ", "'{0}1{0}{0}\n"):
        for i in range(0, len(sampled), 10):
            found.append("".join(context.format(chr(c)) for c in sampled[i:i + 10]).encode())
    found += [corpus.drawn_text(150, seed).encode() for seed in range(20)]
    licence = next(t for t in corpus.machine_text(400_000) if "\n\n" in t)
    found += [licence[i:i + 300].encode() for i in range(0, 2400, 300)]
    return found


def write_cases(name, encode, decode):
    lines = []
    for text in texts():
        ids = encode(text.decode("utf-8", errors="replace"))
        decoded = decode(ids)
        shown = decoded.encode().hex()
        if "\ufffd" in decoded:
            shown = "-"
        elif decoded.encode() == text:
            shown = "="
        lines.append("\t".join([text.hex(), " ".join(map(str, ids)), shown]))
    (FOLDER / name / "cases.txt").write_text("\n".join(lines) + "\n")


def write_tokenizer(name, tokenizer):
    (FOLDER / name).mkdir(parents=True, exist_ok=True)
    path = FOLDER / name / "tokenizer.json"
    content = json.loads(tokenizer.to_str())
    path.write_text(json.dumps(content, ensure_ascii=True, separators=(",", ":")) + "\n")
    reloaded = Tokenizer.from_file(str(path))
    write_cases(name, lambda text: reloaded.encode(text, add_special_tokens=False).ids,
                lambda ids: reloaded.decode(ids, skip_special_tokens=False))


def main():
    training = corpus.machine_text(1_500_000) + [corpus.drawn_text(150_000, seed=1)]
    for name, make in vocabularies.BYTE_LEVEL.items():
        if name != "unknown":
            write_tokenizer(name, make(training, VOCABULARY))
    training[-1] = training[-1][:8000]
    model = vocabularies.sentencepiece_model(training, 1500, coverage=0.99)
    write_sentencepiece("sentencepiece", model)
    llama2 = vocabularies.from_sentencepiece(model)
    write_tokenizer("llama2", llama2)
    for scheme, split in (("first", True), ("always", False)):
        metaspace = {"replacement": "\u2581", "prepend_scheme": scheme, "split": split}
        write_tokenizer(f"metaspace_{scheme}", vocabularies.from_sentencepiece(model, metaspace))
    write_tokenizer("unknowns", vocabularies.without_byte_fallback(llama2, fuse=False))
    gemma = vocabularies.from_sentencepiece(model)
    gemma.normalizer = normalizers.Replace(" ", "\u2581")
    gemma.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    write_tokenizer("gemma", gemma)


def write_sentencepiece(name, model):
    (FOLDER / name).mkdir(parents=True, exist_ok=True)
    (FOLDER / name / "tokenizer.model").write_bytes(model)
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
    write_cases(name, pieces.encode, pieces.decode)


if __name__ == "__main__":
    main()
