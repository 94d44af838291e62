"""`python -m percheron_prepare prepare|tokenize`: token shards, and the tokenizer for other programs."""
from __future__ import annotations

import argparse
import datetime
import io
import json
import sys
import time
from pathlib import Path
from typing import Any

from .chat_template import TemplateMissing
from .loss_mask import Rows
from .model import load_model
from .prepare import (Markers, Options, ProgressLine, Purpose, RowTooLong, TooLong, passport, prepare, rejected_path,
                      summary)
from .rows import ConsecutiveUsers
from .shard import read_passport
from .tokenizer_server import serve


def values(kind: Any) -> list[str]:
    return [member.value for member in kind]


def json_object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("a JSON object is expected")
    return value


def positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def parser() -> argparse.ArgumentParser:
    """The command line."""
    main_parser = argparse.ArgumentParser(prog="percheron_prepare", description=__doc__)
    commands = main_parser.add_subparsers(dest="command", required=True)

    make = commands.add_parser("prepare", help="turn a JSONL file into a token shard")
    make.add_argument("--model", type=Path, required=True, help="Hugging Face model directory")
    make.add_argument("--input", type=Path, required=True, help="JSONL file")
    make.add_argument("--output", type=Path, required=True, help="shard to write, a .safetensors file")
    make.add_argument("--rows", choices=values(Rows), default="auto",
                      help="auto: one row per chat where that is what serving renders, else one per answer")
    make.add_argument("--max-length", type=positive, help="tokens of a row at most")
    make.add_argument("--too-long", choices=values(TooLong), default="truncate", help="what happens to longer rows")
    make.add_argument("--last-turn-only", action="store_true", help="one row per chat, its last answer supervised")
    make.add_argument("--prompts", action="store_true",
                      help="evaluation shard: prompts with the generation prompt, then the last answer if there is one")
    make.add_argument("--consecutive-users", choices=values(ConsecutiveUsers), default="keep",
                      help="two user turns in a row: as the template renders them, joined, or left out")
    make.add_argument("--markers-in-content", choices=values(Markers), default="keep",
                      help="control-token strings in messages: as servers read them, as text, or row left out")
    make.add_argument("--max-rejected", type=int, help="fail, without a shard, when more rows are rejected")
    make.add_argument("--reuse", action="store_true", help="do nothing when the shard is there with this passport")
    add_template_variables(make)

    tokenize = commands.add_parser("tokenize", help="answer requests on standard input, one JSON object a line")
    tokenize.add_argument("--model", type=Path, required=True, help="Hugging Face model directory")
    add_template_variables(tokenize)
    return main_parser


def add_template_variables(command: argparse.ArgumentParser) -> None:
    command.add_argument("--template-variables", type=json_object, default={}, metavar="JSON",
                         help="variables for the chat template, e.g. '{\"enable_thinking\": false}'")


def run_prepare(args: argparse.Namespace) -> int:
    options = Options(
        purpose=Purpose.PROMPTS if args.prompts else Purpose.TRAINING, rows=Rows(args.rows),
        max_length=args.max_length, too_long=TooLong(args.too_long), last_turn_only=args.last_turn_only,
        consecutive_users=ConsecutiveUsers(args.consecutive_users), markers=Markers(args.markers_in_content),
        template_variables=args.template_variables)
    start = time.monotonic()
    model = load_model(args.model, args.template_variables, datetime.datetime.now())
    if args.reuse and read_passport(args.output) == passport(model, options, args.input):
        print(f"{args.output} is up to date")
        return 0
    progress = ProgressLine(args.input)
    try:
        done = prepare(model, options, args.input, args.output, progress, args.max_rejected)
    finally:
        progress.close()
    for line in summary(done, time.monotonic() - start):
        print(line)
    rejected = sum(done.tally.rejected.values())
    if rejected:
        print(f"rejected rows, with reasons: {rejected_path(args.output)}")
    if not len(done.shard):
        print(f"error: none of {done.tally.read} rows could be used; no shard was written", file=sys.stderr)
        return 1
    if args.max_rejected is not None and rejected > args.max_rejected:
        print(f"error: {rejected} rows rejected, --max-rejected is {args.max_rejected}; no shard was written",
              file=sys.stderr)
        return 1
    print(f"wrote {args.output}")
    return 0


def run_tokenize(args: argparse.Namespace) -> int:
    model = load_model(args.model, args.template_variables, datetime.datetime.now())
    requests = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8", errors="replace", newline="\n")
    answers = io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8", newline="\n")
    serve(model, requests, answers)
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Runs a command. Expected failures are one line on standard error and exit code 1."""
    args = parser().parse_args(arguments)
    try:
        return run_prepare(args) if args.command == "prepare" else run_tokenize(args)
    except (OSError, ValueError, TemplateMissing, RowTooLong) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, BrokenPipeError):
        return 130


if __name__ == "__main__":
    sys.exit(main())
