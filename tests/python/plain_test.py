#!/usr/bin/env python3
"""Tests the parts of the package terrace that need no other package: plain_test.py PACKAGE_FOLDER

Templates are functions here; tests with jinja2 are in prepare_test.py.
"""

import gzip
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PACKAGE = sys.argv.pop(1)
sys.path.insert(0, PACKAGE)

from terrace.data.chat import prompt_of  # noqa: E402
from terrace.data.conversation import Conversation  # noqa: E402
from terrace.data.errors import DataError  # noqa: E402
from terrace.data.output import LinesWriter, check_output  # noqa: E402
from terrace.data.rows import LONGEST_LINE, rows_of  # noqa: E402
from terrace.data.spans import TurnFinder, mask_of, parts_within  # noqa: E402
from terrace.data.templates import template_of_model  # noqa: E402
from terrace.data.tokens import Bytes  # noqa: E402


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def refused(self, code, *says):
        """Expects a DataError that has this exit code, and whose message has all of these texts."""
        test = self

        class Refused:
            def __enter__(self):
                return self

            def __exit__(self, kind, problem, trace):
                test.assertIs(kind, DataError, problem)
                test.assertEqual(problem.code, code)
                for word in says:
                    test.assertIn(word, str(problem))
                test.assertTrue(problem.remedy)
                return True

        return Refused()

    def file(self, name, content):
        path = self.folder / name
        path.write_bytes(content)
        return path


def chatml(messages, is_prompt):
    text = "".join(f"<{m['role']}>\n{(m.get('content') or '').strip()}<end>\n" for m in messages)
    return text + ("<assistant>\n" if is_prompt else "")


def thinking(messages, is_prompt):
    """Renders a thought in the last turn only, as some templates do."""
    text = ""
    for i, message in enumerate(messages):
        thought = "<think>" if message["role"] == "assistant" and i + 1 == len(messages) else ""
        text += f"<{message['role']}>\n{thought}{message['content']}<end>\n"
    return text + ("<assistant>\n" if is_prompt else "")


class Spans(Case):
    def turns(self, render, messages, *more_ends):
        text = render(messages, False)
        finder = TurnFinder(render, messages, text, {"<end>", *more_ends})
        spans = [finder.span(i, "x") for i, m in enumerate(messages) if m["role"] == "assistant"]
        return [text[begin:end] for begin, end in spans]

    def test_turns_end_with_their_token(self):
        messages = [user("a"), assistant(" b "), user("b"), assistant("")]
        self.assertEqual(self.turns(chatml, messages), ["b<end>", "<end>"])

    def test_turns_that_are_rendered_otherwise_when_they_are_last(self):
        messages = [user("a"), assistant("b"), user("b"), assistant("b")]
        self.assertEqual(self.turns(thinking, messages), ["b<end>", "<think>b<end>"])

    def test_turns_whose_prompt_is_not_the_beginning_of_the_text(self):
        def counting(messages, is_prompt):
            return f"{len(messages)} messages\n" + chatml(messages, is_prompt)

        messages = [user("a"), assistant("b"), user("b"), assistant("")]
        self.assertEqual(self.turns(counting, messages), ["b<end>", "<end>"])

    def test_prompts_that_begin_a_thought(self):
        def thoughtful(messages, is_prompt):
            return chatml(messages, is_prompt) + ("<think>\n" if is_prompt else "")

        messages = [user("a"), assistant("<"), user("b"), assistant("b")]
        self.assertEqual(self.turns(thoughtful, messages), ["<<end>", "b<end>"])

    def test_a_token_that_ends_the_text_is_not_in_the_turn(self):
        def ended(messages, is_prompt):
            return chatml(messages, is_prompt) + ("" if is_prompt else "<stop>")

        messages = [user("a"), assistant("b<stop>"), user("b"), assistant("b")]
        self.assertEqual(self.turns(ended, messages, "<stop>"), ["b<stop><end>", "b<end>"])

    def test_another_token_at_the_end_of_the_last_turn_is_not_a_token_of_the_text(self):
        def returning(messages, is_prompt):
            text = chatml(messages, is_prompt)
            return text if is_prompt else text.removesuffix("<end>\n") + "<stop>"

        messages = [user("a"), assistant("b"), user("b"), assistant("b")]
        with self.refused(2, "message 1", "the end of its turn"):
            self.turns(returning, messages, "<stop>")

    def test_a_header_that_is_not_the_one_of_the_prompt_is_refused(self):
        def headed(messages, is_prompt):
            text = chatml(messages, False)
            return text + ("<model>\n" if is_prompt else "")

        with self.refused(2, "message 1", "the text before it differs"):
            self.turns(headed, [user("a"), assistant("b")])

    def test_a_turn_without_its_content_is_refused(self):
        def silent(messages, is_prompt):
            return chatml([{**m, "content": m["content"].replace("b", "")} for m in messages],
                          is_prompt)

        with self.refused(2, "message 1", "found for it does not show its content"):
            self.turns(silent, [user("a"), assistant("b"), user("c"), assistant("d")])

    def test_a_turn_without_an_end_of_its_own_is_refused(self):
        def numbered(messages, is_prompt):
            text = "".join(f"{m['role']}:{m['content'] if len(messages) == i + 1 else i};"
                           for i, m in enumerate(messages))
            return text + ("assistant:" if is_prompt else "")

        with self.refused(2, "message 0", "the end of its turn"):
            self.turns(numbered, [assistant("b"), user("a")])

    def test_masks(self):
        offsets = [(0, 2), (2, 4), (4, 4), (4, 7), (7, 9)]
        self.assertEqual(mask_of(offsets, [(3, 5), (8, 9)], 5), [0, 1, 1, 1, 1])
        self.assertEqual(mask_of(offsets, [(7, 9)], 5), [0, 0, 0, 0, 1])
        self.assertEqual(mask_of(offsets, [], 5), [0] * 5)
        self.assertEqual(parts_within([(0, 4), (6, 9)], [(2, 7)]), [(2, 4), (6, 7)])

    def test_bytes(self):
        ids, offsets = Bytes().encode("aé")
        self.assertEqual(bytes(ids), "aé".encode())
        self.assertEqual(mask_of(offsets, [(1, 2)], 3), [0, 1, 1])


class Rows(Case):
    def test_lines(self):
        text = b'\xef\xbb\xbf{"a":1}\r\n\r\n \n{"a":"\xc3\xa9"}'
        expected = [("{}:1", {"a": 1}), ("{}:4", {"a": "é"})]
        for name, content in [("a.jsonl", text), ("a.jsonl.gz", gzip.compress(text)),
                              ("two.gz", gzip.compress(text[:9]) + gzip.compress(text[9:]))]:
            path = self.file(name, content)
            self.assertEqual(list(rows_of(path, [])),
                             [(place.format(path), row) for place, row in expected])

    def test_arrays(self):
        rows = [{"a": "é[{,"}, {"b": [1, {"c": "x" * 200000}]}, {}]
        for text in (json.dumps(rows), json.dumps(rows, ensure_ascii=False, indent=2) + "\n",
                     "\ufeff \n" + json.dumps(rows)):
            for name, content in [("a.json", text.encode()), ("a.gz", gzip.compress(text.encode()))]:
                path = self.file(name, content)
                found = list(rows_of(path, []))
                self.assertEqual([row for _, row in found], rows)
                self.assertEqual(found[1][0], f"{path}: object 2 (jq '.[1]')")
        self.assertEqual(list(rows_of(self.file("a.json", b" [ ]\n"), [])), [])

    def test_bad_arrays_are_named(self):
        for text, says in [
            (b"[1]", "object 1 (jq '.[0]'): not a JSON object: it is a int"),
            (b'[{"a":1},', "object 2 (jq '.[1]'): not a JSON object"),
            (b'[{"a":1},]', "object 2 (jq '.[1]'): not a JSON object"),
            (b'[{"a":1}', "object 2 (jq '.[1]'): neither a comma"),
            (b'[{"a":1} {"a":2}]', "object 2 (jq '.[1]'): neither a comma"),
            (b'[{"a":1}] x', "more text behind its JSON array"),
            (b'[{"a":1},{"a":"\xff"}]', "is byte 0xff, which is not UTF-8"),
            (b'[{"a":"\xe6"', "is byte 0xe6, which is not UTF-8"),
            (b'[{"a":NaN}]', "NaN is no JSON"),
            (b'[{"a":"\\ud83d"}]', "half of a surrogate pair"),
        ]:
            with self.subTest(text), self.refused(5, "a.json: ", says):
                list(rows_of(self.file("a.json", text), []))

    def test_an_object_of_an_array_is_bounded(self):
        text = b'[{"a":"' + b"x" * (3 * LONGEST_LINE) + b'"}]'
        with self.refused(5, "object 1", "not a JSON object within"):
            list(rows_of(self.file("a.json", text), []))

    def test_bad_lines_are_named(self):
        good = b'{"a":1}\n'
        for bad, says in [(b"{", "not a JSON object"), (b"[1]", "it is a list"),
                          (b'{"a":NaN}', "NaN is no JSON"), (b'{"a":"\xff"}', "byte 0xff at 6"),
                          (b'{"a":"\\ud83d"}', "half of a surrogate pair"),
                          (b"[" * 100000, "not a JSON object")]:
            with self.subTest(bad[:9]), self.refused(5, ":2: ", says):
                list(rows_of(self.file("a.jsonl", good + bad), []))

    def test_damaged_files_are_named(self):
        whole = gzip.compress(json.dumps({"a": os.urandom(3000).hex()}).encode())
        flipped = bytearray(whole)
        flipped[len(whole) // 2] ^= 0x55
        for content in (whole[:-9], whole[:len(whole) // 2], bytes(flipped), whole + b"more"):
            with self.refused(5, "a.jsonl.gz"):
                list(rows_of(self.file("a.jsonl.gz", content), []))

    def test_a_line_is_bounded(self):
        path = self.folder / "a.jsonl"
        with open(path, "wb") as file:
            file.write(b'{"a":1}\n"')
            for _ in range((LONGEST_LINE >> 20) + 1):
                file.write(b"x" * (1 << 20))
        with self.refused(5, "a.jsonl:2: the line is longer"):
            list(rows_of(path, []))


class Output(Case):
    def test_is_there_whole_or_not_at_all(self):
        path = self.file("o.jsonl", b"old\n")
        with self.assertRaises(KeyError), LinesWriter(path) as lines:
            lines.write({"a": 1}, "x")
            raise KeyError
        self.assertEqual(path.read_bytes(), b"old\n")
        with LinesWriter(path) as lines:
            lines.write({"a": "é"}, "x")
        self.assertEqual(path.read_bytes(), '{"a":"é"}\n'.encode())
        with LinesWriter(self.folder / "o.jsonl.gz") as lines:
            lines.write({"a": 1}, "x")
        self.assertEqual(gzip.decompress((self.folder / "o.jsonl.gz").read_bytes()), b'{"a":1}\n')
        self.assertEqual(sorted(os.listdir(self.folder)), ["o.jsonl", "o.jsonl.gz"])

    def test_refuses_lines_that_the_program_does_not_read(self):
        with self.refused(2, "x:3", "makes a line of"), LinesWriter(self.folder / "o.jsonl") as lines:
            lines.write({"a": "a" * LONGEST_LINE}, "x:3")
        self.assertEqual(os.listdir(self.folder), [])

    def test_refuses_names(self):
        text = self.file("a.jsonl", b"{}")
        os.symlink(text, self.folder / "link.jsonl")
        for name, says in [("a.jsonl", "would replace"), ("link.jsonl", "would replace"),
                           ("a.txt", "by their name"), ("none/a.jsonl", "no directory")]:
            with self.subTest(name), self.refused(2, says):
                check_output(self.folder / name, [text])


class Prompts(Case):
    def test_an_answer_is_not_gone_on_from(self):
        with self.refused(2, "x.jsonl:1 ends with what the assistant says"):
            prompt_of(None, None, Conversation([user("a"), assistant("b")]), "x.jsonl:1")

    def test_an_adapter_names_its_base(self):
        config = json.dumps({"base_model_name_or_path": "the/base"})
        self.file("adapter_config.json", config.encode())
        with self.assertRaises(DataError) as refused:
            template_of_model(self.folder)
        self.assertIn("--model the/base", refused.exception.remedy)


class Command(Case):
    def run_command(self, *arguments):
        environment = {**os.environ, "PYTHONPATH": PACKAGE, "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run([sys.executable, "-m", "terrace.data", *map(str, arguments)],
                              env=environment, capture_output=True, text=True)

    def test_texts(self):
        path = self.file("a.jsonl", b'{"body":"x","more":1}\n')
        output = self.folder / "o.jsonl"
        done = self.run_command("prepare", path, "--text-column", "body", "--output", output)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(output.read_text(), '{"text":"x"}\n')
        done = self.run_command("prepare", path, "--text-column", "none", "--output", output)
        self.assertEqual(done.returncode, 2)
        self.assertIn('a.jsonl:1: key "none" is missing', done.stderr)

    def test_what_is_missing_is_named(self):
        path = self.file("a.jsonl", b'{"messages":[{"role":"user","content":"x"}]}\n')
        output = self.folder / "o.jsonl"
        for arguments, says in [((path, "--model", self.folder / "no"), "no such directory"),
                                ((path, "--model", self.folder), "no chat template"),
                                ((path,), "no chat template is named"),
                                ((self.folder / "no.jsonl", "--model", self.folder), "not found"),
                                ((self.folder, "--text-column", "a"), "it is a directory; name the files in it"),
                                ((path, "--chat-template", self.folder), "--chat-template")]:
            done = self.run_command("prepare", *arguments, "--output", output)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(says, done.stderr)
            self.assertNotIn("Traceback", done.stderr)
            self.assertNotIn("Errno", done.stderr)
        self.assertEqual(os.listdir(self.folder), ["a.jsonl"])
        self.file("tokenizer.model", b"")
        done = self.run_command("prepare", path, "--model", self.folder, "--output", output)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("tokenizer.model alone", done.stderr)

    def test_importing_needs_nothing(self):
        code = ("import sys, terrace, terrace.data, terrace.data.prepare, terrace.data.chat; "
                "print({'torch', 'transformers', 'jinja2', 'pyarrow'} & set(sys.modules))")
        done = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True,
                              env={**os.environ, "PYTHONPATH": PACKAGE})
        self.assertEqual((done.stdout, done.stderr), ("set()\n", ""))


class Version(Case):
    def told(self, code, **more):
        environment = {**os.environ, "PYTHONPATH": PACKAGE, **more}
        return subprocess.run([sys.executable, "-B", "-c", f"import terrace; print({code})"], text=True,
                              capture_output=True, cwd=self.folder, env=environment)

    def test_without_the_library_there_is_none_and_the_reason_is_told(self):
        absent = {"TERRACE_LIBRARY": str(self.folder / "none.so")}
        self.assertEqual(self.told("getattr(terrace, '__version__', None)", **absent).stdout, "None\n")
        refused = self.told("terrace.__version__", **absent)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("TERRACE_LIBRARY", refused.stderr)
        self.assertIn("has no attribute 'other'", self.told("terrace.other").stderr)


if __name__ == "__main__":
    unittest.main()
