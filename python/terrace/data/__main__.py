"""python -m terrace.data prepare|chat"""

import argparse
import sys

from .chat import conversation_for, print_prompt, prompt_of
from .errors import DataError
from .prepare import Preparer, prepare, tell


def arguments():
    parser = argparse.ArgumentParser(prog="python -m terrace.data",
                                     description="Conversations for terrace train and sample.")
    commands = parser.add_subparsers(dest="command", required=True)

    one = commands.add_parser(
        "prepare", help="conversations to JSON lines that terrace train reads",
        description="Renders conversations with the model's chat template, and writes one line for "
                    "each: its ids, and a mask of the ids that are trained on.")
    one.add_argument("paths", nargs="+", metavar="PATH",
                     help="JSON lines (.gz and .zst too) or Parquet with conversations")
    one.add_argument("--output", required=True, metavar="FILE",
                     help="written whole or not at all; .jsonl, .jsonl.gz or .jsonl.zst")
    one.add_argument("--model", metavar="DIR",
                     help="its tokenizer and chat template; without a tokenizer the ids are bytes")
    one.add_argument("--chat-template", metavar="FILE", help="in place of the model's")
    one.add_argument("--loss-on", choices=["assistant", "last", "all"], default="assistant",
                     help="what is trained on: the assistant's turns, its last one, or all")
    one.add_argument("--text-column", metavar="NAME",
                     help="takes texts from this column or key, and no conversations")

    two = commands.add_parser(
        "chat", help="prints the prompt of a conversation",
        description="Prints what terrace sample --prompt goes on from, without an end of a line.")
    two.add_argument("texts", nargs="*", metavar="TEXT",
                     help="what the user says; of several the assistant says each second one")
    two.add_argument("--model", required=True, metavar="DIR", help="its chat template")
    two.add_argument("--chat-template", metavar="FILE", help="in place of the model's")
    two.add_argument("--system", metavar="TEXT", help="what stands before the conversation")
    two.add_argument("--messages", metavar="FILE", help="the first conversation of this file")
    return parser.parse_args()


def run(flags):
    if flags.command == "chat":
        conversation, place = conversation_for(flags.texts, flags.system, flags.messages)
        print_prompt(prompt_of(flags.model, flags.chat_template, conversation, place))
        return
    preparer = None
    if flags.text_column is None:
        preparer = Preparer(flags.model, flags.chat_template, flags.loss_on)
    counts = prepare(flags.paths, flags.output, preparer, flags.text_column)
    tell(counts, flags.output, flags.text_column)


def main():
    flags = arguments()
    try:
        run(flags)
    except DataError as problem:
        print(f"terrace.data: error: {problem}; {problem.remedy}", file=sys.stderr)
        return problem.code
    except FileNotFoundError as problem:
        print(f"terrace.data: error: {problem.filename}: not found; check the path", file=sys.stderr)
        return 2
    except OSError as problem:
        told = f"{problem.filename}: {problem.strerror}" if problem.filename else problem.strerror
        print(f"terrace.data: error: {told or problem}; look at the file and its drive", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
