"""Texts for the comparisons with Python's tokenizers: files that any machine has, and drawn Unicode."""

import pathlib
import random
import sysconfig

FOLDERS = ["/usr/share/common-licenses", "/usr/share/doc", "/usr/include",
           sysconfig.get_path("stdlib")]
ENDINGS = {".h", ".hpp", ".py", ".txt", ".md", ".rst", ".html", ""}
# First and last code points of scripts, signs and marks.
RANGES = {"latin": (0xC0, 0x24F), "greek": (0x370, 0x3FF), "cyrillic": (0x400, 0x4FF),
          "hebrew": (0x5D0, 0x5EA), "arabic": (0x620, 0x669), "devanagari": (0x904, 0x96F),
          "thai": (0xE01, 0xE5B), "hangul": (0xAC00, 0xD7A3), "jamo": (0x1100, 0x11FF),
          "kana": (0x3041, 0x30FF), "han": (0x4E00, 0x9FA5), "marks": (0x300, 0x36F),
          "newer marks": (0x898, 0x8E1), "emoji": (0x1F300, 0x1F64F), "skin": (0x1F3FB, 0x1F3FF),
          "math": (0x1D400, 0x1D7FF), "signs": (0x2010, 0x2BFF), "old letters": (0x13000, 0x143FA)}
SPACES = [" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u200d", "\n\n", " \n", "   ",
          "\u0085", "\u180e", "\u2028"]
LATIN = ["the", "don't", "I'LL", "we\u2019re", "it'\u017f", "\u212aelvin", "naive", "na\u00efve",
         "na\u0131\u0308ve", "3.1415", "1234567", "\u0661\u0662\u0663", "\u2167\u00bd", "#!/bin", "a_b", "<s>",
         "</s>", "<|endoftext|>", "<|im_start|>", "->*", "0x1F", "\u00c5\u212b", "A\u030a", "e\u0301\u0323"]


def machine_text(limit_bytes):
    """Returns text of the machine's files, in the order of their names, with a share for each folder."""
    parts = []
    for folder in FOLDERS:
        left = limit_bytes // len(FOLDERS)
        for path in sorted(pathlib.Path(folder).rglob("*")):
            if left <= 0:
                break
            if path.suffix not in ENDINGS or path.is_symlink() or not path.is_file():
                continue
            text = path.read_bytes()[:200_000].decode("utf-8", errors="replace")
            if "\0" in text:
                continue
            parts.append(text)
            left -= len(text)
    return parts


def drawn_text(chars, seed):
    """Returns drawn words of many scripts, with the separators that stand between words."""
    draw = random.Random(seed)
    ranges = list(RANGES.values())
    parts = []
    size = 0
    while size < chars:
        kind = draw.random()
        if kind < 0.25:
            part = draw.choice(LATIN)
        elif kind < 0.3:
            part = "".join(chr(draw.choice(range(0x20, 0x7F))) for _ in range(draw.randrange(1, 9)))
        elif kind < 0.32:
            point = draw.randrange(0x110000 - 0x800)
            part = chr(point if point < 0xD800 else point + 0x800)
        else:
            low, high = draw.choice(ranges)
            part = "".join(chr(draw.randint(low, high)) for _ in range(draw.randrange(1, 8)))
            if draw.random() < 0.3:
                part += chr(draw.randint(*RANGES["marks"])) + chr(draw.randint(*RANGES["newer marks"]))
        parts.append(part)
        size += len(part)
        if draw.random() < 0.7:
            parts.append(draw.choice(SPACES))
    return "".join(parts)


def mixed_documents(limit_bytes, seed):
    """Returns the machine's text and drawn text in turn; three fifths of the bytes are drawn."""
    draw = random.Random(seed)
    machine = machine_text(60_000_000)
    documents, size = [], 0
    while size < limit_bytes:
        whole = draw.choice(machine)
        begin = draw.randrange(max(1, len(whole) // 2))
        documents.append(whole[begin:begin + 50_000])
        documents.append(drawn_text(4_000, draw.random()))
        size += len(documents[-1].encode()) + len(documents[-2].encode())
    return documents


def code_point_documents(points_per_document=64):
    """Yields documents with every code point in three contexts."""
    points = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    for context in ("x{0}y ", " {0} ", "'{0}1{0}{0}\n"):
        for i in range(0, len(points), points_per_document):
            yield "".join(context.format(chr(c)) for c in points[i:i + points_per_document])
