"""Compares the ids of Terrace's tokenizers with the ids of Python's on much text.

    compare.py PROGRAM MEGABYTES [NAME...]    PROGRAM: tokenizer_ids

Trains vocabularies on the machine's text, then compares every id of MEGABYTES of mixed text, and of
every code point in three contexts. Prints a line of JSON for each (the mixed text in its two parts,
files of the machine and drawn text), with the speed of both on one thread of the processor. Fails if
an id differs.
"""

import array
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

import sentencepiece  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

import corpus  # noqa: E402
import vocabularies  # noqa: E402

VOCABULARY = 16_000


def encode_with_terrace(program, tokenizer, documents, folder):
    texts, ids = folder / "texts", folder / "ids"
    with open(texts, "wb") as file:
        for document in documents:
            content = document if isinstance(document, bytes) else document.encode()
            file.write(struct.pack("<Q", len(content)) + content)
    # Each file is written anew: the old one has other texts.
    done = subprocess.run([program, tokenizer, texts, ids, "2"], check=True, capture_output=True)
    content, lists, at = ids.read_bytes(), [], 0
    while at < len(content):
        count, = struct.unpack_from("<Q", content, at)
        lists.append(array.array("I", content[at + 8:at + 8 + 4 * count]))
        at += 8 + 4 * count
    return lists, float(done.stdout)


def compare(name, path, encode, documents, program):
    with tempfile.TemporaryDirectory() as folder:
        found, seconds = encode_with_terrace(program, path, documents, pathlib.Path(folder))
    begin = time.process_time()
    expected = [encode(document) for document in documents]
    python_seconds = time.process_time() - begin
    different = [i for i, (a, b) in enumerate(zip(expected, found, strict=True))
                 if array.array("I", a) != b]
    size = sum(len(document.encode()) for document in documents)
    print(json.dumps({"name": name, "bytes": size, "ids": sum(map(len, expected)),
                      "documents": len(documents), "different": len(different),
                      "terrace_mb_per_s": round(size / seconds / 1e6, 1),
                      "python_mb_per_s": round(size / python_seconds / 1e6, 1)}), flush=True)
    for i in different[:3]:
        show_difference(documents[i], list(expected[i]), list(found[i]))
    return len(different)


def show_difference(document, expected, found):
    at = next((i for i, (a, b) in enumerate(zip(expected, found)) if a != b),
              min(len(expected), len(found)))
    print(f"  {document[:60]!r}: at id {at} {expected[at:at + 8]}, found {found[at:at + 8]}")


def without_newer_letters(documents):
    """Leaves out characters newer than Python's Unicode: PCRE2 has the classes of an older Unicode."""
    import unicodedata
    old = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs")]
    keep = set(old) - {"\u180e"}
    return ["".join(c for c in document if c in keep) for document in documents]


def tokenizers_of(names, folder):
    """Yields for each tokenizer its name, its file, and Python's tokenizer, or None for SentencePiece."""
    texts = corpus.machine_text(6_000_000) + [corpus.drawn_text(2_000_000, seed=1)]
    for name, make in vocabularies.BYTE_LEVEL.items():
        if not names or name in names:
            yield name, folder / f"{name}.json", make(texts, VOCABULARY)
    if names and not names & {"sentencepiece", "llama2", "metaspace", "unknowns"}:
        return
    # SentencePiece puts every sign into the vocabulary, so it gets only a few of the drawn ones.
    texts[-1] = texts[-1][:20_000]
    model = vocabularies.sentencepiece_model(texts, VOCABULARY)
    (folder / "sentencepiece.model").write_bytes(model)
    yield "sentencepiece", folder / "sentencepiece.model", None
    llama2 = vocabularies.from_sentencepiece(model)
    yield "llama2", folder / "llama2.json", llama2
    schemes = {"replacement": "\u2581", "prepend_scheme": "first", "split": True}
    yield "metaspace", folder / "metaspace.json", vocabularies.from_sentencepiece(model, schemes)
    yield "unknowns", folder / "unknowns.json", vocabularies.without_byte_fallback(llama2, fuse=True)


def main():
    program, megabytes, names = sys.argv[1], float(sys.argv[2]), set(sys.argv[3:])
    mixed = corpus.mixed_documents(int(megabytes * 1e6), seed=2)
    every = list(corpus.code_point_documents())
    different = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, path, tokenizer in tokenizers_of(names, pathlib.Path(folder)):
            if names and name not in names:
                continue
            if tokenizer is None:
                encode = sentencepiece.SentencePieceProcessor(model_file=str(path)).encode
            else:
                tokenizer.save(str(path))
                reloaded = Tokenizer.from_file(str(path))
                encode = lambda text: reloaded.encode(text, add_special_tokens=False).ids  # noqa: E731
            for what, documents in (("files", mixed[::2]), ("drawn", mixed[1::2]), ("code points", every)):
                if name == "unknown":
                    documents = without_newer_letters(documents)
                different += compare(f"{name}, {what}", path, encode, documents, program)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
