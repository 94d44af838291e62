"""The command line of `percheron regenerate`."""
from __future__ import annotations

import argparse
import datetime
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .answer_source import AnswerSource
from .chat_server import KEY_VARIABLE, ChatServer, ServerAnswers, ServerOptions, http_transport
from .command_line import add_template_variables, limit_of, positive
from .failure import Failure
from .local_answers import LocalAnswers
from .model import load_model
from .output_paths import check_folder, check_source, same_file
from .progress import ProgressLine
from .regenerate import Regenerated, RegenerateJob, RegenerateOutput, began_before, regenerate
from .source import BlockReader, open_source

PLAIN_PERIOD_S = 10.0
# As in the program that answers.
NEW_TOKENS_MAX = 1 << 20
SEED_MAX = (1 << 63) - 1
LOCAL_ONLY = ("devices", "threads", "dtype", "slots", "context")
SERVER_ONLY = ("model", "concurrency", "timeout", "tries")

DETAILS = f"""\
Every answer of a chat is replaced, in order; each turn is asked with the new answers before it. Rows, ids and other
keys stay as they were and in their order; of an answer its role and text are written, and its thoughts as
reasoning_content. `complete` says of each row whether its last answer has its natural end; `prepare` leaves the
end-of-turn token out where it has not. System prompts, also `system` beside the messages, and tools stay, and none is
added.
rows of --data: {{"messages": [...]}}, {{"conversations": [...]}} (role and content, or from and value),
{{"prompt": "..."}} and {{"turns": ["...", ...]}}, which get `messages`; JSONL, JSON or Parquet. A question at the end is
answered too. Rows with tool calls or results, rendered text and token ids can't be made anew. They, and rows that fail,
are counted and kept with reason and line in OUT.rejected.jsonl. An answer that --new-tokens cuts, or that calls a tool,
ends its chat, and so does a prompt that leaves no room in the context; how many turns that left out is said. A server
refuses such a prompt like any other that it can't answer: the row is rejected.
A run that was stopped or killed goes on when the same command is given again, from OUT.partial, to the same rows;
another target, model, input or sampling is refused. OUT.report.json says what made the rows, and the counts.
With the same weights and --slots, greedy answers, and sampled ones with their --seed, depend on nothing else: neither
on what is answered beside them nor on the number of devices. In bf16, up to 16 slots and more may differ where two
tokens are all but equally likely. Servers promise less.
The key for a server is read from the environment: {KEY_VARIABLE}. --template-variables go to a server as
chat_template_kwargs.
"""


def add_regenerate(make: argparse.ArgumentParser) -> None:
    make.epilog = DETAILS
    make.formatter_class = argparse.RawDescriptionHelpFormatter
    who = make.add_mutually_exclusive_group(required=True)
    who.add_argument("--target", type=Path, metavar="DIR", help="Hugging Face directory of the target, to answer here")
    who.add_argument("--server", metavar="URL",
                     help="server with OpenAI's chat completions, such as http://127.0.0.1:8000, to answer instead")
    make.add_argument("--data", type=Path, required=True, metavar="FILE", help="chats to answer anew")
    make.add_argument("--out", type=Path, required=True, metavar="FILE.jsonl", help="rows to write")
    make.add_argument("--new-tokens", type=whole(1, NEW_TOKENS_MAX), default=2048, metavar="N",
                      help="tokens of an answer at most, with its thoughts (default: %(default)s)")
    make.add_argument("--temperature", type=temperature_of, default=0.0, metavar="T",
                      help="0 = greedy, else of sampling (default: 0)")
    make.add_argument("--seed", type=whole(0, SEED_MAX), default=0, metavar="S",
                      help="of sampling; an answer depends on it and on its row, turn and position (default: 0)")
    make.add_argument("--limit", type=positive, metavar="N", help="read the first N rows only (default: all)")
    make.add_argument("--max-rejected", type=limit_of, metavar="N|P%",
                      help="fail, without writing OUT, when more rows, or more percent of them, are rejected "
                           "(default: no limit)")
    add_template_variables(make)
    here = make.add_argument_group("with --target")
    here.add_argument("--devices", metavar="NAME,NAME",
                      help="devices, each with its own copy of the target, such as cpu:0,cpu:1 (default: cpu:0)")
    here.add_argument("--threads", type=whole(0, 1024), metavar="N",
                      help="cores of each CPU device; 0 = all, shared evenly (default: 0)")
    here.add_argument("--dtype", choices=("bf16", "f32"), help="numbers of products (default: bf16)")
    here.add_argument("--slots", type=whole(1, 4096), metavar="N",
                      help="answers in flight on each device (default: 64)")
    here.add_argument("--context", type=positive, metavar="N",
                      help="tokens of a prompt and its answer at most (default: the target's positions)")
    there = make.add_argument_group("with --server")
    there.add_argument("--model", metavar="NAME", help="the server's name for it (default: its only model)")
    there.add_argument("--concurrency", type=whole(1, 4096), metavar="N", help="questions open at once (default: 64)")
    there.add_argument("--timeout", type=positive, metavar="SECONDS", help="for one answer (default: 1800)")
    there.add_argument("--tries", type=positive, metavar="N",
                       help="per question, with growing pauses, when the connection fails or the server says 429 or "
                            "5xx (default: 8)")


def temperature_of(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not math.isfinite(value) or value < 0:
        raise argparse.ArgumentTypeError(f"must be 0 or a positive number, not {text!r}")
    return value


def whole(low: int, high: int) -> Callable[[str], int]:
    """Reads a whole number within limits."""
    def number(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"must be a whole number from {low} to {high}, not {text!r}")
        return int(text)
    return number


def check_arguments(args: argparse.Namespace, output: RegenerateOutput) -> None:
    """Raises Failure before anything is loaded or written."""
    foreign, other = (LOCAL_ONLY, "--target") if args.server else (SERVER_ONLY, "--server")
    given = next((name for name in foreign if getattr(args, name) is not None), None)
    if given:
        raise Failure(f"--{given} is for {other}; leave it out")
    check_source(args.data, "--data")
    if output.path.suffix != ".jsonl":
        raise Failure(f"--out {output.path} must end in .jsonl: rows are written one a line")
    for written in (output.path, output.rejected, output.report):
        if same_file(written, args.data):
            raise Failure(f"--out {output.path} would overwrite --data: {written} is the same file as {args.data}; "
                          "choose another --out")
        if written.is_dir():
            raise Failure(f"{written} is a folder, and --out {output.path} writes a file there; choose another --out")
    if args.target and os.path.realpath(output.path.parent) == os.path.realpath(args.target):
        raise Failure(f"--out {output.path} lies among the files of --target {args.target}; choose another folder")
    check_folder(output.path, "--out")


def answers_of(args: argparse.Namespace, began: datetime.datetime) -> AnswerSource:
    if args.target:
        model = load_model(args.target, args.template_variables, began)
        options = {"new-tokens": args.new_tokens, "temperature": args.temperature, "seed": args.seed,
                   **{name: getattr(args, name) for name in LOCAL_ONLY}}
        return LocalAnswers(model, options)
    concurrency = args.concurrency or 64
    options_given: dict[str, Any] = {"tries_max": args.tries} if args.tries else {}
    server = ChatServer(ServerOptions(args.server, args.model, args.temperature, args.seed, args.new_tokens,
                                      args.template_variables, **options_given), http_transport(args.timeout or 1800))
    return ServerAnswers(server, concurrency)


def identity_of(args: argparse.Namespace) -> dict[str, Any]:
    """What decides the answers, apart from who gives them."""
    sampling = {"temperature": args.temperature, "seed": args.seed if args.temperature else None}
    local = {"dtype": args.dtype or "bf16"} if args.target else {}
    return {"new-tokens": args.new_tokens, "template-variables": args.template_variables, **sampling, **local}


def run_regenerate(args: argparse.Namespace) -> int:
    output = RegenerateOutput(args.out)
    check_arguments(args, output)
    source = open_source([args.data])
    reader = BlockReader(source.files)
    total = sum(1 for block in source.blocks for _ in reader.rows(block))
    # A run that goes on renders dates as it began to.
    began = began_before(output) or datetime.datetime.now().isoformat()
    answers = answers_of(args, datetime.datetime.fromisoformat(began))
    line = ProgressLine(min(total, args.limit or total), "regenerate", plain_period_s=PLAIN_PERIOD_S)

    def show(done: Regenerated) -> None:
        line.show(done.tally.read, done.rows, done.tokens, done.tally.rejected_count)

    start = time.monotonic()  # behind the loading of the target
    try:
        job = RegenerateJob(source, answers, output, identity_of(args), began, args.limit, args.max_rejected)
        done = regenerate(job, show)
        seconds = time.monotonic() - start
    except KeyboardInterrupt:
        where = f"goes on from what is in {output.work}" if output.work.exists() else "begins anew: no row was done"
        print(f"\ninterrupted; the same command {where}", file=sys.stderr)
        return 130
    finally:
        line.close()
        answers.close()
    for text in summary(done, output, seconds):
        print(text)
    return 0


def summary(done: Regenerated, output: RegenerateOutput, seconds: float) -> list[str]:
    """The closing table, with the first rejected row of each reason."""
    if done.is_up_to_date:
        return [f"{output.path} is up to date: {done.rows} rows, {done.answers} answers"]
    speed = (done.tokens - done.resumed_tokens) / max(seconds, 1e-9)
    lines = [f"{done.tally.read} rows read, {done.rows} written, {done.answers} answers, {done.tokens:,} tokens, "
             f"{seconds:.1f} s, {speed:,.0f} tokens/s"]
    if done.resumed_rows:
        lines.append(f"  {done.resumed_rows} of the rows were done by an interrupted run before")
    lines += done.tally.table()
    if done.tally.rejected_count:
        lines.append(f"rejected rows, with reasons: {output.rejected}")
    return [*lines, f"wrote {output.path}"]
