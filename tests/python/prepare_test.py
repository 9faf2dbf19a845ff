#!/usr/bin/env python3
"""Prepares conversations and compares them with transformers: prepare_test.py TERRACE PACKAGE

For templates that mark generated text, ids and masks must equal those that apply_chat_template makes.
The same templates without their marks must give the same. Then the program trains on the prepared
rows, and goes on from the prompt of a conversation.
"""

import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow
import pyarrow.parquet
import transformers
import zstandard

from chat_templates import TEMPLATES, marked, plain

TERRACE, PACKAGE = sys.argv[1:3]
TOKENIZERS = Path(__file__).parents[1] / "tokenizer" / "golden"
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|start|>", "<|end|>", "<|eot|>", "<s>", "</s>"]
WORDS = ["tide", "rye", "  two  spaces", "it's\n", "\n\nlines\r\n", "é", "日本", "😀", "<think>", "{{ x }}",
         "<|im_end|> in the text", "12345", "\t", "end"]
CALL = {"type": "function", "function": {"name": "tide", "arguments": {"at": "日本", "n": 3}}}
TOOLS = [{"type": "function", "function": {"name": "tide", "parameters": {"default": None}}}]


def run(*arguments, code=0):
    environment = {**os.environ, "PYTHONPATH": PACKAGE, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([str(one) for one in arguments], capture_output=True, env=environment)
    if done.returncode != code:
        raise AssertionError(f"{arguments} ended with {done.returncode}: {done.stderr.decode()}")
    return done


def prepare(*arguments, code=0):
    return run(sys.executable, "-m", "terrace.data", "prepare", *arguments, code=code)


def make_model(folder, base, template):
    """Writes a model's directory without its weights."""
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(TOKENIZERS / base / "tokenizer.json"), bos_token="<s>", eos_token="</s>",
        additional_special_tokens=SPECIAL[:5])
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32,
              "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
              "num_key_value_heads": 2, "vocab_size": len(tokenizer),
              "max_position_embeddings": 64, "tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(config))
    return tokenizer


def conversations(seed):
    """Returns conversations whose turns are words drawn at random, and hard to tell apart."""
    draw = random.Random(seed)
    rows = []
    for _ in range(60):
        messages = []
        for _ in range(draw.randint(1, 3)):
            for role in ("user", "assistant"):
                text = " ".join(draw.choice(WORDS) for _ in range(draw.randint(0, 4)))
                messages.append({"role": role, "content": text})
        rows.append({"messages": messages})
    return rows


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return path


def read_lines(path):
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def expected_rows(tokenizer, rows, template):
    found = []
    for row in rows:
        chat = tokenizer.apply_chat_template(
            row["messages"], tools=row.get("tools"), chat_template=template, return_dict=True,
            return_assistant_tokens_mask=True)
        found.append({"input_ids": chat["input_ids"], "loss_mask": chat["assistant_masks"]})
    return found


def expect_rows(name, found, expected):
    if len(found) != len(expected):
        raise AssertionError(f"{name}: {len(found)} rows, and {len(expected)} are right")
    for i, (one, other) in enumerate(zip(found, expected)):
        if one != other:
            raise AssertionError(f"{name}: row {i} is\n{one}\nand should be\n{other}")


def check_templates(folder):
    for base in ("qwen2", "llama3"):
        for name in TEMPLATES:
            model = folder / f"{base}-{name}"
            tokenizer = make_model(model, base, marked(name))
            rows = conversations(name)
            if name == "chatml":
                rows.append({"messages": [{"role": "user", "content": "when?"},
                                          {"role": "assistant", "content": "", "tool_calls": [CALL]},
                                          {"role": "tool", "content": "at noon"},
                                          {"role": "assistant", "content": "At noon."}],
                             "tools": TOOLS})
            source = write_lines(folder / "in.jsonl", rows)
            expected = expected_rows(tokenizer, rows, marked(name))
            output = folder / "out.jsonl"
            prepare(source, "--model", model, "--output", output)
            expect_rows(f"{base} {name} marked", read_lines(output), expected)
            unmarked = folder / "plain.jinja"
            unmarked.write_text(plain(name), "utf-8")
            prepare(source, "--model", model, "--chat-template", unmarked, "--output", output)
            expect_rows(f"{base} {name}", read_lines(output), expected)
            check_rendering(tokenizer, rows, plain(name))


def check_rendering(tokenizer, rows, template):
    sys.path.insert(0, PACKAGE)
    from terrace.data.conversation import read_conversation
    from terrace.data.templates import Template
    ours = Template(template, "template", {**tokenizer.special_tokens_map})
    for row in rows:
        conversation = read_conversation(row, "row")
        for is_prompt in (False, True):
            wanted = tokenizer.apply_chat_template(
                row["messages"], tools=row.get("tools"), chat_template=template, tokenize=False,
                add_generation_prompt=is_prompt)
            text = ours.render(conversation, conversation.messages, "row", is_prompt)[0]
            if text != wanted:
                raise AssertionError(f"rendered {text!r}, and transformers {wanted!r}")


def check_loss_on(folder):
    rows = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                          {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]}]
    source = write_lines(folder / "in.jsonl", rows)
    model = folder / "qwen2-chatml"
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    output = folder / "out.jsonl"

    def trained(*flags):
        prepare(source, "--model", model, "--output", output, *flags)
        row = read_lines(output)[0]
        return tokenizer.decode([i for i, m in zip(row["input_ids"], row["loss_mask"]) if m])

    for template in ([], ["--chat-template", folder / "plain-chatml.jinja"]):
        (folder / "plain-chatml.jinja").write_text(plain("chatml"), "utf-8")
        assert trained(*template) == "b<|im_end|>d<|im_end|>", trained(*template)
        assert trained("--loss-on", "last", *template) == "d<|im_end|>"
        whole = tokenizer.apply_chat_template(rows[0]["messages"], tokenize=False)
        assert trained("--loss-on", "all", *template) == whole
    rows[0]["messages"][1]["weight"] = 0
    write_lines(source, rows)
    assert trained() == "d<|im_end|>"
    write_lines(source, [{"messages": rows[0]["messages"][:1]}])
    for loss_on, code in (("assistant", 2), ("last", 2), ("all", 0)):
        prepare(source, "--model", model, "--output", output, "--loss-on", loss_on, code=code)


def check_formats(folder):
    """Every kind of file makes the same lines. A damaged file makes none."""
    rows = conversations(5)
    model = folder / "qwen2-chatml"
    source = write_lines(folder / "in.jsonl", rows)
    text = source.read_bytes()
    output = folder / "out.jsonl"
    prepare(source, "--model", model, "--output", output)
    expected = output.read_bytes()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "in.parquet")
    (folder / "in.jsonl.gz").write_bytes(gzip.compress(text))
    half = len(text) // 2
    (folder / "in.jsonl.zst").write_bytes(zstandard.compress(text[:half]) +
                                          zstandard.compress(text[half:]))
    (folder / "crlf.jsonl").write_bytes(text.replace(b"\n", b"\r\n"))
    (folder / "array.json").write_text(json.dumps(rows, indent=1), "utf-8")
    (folder / "array.json.gz").write_bytes(gzip.compress(json.dumps(rows).encode()))
    before = sorted(os.listdir(folder))
    for name in ("in.parquet", "in.jsonl.gz", "in.jsonl.zst", "crlf.jsonl", "array.json",
                 "array.json.gz"):
        prepare(folder / name, "--model", model, "--output", output)
        if output.read_bytes() != expected:
            raise AssertionError(f"{name} makes other lines")
        whole = (folder / name).read_bytes()
        if name != "crlf.jsonl":
            for cut in (len(whole) - 5, len(whole) // 2, 10):
                (folder / name).write_bytes(whole[:cut])
                done = prepare(folder / name, "--model", model, "--output", output, code=5)
                if name.encode() not in done.stderr or b"Traceback" in done.stderr:
                    raise AssertionError(f"{name} cut to {cut}: {done.stderr.decode()}")
                if output.read_bytes() != expected:
                    raise AssertionError(f"{name}, cut, has changed what was there")
            (folder / name).write_bytes(whole)
    if sorted(os.listdir(folder)) != before:
        raise AssertionError(f"left behind: {set(os.listdir(folder)) - set(before)}")
    for ending, unpack in (("gz", gzip.decompress), ("zst", unpack_frames)):
        packed = folder / f"out.jsonl.{ending}"
        prepare(source, "--model", model, "--output", packed)
        if unpack(packed.read_bytes()) != expected:
            raise AssertionError(f"{packed} has other lines")
    pyarrow.parquet.write_table(pyarrow.table({"body": ["a", "b"]}), folder / "texts.parquet")
    prepare(folder / "texts.parquet", "--text-column", "body", "--output", output)
    assert read_lines(output) == [{"text": "a"}, {"text": "b"}]
    done = prepare(folder / "texts.parquet", "--model", model, "--output", output, code=2)
    assert b"columns body" in done.stderr, done.stderr


def check_forms(folder):
    """A conversation makes the same line in every form, and from Parquet as from JSON."""
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "add\n1 2"},
                {"role": "assistant", "content": "3"}]
    beside = {"system": "be brief"}
    output = folder / "forms-out.jsonl"
    found = []
    for row in ({"messages": messages}, {"messages": messages[1:], **beside},
                {"conversations": [{"from": "human", "value": "add\n1 2"},
                                   {"from": "gpt", "value": "3", "weight": 1}], **beside},
                {"instruction": "add", "input": "1 2", "output": "3", **beside},
                {"question": "add\n1 2", "answer": "3", **beside},
                {"prompt": messages[:2], "completion": messages[2:]}):
        source = write_lines(folder / "forms.jsonl", [row])
        table = folder / "forms.parquet"
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{**row, "id": 1}]), table)
        for file in (source, table):
            prepare(file, "--model", folder / "qwen2-chatml", "--output", output)
            found.append(output.read_bytes())
    if len(set(found)) != 1:
        raise AssertionError(f"the forms make different lines: {found}")


def unpack_frames(data):
    return zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()


def check_refusals(folder):
    model = folder / "qwen2-brackets"
    output = folder / "refused.jsonl"
    source = folder / "in.jsonl"
    write_lines(source, [{"messages": [{"role": "assistant", "content": "a"}]}])
    done = prepare(source, "--model", model, "--output", output, code=2)
    assert f"{source}:1: the chat template".encode() in done.stderr, done.stderr
    assert b"take turns" in done.stderr, done.stderr
    in_macro = ("{% macro turn(m) %}<{{ m.role }}>{% generation %}{{ m.content }}{% endgeneration %}"
                "{% endmacro %}{% for m in messages %}{{ turn(m) }}{% endfor %}")
    for text, says in (("{% for %}", b"line 1"), (in_macro, b"moves what it marks"),
                       ("{{ ''.__class__ }}{{ messages.__class__.x }}", b"refuses")):
        template = folder / "bad.jinja"
        template.write_text(text)
        write_lines(source, conversations(1))
        code = 5 if says == b"line 1" else 2
        done = prepare(source, "--chat-template", template, "--output", output, code=code)
        assert says in done.stderr, done.stderr
    assert not output.exists()


def check_program(folder):
    """The program trains on prepared lines and on the conversations themselves with equal losses.

    Then it samples from the prompt of a conversation.
    """
    model = folder / "llama3-headers"
    source = write_lines(folder / "in.jsonl", conversations(9))
    output = folder / "out.jsonl"
    prepare(source, "--model", model, "--output", output)
    losses = []
    for data, run_directory in ((output, folder / "run"), (source, folder / "direct")):
        trained = run(TERRACE, "train", "--model", model, "--init", "random", "--data", data,
                      "--sequence-length", 64, "--max-steps", 2, "--run-dir", run_directory)
        assert b'trained on      "' in trained.stdout, trained.stdout
        losses.append([row["loss"] for row in read_lines(run_directory / "metrics.jsonl")])
    assert losses[0] == losses[1], losses
    chat = run(sys.executable, "-m", "terrace.data", "chat", "--model", model, "--system", "rye",
               "when?").stdout.decode()
    wanted = transformers.AutoTokenizer.from_pretrained(model).apply_chat_template(
        [{"role": "system", "content": "rye"}, {"role": "user", "content": "when?"}],
        tokenize=False, add_generation_prompt=True)
    # The program itself puts the token that begins a text before a prompt.
    begins = json.loads((model / "tokenizer.json").read_text())["post_processor"] is not None
    assert chat == wanted or begins and wanted.endswith(chat), (chat, wanted)
    run(TERRACE, "sample", "--model", folder / "run" / "final", "--prompt", chat,
        "--max-new-tokens", 2)


def check_example():
    """The example's conversations give the same rows as its prompts and completions."""
    example = Path(PACKAGE).parent / "examples" / "finetune"
    with tempfile.TemporaryDirectory() as name:
        output = Path(name, "out.jsonl")
        prepare(example / "conversations.jsonl", "--chat-template",
                example / "chat_template.jinja", "--output", output)
        expected = []
        for row in read_lines(example / "turns.jsonl"):
            prompt, completion = row["prompt"].encode(), row["completion"].encode()
            expected.append({"input_ids": list(prompt + completion),
                             "loss_mask": [0] * len(prompt) + [1] * len(completion)})
        expect_rows("example", read_lines(output), expected)


def main():
    check_example()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        check_templates(folder)
        check_loss_on(folder)
        check_formats(folder)
        check_forms(folder)
        check_refusals(folder)
        check_program(folder)


if __name__ == "__main__":
    main()
