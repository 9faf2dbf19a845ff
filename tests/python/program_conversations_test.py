#!/usr/bin/env python3
"""Compares the program with terrace.data: program_conversations_test.py TERRACE PACKAGE

`terrace tokenize` must give conversations the ids and masks that `terrace.data prepare` gives them,
and must refuse those that it refuses: with all templates of this folder, and three tokenizers. The
package's own results are compared with transformers by prepare_test.py.
"""

import array
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from chat_templates import TEMPLATES, marked, plain
from maker_templates import CONVERSATIONS, MAKERS

TERRACE, PACKAGE = sys.argv[1:3]
sys.path.insert(0, PACKAGE)

import tokenizers  # noqa: E402

from terrace.data.errors import DataError  # noqa: E402
from terrace.data.prepare import Preparer  # noqa: E402

GOLDEN = Path(__file__).parents[1] / "tokenizer" / "golden"
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|end|>", "<|user|>", "<s>", "</s>", "[INST]", "[/INST]"]


def turns(*texts, **more):
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)],
            **more}


ROWS = [*CONVERSATIONS.values(),
        turns("  spaces ", " a\n", "\n\nx\r\n", "\u2028y\t"), turns("a", ""), turns("", "b"),
        turns("grüß e\u0301", "日本 😀 \u00e9", "\u2581mark", "e\u0301\u0302 \u2581"),
        turns("<|im_end|> in it", "and <s> here </s>"), turns("x" * 3000, "y " * 2000),
        turns("q", "<think>\nt\n</think>\n\na"), turns("q", "a", system="be brief"),
        {"messages": [{"role": "user", "content": "q"},
                      {"role": "assistant", "content": "a", "reasoning_content": "so"}]},
        {"messages": [{"role": "user", "content": "q"},
                      {"role": "assistant", "content": "no", "weight": 0},
                      {"role": "user", "content": "q"}, {"role": "assistant", "content": "yes"}]},
        {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
        {"instruction": "say", "input": "it", "output": "it"}, {"question": "q", "answer": "a"},
        {"messages": [{"role": "user", "content": "q"}]}, {"messages": []}, {"chosen": []}]


def make_model(folder, base):
    folder.mkdir()
    tokenizer = tokenizers.Tokenizer.from_file(str(GOLDEN / base / "tokenizer.json"))
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "</s>"}')
    return folder


def tokenize(model, template, rows, folder):
    """Returns the process, and the ids and masks of the rows if it succeeds."""
    data = folder / "rows.jsonl"
    data.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    output = folder / "ids"
    for old in folder.glob("ids*"):
        old.unlink()
    done = subprocess.run([TERRACE, "tokenize", "--tokenizer", model, "--chat-template", template,
                           "--output", output, data], capture_output=True, text=True)
    if done.returncode:
        return done, []
    ends = array.array("Q", (folder / "ids.idx").read_bytes())
    ids = output.read_bytes()
    width = len(ids) // ends[-1]
    ids = array.array("H" if width == 2 else "I", ids).tolist()
    mask = list((folder / "ids.mask").read_bytes())
    found, begin = [], 0
    for end in ends:
        found.append({"input_ids": ids[begin:end], "loss_mask": mask[begin:end]})
        begin = end
    return done, found


def compare(model, template, folder):
    """Returns how many rows were taken, and how many refused."""
    preparer = Preparer(model, template, "assistant")
    taken, wanted, refused = [], [], []
    for row in ROWS:
        try:
            wanted.append(preparer.row(json.loads(json.dumps(row)), "x"))
            taken.append(row)
        except DataError:
            refused.append(row)
    if taken:
        done, found = tokenize(model, template, taken, folder)
        assert found == wanted, f"{model.name}, {template.name}: {done.stderr}"
    for row in refused:
        done, _ = tokenize(model, template, [row], folder)
        assert done.returncode in (2, 5), f"{model.name}, {template.name}: takes {row}"
    return len(taken), len(refused)


def main():
    taken = refused = 0
    texts = {name: text for name, (text, _, _) in MAKERS.items()}
    for name in TEMPLATES:
        texts |= {f"{name}_marked": marked(name), f"{name}_plain": plain(name)}
    with tempfile.TemporaryDirectory() as work:
        models = [make_model(Path(work, base), base) for base in ("gpt2", "qwen2", "llama2")]
        for name, text in texts.items():
            template = Path(work, f"{name}.jinja")
            template.write_text(text, "utf-8")
            for model in models:
                counts = compare(model, template, Path(work))
                taken, refused = taken + counts[0], refused + counts[1]
    print(f"{taken} conversations equal, {refused} refused")
    assert taken > 500


main()
