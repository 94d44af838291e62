"""`percheron prepare` turns chats into token shards, `percheron doctor` says what is wrong with data, `percheron
regenerate` answers chats anew. `tokenize`, which other programs start, is their tokenizer."""
from __future__ import annotations

import signal

# Ctrl-C while modules are loaded ends the program without a word, not with Python's stack.
IS_PROGRAM = __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler
if IS_PROGRAM:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import argparse
import datetime
import io
import json
import sys
import time
from pathlib import Path
from typing import Any

from .command_line import (OneLineParser, add_template_variables, bytes_of, limit_of, positive, share_of, values)
from .doctor import BAD_INPUT, EXIT_CODES, add_doctor, run_doctor
from .failure import Failure, Interrupted
from .loss_mask import Rows, Thinking
from .model import load_model
from .options import (ConsecutiveUsers, CutAnswers, Markers, Options, Purpose, SystemPrompts, TooLong)
from .output_paths import HELD_OUT, Output, check_paths
from .prepare import Job, Prepared, is_up_to_date, prepare
from .progress import ProgressLine
from .regenerate_command import add_regenerate, run_regenerate
from .source import open_source
from .tokenizer_server import answer_with_error, serve

# Of each shard of a folder, unless --shard-bytes says otherwise.
SHARD_BYTES = 1 << 30

ROW_SHAPES = """\
rows of --input: JSON objects, one a line (JSONL), in an array (JSON) or as columns (Parquet), in any of these shapes
(an "id" names the row):
  {"messages": [{"role": "user", "content": "Hi!"}, {"role": "assistant", "content": "Hello."}]}
  {"conversations": [{"from": "human", "value": "Hi!"}, {"from": "gpt", "value": "Hello."}]}
  {"messages": [{"role": "user", "content": "Is it warm?"}, {"role": "assistant", "tool_calls": [{"type": "function", \
"function": {"name": "weather", "arguments": {}}}]}], "tools": [{"type": "function", "function": {"name": "weather"}}]}
  {"messages": [{"role": "user", "content": "Tell all."}, {"role": "assistant", "content": "Once"}], "complete": false}
  {"input_ids": [5, 6, 7], "loss_mask": [0, 1, 1]}
  {"text": "..."}
shapes for --prompts: chats as above, and
  {"prompt": "What is 12 + 345?"}
  {"turns": ["What is 12 + 345?", "And twice that?"]}
"complete": false says that the last answer was cut off, "loss_mask" 1 that a token is an answer's. "text" is a chat
that the model's own chat template has rendered. "system" beside the messages is the chat's system prompt. Of "turns"
the first is asked. Other entries are ignored, and counted by name. Rows that cannot be used are kept, with
reasons, in OUTPUT.rejected.jsonl. A run that was killed goes on where it was when the same command is given again.
"""


def too_long(text: str) -> str:
    """`refuse` is the word that a run's data.too_long has; it used to be `error` here."""
    return TooLong.REFUSE.value if text == "error" else text


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Reads the command line; ends the program where it is wrong, or asks for help."""
    main_parser, commands = parsers()
    args, unknown = main_parser.parse_known_args(arguments)
    if unknown:  # Said by the command's own parser: its --help is the one that helps.
        commands.choices[args.command].error(f"unrecognized arguments: {' '.join(unknown)}")
    return args


def parsers() -> tuple[argparse.ArgumentParser, argparse._SubParsersAction[OneLineParser]]:
    """The command line and its commands. `tokenize` is not for people; the help does not show it."""
    main_parser = OneLineParser(prog="percheron")
    commands = main_parser.add_subparsers(dest="command", required=True, metavar="prepare|doctor|regenerate")
    add_prepare(commands.add_parser(
        "prepare", help="make token shards with loss masks from chats in JSONL, JSON or Parquet",
        description="Makes token shards with loss masks from chats in JSONL, JSON or Parquet.", epilog=ROW_SHAPES,
        formatter_class=argparse.RawDescriptionHelpFormatter))
    add_doctor(commands.add_parser(
        "doctor", help="say what is wrong with rows or token shards",
        description="Says in one screen what is wrong with a file of rows or with token shards.", epilog=EXIT_CODES))
    add_regenerate(commands.add_parser(
        "regenerate", help="replace the answers of chats by the target's own",
        description="Replaces the answers of chats by the target's own, computed here or asked of a server."))
    tokenize = commands.add_parser("tokenize")
    tokenize.add_argument("--model", type=Path, required=True, help="Hugging Face model directory")
    add_template_variables(tokenize)
    return main_parser, commands


def add_prepare(make: argparse.ArgumentParser) -> None:
    make.add_argument("--model", type=Path, required=True, metavar="DIR", help="Hugging Face model directory")
    make.add_argument("--input", type=Path, required=True, nargs="+", metavar="FILE",
                      help="JSONL, JSON or Parquet files with rows in the shapes below")
    make.add_argument("--output", type=Path, required=True, metavar="FILE.safetensors|DIR",
                      help="shard to write, or a folder for a set of shards of limited size")
    make.add_argument("--shard-bytes", type=bytes_of, metavar="SIZE",
                      help="size of each shard of a folder at most, such as 512M (default: 1G)")
    make.add_argument("--held-out-share", type=share_of, default=0.0, metavar="SHARE",
                      help="share of the rows, such as 0.05, told by a hash of their content, that goes to "
                           "FILE.held_out.safetensors or DIR/held_out instead (default: none)")
    make.add_argument("--processes", type=positive, metavar="N", help="processes that encode (default: one a core)")
    make.add_argument("--max-rejected", type=limit_of, metavar="N|P%",
                      help="fail, without a shard, when more rows, or more percent of them, are rejected (default: no "
                           "limit)")
    make.add_argument("--reuse", action="store_true",
                      help="do nothing when the shards are there and were made of the same rows, model and options "
                           "(default: make them anew)")
    add_row_options(make)
    add_chat_options(make)
    add_template_variables(make)


def add_row_options(make: argparse.ArgumentParser) -> None:
    make.add_argument("--rows", choices=values(Rows), default="auto",
                      help="auto: one row per chat where that is what serving renders, else one per answer "
                           "(default: %(default)s)")
    make.add_argument("--last-turn-only", action="store_true",
                      help="one row per chat, its last answer supervised (default: every answer)")
    make.add_argument("--prompts", action="store_true",
                      help="evaluation shard: prompts with the generation prompt, then the last answer if there is "
                           "one (default: a training shard)")
    make.add_argument("--min-length", type=positive, default=1, metavar="N",
                      help="tokens of a row at least; shorter ones are left out (default: %(default)s)")
    make.add_argument("--max-length", type=positive, metavar="N", help="tokens of a row at most (default: no limit)")
    make.add_argument("--too-long", type=too_long, choices=values(TooLong), default="truncate",
                      help="what happens to rows over --max-length: fail, cut their end off, or leave them out "
                           "(default: %(default)s)")


def add_chat_options(make: argparse.ArgumentParser) -> None:
    make.add_argument("--thinking", choices=values(Thinking), default="supervise",
                      help="thoughts of answers: supervised where the template renders them, rendered with mask 0, or "
                           "taken out before (default: %(default)s)")
    make.add_argument("--system-prompts", choices=values(SystemPrompts), default="keep",
                      help="system prompts of chats (default: %(default)s)")
    make.add_argument("--default-system-prompt", metavar="TEXT",
                      help="for chats without a system prompt (default: none)")
    make.add_argument("--cut-answers", choices=values(CutAnswers), default="keep",
                      help="chats whose last answer was cut at a length limit: without its end of turn, or left out "
                           "(default: %(default)s)")
    make.add_argument("--consecutive-users", choices=values(ConsecutiveUsers), default="keep",
                      help="two user turns in a row: as the template renders them, joined, or left out "
                           "(default: %(default)s)")
    make.add_argument("--markers-in-content", choices=values(Markers), default="keep",
                      help="control-token strings in messages: as servers read them, as text, or row left out "
                           "(default: %(default)s)")


def options_of(args: argparse.Namespace) -> Options:
    return Options(
        purpose=Purpose.PROMPTS if args.prompts else Purpose.TRAINING, rows=Rows(args.rows),
        thinking=Thinking(args.thinking), min_length=args.min_length, max_length=args.max_length,
        too_long=TooLong(args.too_long), last_turn_only=args.last_turn_only,
        consecutive_users=ConsecutiveUsers(args.consecutive_users), markers=Markers(args.markers_in_content),
        cut_answers=CutAnswers(args.cut_answers), system_prompts=SystemPrompts(args.system_prompts),
        default_system_prompt=args.default_system_prompt, held_out_share=args.held_out_share,
        template_variables=args.template_variables)


def run_prepare(args: argparse.Namespace) -> int:
    start = time.monotonic()
    output = Output(args.output)
    check_paths(args.model, args.input, output)
    if args.shard_bytes and not output.is_folder:
        raise Failure(f"--shard-bytes is for a folder of shards, and --output {args.output} is one shard; give a "
                      "folder")
    model = load_model(args.model, args.template_variables, datetime.datetime.now())
    shard_bytes = args.shard_bytes or (SHARD_BYTES if output.is_folder else None)
    job = Job(model, options_of(args), args.input, output, shard_bytes, args.processes, args.max_rejected)
    source = open_source(args.input)
    if args.reuse and is_up_to_date(job, source):
        print(f"{args.output} is up to date")
        return 0
    line: ProgressLine | None = None

    def show(byte: int, done: Prepared) -> None:
        nonlocal line
        if line is None:
            line = ProgressLine(source.byte_count)
        counts = [done.counts(side) for side in done.sets]
        line.show(byte, done.tally.read, sum(c.tokens for c in counts), done.tally.rejected_count)

    try:
        done = prepare(job, source, show)
    except KeyboardInterrupt:
        print(f"\ninterrupted; the same command goes on from what is in {output.work}", file=sys.stderr)
        return 130
    except Interrupted as failure:
        raise Failure(f"{failure}; it goes on from what is in {output.work}") from failure
    finally:
        if line is not None:
            line.close()
    for text in summary(done, output, time.monotonic() - start):
        print(text)
    if done.why_nothing:
        raise Failure(done.why_nothing)
    return 0


def summary(done: Prepared, output: Output, seconds: float) -> list[str]:
    """The closing table, with the first rejected row of each reason."""
    totals = [done.counts(side) for side in done.sets]
    tokens, supervised = sum(c.tokens for c in totals), sum(c.supervised_tokens for c in totals)
    lines = [f"{done.tally.read} rows read, {sum(c.samples for c in totals)} samples, {tokens:,} tokens, "
             f"{supervised:,} supervised, {seconds:.1f} s"]
    if done.resumed_rows:
        lines.append(f"  {done.resumed_rows} of the rows were read by an interrupted run before")
    lines += done.tally.table()
    if done.tally.rejected_count:
        lines.append(f"rejected rows, with reasons: {output.rejected}")
    if done.why_nothing:
        return lines
    for side, state in done.sets.items():
        path = output.held_out if side == HELD_OUT else output.path
        counts = state.total()
        detail = f" ({counts.samples} samples)" if len(done.sets) > 1 else ""
        shards = f", {len(state.shards)} shard{'s' * (len(state.shards) != 1)}" if output.is_folder else ""
        lines.append(f"wrote {path}{detail}{shards}")
    return lines


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
    """Runs a command. Expected failures are one line on standard error and exit code 1, of `doctor` 2."""
    args = parse(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # Paths and rows may hold what the terminal can't show.
    run = {"prepare": run_prepare, "doctor": run_doctor, "regenerate": run_regenerate,
           "tokenize": run_tokenize}[args.command]
    failed = BAD_INPUT if args.command == "doctor" else 1
    try:
        return run(args)
    except (KeyboardInterrupt, BrokenPipeError):
        return 130
    except Failure as failure:
        print(f"error: {failure}", file=sys.stderr)
        return failed
    except OSError as error:
        print(f"error: {error.filename or args.command}: {error.strerror or error}", file=sys.stderr)
        return failed


if IS_PROGRAM:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if __name__ == "__main__":
    sys.exit(main())
