"""`percheron prepare` turns chats into a token shard. `tokenize`, which other programs start, is their tokenizer."""
from __future__ import annotations

import argparse
import datetime
import io
import json
import sys
import time
from pathlib import Path
from typing import Any

from .failure import Failure
from .loss_mask import Rows
from .model import load_model
from .output_paths import check_paths, rejected_path
from .prepare import Markers, Options, Preparer, ProgressLine, Purpose, TooLong, passport, prepare, summary
from .rows import ConsecutiveUsers
from .shard import read_passport
from .tokenizer_server import answer_with_error, serve

ROW_SHAPES = """\
rows of --input, one JSON object a line, in any of these shapes (an "id" names the row):
  {"messages": [{"role": "user", "content": "Hi!"}, {"role": "assistant", "content": "Hello."}]}
  {"conversations": [{"from": "human", "value": "Hi!"}, {"from": "gpt", "value": "Hello."}]}
  {"messages": [{"role": "user", "content": "Is it warm?"}, {"role": "assistant", "tool_calls": [{"type": "function", \
"function": {"name": "weather", "arguments": {}}}]}], "tools": [{"type": "function", "function": {"name": "weather"}}]}
  {"messages": [{"role": "user", "content": "Tell all."}, {"role": "assistant", "content": "Once"}], "complete": false}
  {"input_ids": [5, 6, 7], "loss_mask": [0, 1, 1]}
shapes for --prompts: chats as above, and
  {"prompt": "What is 12 + 345?"}
  {"turns": ["What is 12 + 345?", "And twice that?"]}
"complete": false says that the last answer was cut off, "loss_mask" 1 that a token is an answer's. Of "turns" the first
is asked. Rows that cannot be used are kept, with reasons, in OUTPUT.rejected.jsonl.
"""


def values(kind: Any) -> list[str]:
    return [member.value for member in kind]


def json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"a JSON object is expected: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("a JSON object is expected")
    return value


def positive(text: str) -> int:
    if not text.isdecimal() or (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number above 0, not {text!r}")
    return value


def too_long(text: str) -> str:
    """`refuse` is the word that a run's data.too_long has; it used to be `error` here."""
    return TooLong.REFUSE.value if text == "error" else text


def parser() -> argparse.ArgumentParser:
    """The command line. Only `prepare` is for people; the help does not show the other."""
    main_parser = argparse.ArgumentParser(prog="percheron")
    commands = main_parser.add_subparsers(dest="command", required=True, metavar="prepare")
    add_prepare(commands.add_parser(
        "prepare", help="make a token shard with a loss mask from chats in JSONL",
        description="Makes a token shard with a loss mask from chats in JSONL.", epilog=ROW_SHAPES,
        formatter_class=argparse.RawDescriptionHelpFormatter))
    tokenize = commands.add_parser("tokenize")
    tokenize.add_argument("--model", type=Path, required=True, help="Hugging Face model directory")
    add_template_variables(tokenize)
    return main_parser


def add_prepare(make: argparse.ArgumentParser) -> None:
    make.add_argument("--model", type=Path, required=True, metavar="DIR", help="Hugging Face model directory")
    make.add_argument("--input", type=Path, required=True, metavar="FILE.jsonl", help="rows, in the shapes below")
    make.add_argument("--output", type=Path, required=True, metavar="FILE.safetensors", help="shard to write")
    make.add_argument("--rows", choices=values(Rows), default="auto",
                      help="auto: one row per chat where that is what serving renders, else one per answer "
                           "(default: %(default)s)")
    make.add_argument("--max-length", type=positive, metavar="N", help="tokens of a row at most (default: no limit)")
    make.add_argument("--too-long", type=too_long, choices=values(TooLong), default="truncate",
                      help="what happens to rows over --max-length: fail, cut their end off, or leave them out "
                           "(default: %(default)s)")
    make.add_argument("--last-turn-only", action="store_true",
                      help="one row per chat, its last answer supervised (default: every answer)")
    make.add_argument("--prompts", action="store_true",
                      help="evaluation shard: prompts with the generation prompt, then the last answer if there is "
                           "one (default: a training shard)")
    make.add_argument("--consecutive-users", choices=values(ConsecutiveUsers), default="keep",
                      help="two user turns in a row: as the template renders them, joined, or left out "
                           "(default: %(default)s)")
    make.add_argument("--markers-in-content", choices=values(Markers), default="keep",
                      help="control-token strings in messages: as servers read them, as text, or row left out "
                           "(default: %(default)s)")
    make.add_argument("--max-rejected", type=int, metavar="N",
                      help="fail, without a shard, when more rows are rejected (default: no limit)")
    make.add_argument("--reuse", action="store_true",
                      help="do nothing when the shard is there and was made of the same rows, model and options "
                           "(default: make it anew)")
    add_template_variables(make)


def add_template_variables(command: argparse.ArgumentParser) -> None:
    command.add_argument("--template-variables", type=json_object, default={}, metavar="JSON",
                         help="variables for the chat template, e.g. '{\"enable_thinking\": false}' (default: none)")


def run_prepare(args: argparse.Namespace) -> int:
    options = Options(
        purpose=Purpose.PROMPTS if args.prompts else Purpose.TRAINING, rows=Rows(args.rows),
        max_length=args.max_length, too_long=TooLong(args.too_long), last_turn_only=args.last_turn_only,
        consecutive_users=ConsecutiveUsers(args.consecutive_users), markers=Markers(args.markers_in_content),
        template_variables=args.template_variables)
    start = time.monotonic()
    check_paths(args.model, args.input, args.output)
    model = load_model(args.model, args.template_variables, datetime.datetime.now())
    if args.reuse and read_passport(args.output) == passport(model, options, args.input):
        print(f"{args.output} is up to date")
        return 0
    progress = ProgressLine(args.input)
    try:
        done = prepare(model, options, args.input, args.output, progress, args.max_rejected)
    finally:
        progress.close()
    for line in summary(done, args.input, time.monotonic() - start):
        print(line)
    if done.tally.rejected:
        print(f"rejected rows, with reasons: {rejected_path(args.output)}")
    require_enough(done, args.input, args.max_rejected)
    print(f"wrote {args.output}")
    return 0


def require_enough(done: Preparer, source: Path, rejected_max: int | None) -> None:
    """Raises Failure where `prepare` wrote no shard."""
    rejected = sum(done.tally.rejected.values())
    if not done.tally.read:
        raise Failure(f"{source} is empty; no shard was written (`percheron prepare --help` shows rows)")
    if not len(done.shard):
        raise Failure(f"none of {done.tally.read} rows of {source} could be used; no shard was written "
                      "(`percheron prepare --help` shows rows)")
    if rejected_max is not None and rejected > rejected_max:
        raise Failure(f"{rejected} rows rejected, --max-rejected is {rejected_max}; no shard was written")


def run_tokenize(args: argparse.Namespace) -> int:
    requests = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8", errors="replace", newline="\n")
    answers = io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8", newline="\n")
    try:
        model = load_model(args.model, args.template_variables, datetime.datetime.now())
    except Failure as failure:
        # Who started this reads the answer and says it once; a line on standard error would double it.
        if not answer_with_error(str(failure), requests, answers):
            raise
        return 1
    serve(model, requests, answers)
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Runs a command. Expected failures are one line on standard error and exit code 1."""
    args = parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # Paths and rows may hold what the terminal can't show.
    try:
        return run_prepare(args) if args.command == "prepare" else run_tokenize(args)
    except (KeyboardInterrupt, BrokenPipeError):
        return 130
    except Failure as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {error.filename or args.command}: {error.strerror or error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
