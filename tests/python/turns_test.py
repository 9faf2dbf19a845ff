#!/usr/bin/env python3
"""Finds turns in makers' chat templates: turns_test.py PACKAGE_FOLDER. It needs jinja2."""

import sys
import unittest

from chat_templates import TEMPLATES, plain
from maker_templates import CONVERSATIONS, MAKERS, QUESTIONS, QWEN3

PACKAGE = sys.argv.pop(1)
sys.path.insert(0, PACKAGE)

from terrace.data.conversation import read_conversation  # noqa: E402
from terrace.data.errors import DataError  # noqa: E402
from terrace.data.shown import check_shown  # noqa: E402
from terrace.data.spans import TurnFinder  # noqa: E402
from terrace.data.templates import Template  # noqa: E402
from terrace.data.thoughts import with_thoughts_named  # noqa: E402


def turns_of(template, specials, row):
    """Returns the texts of the assistant's turns."""
    rendered = Template(template, "template", {"bos_token": "<s>", "eos_token": "</s>"})
    conversation = read_conversation(row, "x")
    messages = with_thoughts_named(conversation.messages, template)
    text = rendered.render(conversation, messages, "x")[0]
    check_shown(conversation, conversation.assistant_turns(), text, "x")
    finder = TurnFinder(lambda some, is_prompt: rendered.render(conversation, some, "x", is_prompt)[0],
                        messages, text, {"<s>", "</s>", *specials})
    spans = [finder.span(i, "x") for i in conversation.assistant_turns()]
    return [text[begin:end] for begin, end in spans]


class Makers(unittest.TestCase):
    def test_turns(self):
        for name, (template, specials, expected) in MAKERS.items():
            for kind, wanted in expected.items():
                with self.subTest(f"{name}: {kind}"):
                    if isinstance(wanted, list):
                        self.assertEqual(turns_of(template, specials, CONVERSATIONS[kind]), wanted)
                        continue
                    with self.assertRaises(DataError) as refused:
                        turns_of(template, specials, CONVERSATIONS[kind])
                    self.assertIn(wanted, str(refused.exception))

    def test_generation_prompts_with_an_empty_thought(self):
        row = {"messages": QUESTIONS, "chat_template_kwargs": {"enable_thinking": False}}
        for name, wanted in [("qwen3", ["a1<|im_end|>", "a2<|im_end|>"]),
                             ("smollm3", ["a1<|im_end|>", "a2<|im_end|>"])]:
            template, specials, _ = MAKERS[name]
            self.assertEqual(turns_of(template, specials, row), wanted)

    def test_texts_that_look_like_parts_of_the_template(self):
        """Contents repeat headers and ends, and texts of other turns."""
        for name, (template, specials, expected) in MAKERS.items():
            if not isinstance(expected["plain"], list):
                continue
            for words in (["a", "a", "a", "a"], ["<|", "<", "<think>", "<|Assistant|>"],
                          [*specials, "</s>", "[/INST] a", "User: q1\nFalcon: a", "Falcon:"][:4],
                          ["x", "</s>", "</s>\n</s>", f"x\n{(specials or ['</s>'])[0]}"]):
                row = {"messages": [{"role": one["role"], "content": word}
                                    for one, word in zip(QUESTIONS, words)]}
                wanted = [turn.replace(f"a{i + 1}", words[2 * i + 1])
                          for i, turn in enumerate(expected["plain"])]
                with self.subTest(f"{name}: {words}"):
                    self.assertEqual(turns_of(template, specials, row), wanted)

    def test_thoughts_are_in_the_turn_or_refused(self):
        answer = {"role": "assistant", "content": "a", "thinking": "why"}
        template, specials, _ = MAKERS["qwen3"]
        one = {"messages": [QUESTIONS[0], answer]}
        self.assertEqual(turns_of(template, specials, one), ["<think>\nwhy\n</think>\n\na<|im_end|>"])
        two = {"messages": [QUESTIONS[0], answer, *QUESTIONS[2:]]}
        with self.assertRaises(DataError) as refused:
            turns_of(template, specials, two)
        self.assertIn('does not show the thought in "thinking"', str(refused.exception))
        two["messages"][1] = {**answer, "train": False}
        self.assertEqual(turns_of(QWEN3, specials, two), ["<think>\n\n</think>\n\na2<|im_end|>"])
        inline = {"messages": [QUESTIONS[0], {"role": "assistant", "content": "<think>because</think>a"}]}
        with self.assertRaises(DataError) as refused:
            turns_of(MAKERS["r1_distill"][0], [], inline)
        self.assertIn('does not show the thought in "content"', str(refused.exception))

    def test_calls_that_a_template_leaves_out_are_refused(self):
        template, specials, _ = MAKERS["chatml"]
        row = {"messages": CONVERSATIONS["one_call"]["messages"]}
        with self.assertRaises(DataError) as refused:
            turns_of(template, specials, row)
        self.assertIn('does not show its call of "tide"', str(refused.exception))

    def test_templates_of_the_other_tests(self):
        for name in TEMPLATES:
            turns = turns_of(plain(name), ["<|im_end|>", "<|eot|>"], {"messages": QUESTIONS})
            self.assertEqual(len(turns), 2)
            for turn, content in zip(turns, ("a1", "a2")):
                self.assertRegex(turn, rf"^(<think>\n\n</think>\n\n| )?{content}<[|/]\w+[|]?>$")


if __name__ == "__main__":
    unittest.main()
