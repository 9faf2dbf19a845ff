#!/usr/bin/env python3
"""Tests how rows become conversations: forms_test.py PACKAGE_FOLDER ROWS

ROWS is a file of rows with the conversation or the error that each gives. The tests of the program
read the same file. This needs python3 alone.
"""

import json
import sys
import unittest

PACKAGE, ROWS = sys.argv[1:3]
del sys.argv[1:3]
sys.path.insert(0, PACKAGE)

from terrace.data.conversation import KEYS, Conversation, read_conversation  # noqa: E402
from terrace.data.errors import DataError  # noqa: E402
from terrace.data.shown import check_shown, missing_part  # noqa: E402
from terrace.data.thoughts import answer_in_content, with_thoughts_named  # noqa: E402


def found_for(row):
    """Returns what the file says of a row, from the conversation that is read."""
    found = {"row": row}
    try:
        conversation = read_conversation(row, "ROW")
    except DataError as problem:
        return {**found, "error": f"{problem}; {problem.remedy}"}
    found["messages"] = conversation.messages
    if conversation.tools is not None:
        found["tools"] = conversation.tools
    if conversation.variables:
        found["variables"] = conversation.variables
    found["trained"] = conversation.assistant_turns()
    if conversation.thoughts:
        found["thoughts"] = [list(thought) for thought in conversation.thoughts]
    return found


class Rows(unittest.TestCase):
    def test_rows_are_read_as_in_the_program(self):
        with open(ROWS, encoding="utf-8") as file:
            lines = file.read().splitlines()
        for line in lines:
            # Texts are compared: equal objects may differ in the order of their keys.
            found = found_for(json.loads(line)["row"])
            self.assertEqual(json.dumps(found, ensure_ascii=False), line)
        self.assertGreater(len(lines), 100)

    def test_keys_with_a_meaning_are_read_from_parquet(self):
        for key in ("messages", "conversations", "instruction", "history", "system", "tools",
                    "functions", "rejected", "loss_mask", "input_ids", "context"):
            self.assertIn(key, KEYS)


class Thoughts(unittest.TestCase):
    def renamed(self, message, template):
        return with_thoughts_named([message], template)[0]

    def test_are_copied_under_the_key_that_a_template_reads(self):
        message = {"role": "assistant", "thinking": "t"}
        copied = {**message, "reasoning_content": "t"}
        for template, expected in [
            ("{{ m.reasoning_content }}", copied),
            ("{{ m['reasoning_content'] }}{{ enable_thinking }}", copied),
            ('{{ m.get("reasoning_content") }} thinking', copied),
            ("{{ m.reasoning_content or m.thinking }}", message),
            ("reasoning_content {{ m.reasoning_contents }}", message),
            ("{{ m.reasoning }}", {**message, "reasoning": "t"}),
        ]:
            with self.subTest(template):
                self.assertEqual(self.renamed(message, template), expected)

    def test_are_not_copied_where_they_are_not_one_of_the_assistant(self):
        for message in ({"role": "user", "thinking": "t"}, {"role": "assistant", "content": "a"},
                        {"role": "assistant", "thinking": "t", "reasoning": "u"}):
            self.assertEqual(self.renamed(message, "{{ m.reasoning_content }}"), message)

    def test_an_answer_is_the_content_behind_them(self):
        for content, answer in [("<think>\nt\n</think>\n\na b\n", "a b"), (" a", "a"),
                                ([{"text": "a"}], ""), (None, "")]:
            self.assertEqual(answer_in_content({"content": content}), answer)


class Shown(unittest.TestCase):
    def refused(self, text, says, turns=(2,), **more):
        messages = [{"role": "system", "content": "be brief\n"}, {"role": "user", "content": "q"},
                    {"role": "assistant", "content": "<think>t1</think> a1 "},
                    {"role": "assistant", "content": "a2", "thinking": "t2"}]
        thoughts = [(2, "content", "t1"), (3, "thinking", "t2")]
        conversation = Conversation(messages, thoughts=thoughts, **more)
        if not says:
            check_shown(conversation, turns, text, "x")
            return
        with self.assertRaises(DataError) as refused:
            check_shown(conversation, turns, text, "x")
        self.assertIn(says, str(refused.exception))

    def test_a_text_has_what_is_trained_on(self):
        text = "be brief q t1 a1"
        self.refused(text, "")
        self.refused("q t1 a1", "x: message 0: the chat template does not show the system message")
        self.refused("be brief q t1", "message 2: the chat template does not show its content")
        self.refused("be brief q a1", 'message 2: the chat template does not show the thought in '
                     '"content"')
        self.refused(text, "message 3: the chat template does not show its content", (2, 3))
        self.refused(text + "a2", 'message 3: the chat template does not show the thought in '
                     '"thinking"', (2, 3))
        self.refused(text + "a2t2", "", (2, 3))

    def test_switches_in_a_system_message_need_not_be_shown(self):
        for content, text, says in [("/no_think", "", ""), ("a /think\nb", "a b", ""),
                                    ("a /think b", "a", "the system message")]:
            conversation = Conversation([{"role": "system", "content": content}])
            with self.subTest(content):
                if says:
                    self.assertRaisesRegex(DataError, says, check_shown, conversation, [], text, "x")
                else:
                    check_shown(conversation, [], text, "x")

    def test_a_text_has_the_calls(self):
        calls = [{"id": "c1", "function": {"name": "tide"}}, {"name": "moon"}]
        message = {"role": "assistant", "content": "a", "tool_calls": calls}
        self.assertIsNone(missing_part(message, "a tide moon"))
        self.assertIsNone(missing_part(message, "a c1 moon"))
        self.assertEqual(missing_part(message, "a moon"), 'its call of "tide"')
        self.assertEqual(missing_part(message, "a tide"), 'its call of "moon"')
        self.assertEqual(missing_part(message, "tide moon"), "its content as it is")
        self.assertIsNone(missing_part({**message, "tool_calls": ["call", 3]}, "a"))

    def test_a_text_has_the_tools(self):
        text = "be brief q t1 a1"
        for tool in ({"type": "function", "function": {"name": "tide"}}, {"name": "tide"}):
            self.refused(text, 'does not show the tool "tide"', tools=[tool])
            self.refused(text + '"tide"', "", tools=[tool])
        self.refused(text, "", tools=[{"description": "d"}])


if __name__ == "__main__":
    unittest.main()
