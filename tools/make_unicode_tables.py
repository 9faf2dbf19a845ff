#!/usr/bin/env python3
"""Writes runtime/tokenizer/unicode_tables.cc: which code points are letters, digits, white space and
marks to Hugging Face's `tokenizers`; and newer_categories.cc: which categories it gives to code points
that are newer than Unicode 14.

    tools/make_unicode_tables.py        in a Python that has the package `tokenizers`

Everything is measured from what the package does: its patterns, its added tokens and its normaliser
have tables of three versions of Unicode. Only the code points that are second in a composition come
from Python's unicodedata, and are then tried.
"""

import pathlib
import subprocess
import sys
import unicodedata

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "runtime/tokenizer/unicode_tables.cc"
NEWER_OUTPUT = ROOT / "runtime/tokenizer/newer_categories.cc"
POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def of_pattern(pattern):
    """Returns the code points that a pattern matches: removing its matches removes them."""
    split = pre_tokenizers.Split(Regex(pattern), "removed")
    left = split.pre_tokenize_str("".join(map(chr, POINTS)))
    return set(POINTS) - {ord(c) for piece, _ in left for c in piece}


def numerics():
    """Returns the code points that Digits cuts off from the letter behind them."""
    text = "".join(chr(c) + "a" for c in POINTS)
    pieces = pre_tokenizers.Digits(individual_digits=False).pre_tokenize_str(text)
    return {ord(piece) for piece, _ in pieces if len(piece) == 1 and piece != "a"}


def added_token_ends(**flags):
    """Encodes " X" before each code point, all in a row. Returns the code points, and a dictionary
    from the place where a token X begins to the place where it ends."""
    tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    tokenizer.add_tokens([AddedToken("X", normalized=False, **flags)])
    points = [c for c in POINTS if chr(c) != "X"]
    encoding = tokenizer.encode("".join(f" X{chr(c)}" for c in points), add_special_tokens=False)
    token = tokenizer.token_to_id("X")
    ends = {begin: end for id_, (begin, end) in zip(encoding.ids, encoding.offsets) if id_ == token}
    return points, ends


def words():
    """Returns the code points of words. A token for single words is not found before them."""
    points, ends = added_token_ends(single_word=True)
    return {c for i, c in enumerate(points) if 3 * i + 1 not in ends} | {ord("X")}


def stripped_spaces():
    """Returns white space: with rstrip a token takes the white space behind it, and the space
    before the next token."""
    points, ends = added_token_ends(rstrip=True)
    return {c for i, c in enumerate(points) if ends[3 * i + 1] > 3 * i + 2}


def marks(nfc):
    """Returns the code points that change places with a mark of class 1 behind them, or with one of
    class 240 before them."""
    low, high = "\u0334", "\u0345"
    return {c for c in POINTS
            if nfc(chr(c) + low) == low + chr(c) or nfc(high + chr(c)) == chr(c) + high}


def seconds(nfc):
    """Returns the code points that join the code point before them."""
    found = set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))  # Hangul
    for c in POINTS:
        parts = unicodedata.decomposition(chr(c)).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            first, second = (chr(int(part, 16)) for part in parts)
            if nfc(first + second) != first + second:
                found.add(ord(second))
    return found


def runs(members):
    """Returns in turn how many code points are not members, and how many are."""
    lengths, at = [], 0
    points = sorted(members)
    i = 0
    while i < len(points):
        end = i
        while end + 1 < len(points) and points[end + 1] == points[end] + 1:
            end += 1
        lengths += [points[i] - at, end - i + 1]
        at = points[end] + 1
        i = end + 1
    return lengths


CATEGORIES = ("Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So").split()


def newer_categories():
    """Returns (first, last, category) for code points of patterns that Unicode 14 does not have."""
    if unicodedata.unidata_version != "14.0.0":
        sys.exit("needs Python 3.11, whose Unicode is 14, as that of PCRE2 10.42 is")
    unassigned = {c for c in POINTS if unicodedata.category(chr(c)) == "Cn"}
    ranges = []
    for category in CATEGORIES:
        at = 0
        lengths = runs(of_pattern(rf"\p{{{category}}}") & unassigned)
        for gap, size in zip(lengths[::2], lengths[1::2]):
            ranges.append((at + gap, at + gap + size - 1, category))
            at += gap + size
    return sorted(ranges)


def write_newer():
    lines = ['#include "runtime/tokenizer/newer_categories.h"', "", "#include <array>", "",
             f"// Made by tools/make_unicode_tables.py from tokenizers {tokenizers.__version__}.",
             "namespace terrace {", "namespace {", "",
             "constexpr auto kRanges = std::to_array<CategoryRange>({"]
    lines += [f'{{{first:#x}, {last:#x}, "{category}"}},'
              for first, last, category in newer_categories()]
    lines += ["});", "", "}  // namespace", "",
              "std::span<const CategoryRange> newer_categories() { return kRanges; }", "",
              "}  // namespace terrace", ""]
    NEWER_OUTPUT.write_text("\n".join(lines))


def main():
    nfc = normalizers.NFC().normalize_str
    spaces = of_pattern(r"\s")
    if stripped_spaces() != spaces:
        sys.exit("added tokens take other white space than patterns do")
    changed = {c for c in POINTS if nfc(chr(c)) != chr(c)}
    mark = marks(nfc)
    tables = {"Letters": of_pattern(r"\p{L}"), "Numbers": of_pattern(r"\p{N}"), "Spaces": spaces,
              "Numerics": numerics(), "Words": words(),
              "NfcSpecials": changed | mark | seconds(nfc), "Marks": mark}
    lines = ['#include "runtime/tokenizer/unicode_tables.h"', "", "#include <array>", "",
             f"// Made by tools/make_unicode_tables.py from tokenizers {tokenizers.__version__}.",
             "namespace terrace {", "namespace {", ""]
    for name, members in tables.items():
        print(f"{name}: {len(members)} code points", file=sys.stderr)
        lines += [f"constexpr auto k{name} = std::to_array<std::uint32_t>({{",
                  ", ".join(map(str, runs(members))), "});", ""]
    names = ", ".join(f"k{name}" for name in tables)
    lines += ["}  // namespace", "",
              f"UnicodeTables unicode_tables() {{ return {{{names}}}; }}", "",
              "}  // namespace terrace", ""]
    OUTPUT.write_text("\n".join(lines))
    write_newer()
    subprocess.run([ROOT / "tools/check_format.sh", "--fix"], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
