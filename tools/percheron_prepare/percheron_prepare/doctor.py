"""`percheron doctor` says in one screen what is wrong with a file of rows or with token shards.

    python -m percheron_prepare.doctor FILE|SHARD|DIR [--model DIR] [--show N] [--html FILE] [--json]

Exit code 0: nothing found; 1: problems; 2: the input, or the command line, could not be read.
"""
from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from .command_line import OneLineParser, add_template_variables, positive
from .failure import Failure
from .findings import Report
from .model import Model, load_model
from .options import Options, Purpose
from .output_paths import SHARD_SUFFIX
from .progress import ProgressLine
from .report_text import report_lines
from .row_checks import check_rows
from .row_encoder import RowEncoder, RowTooLong
from .rows import parse_row
from .sample_checks import Copies, SampleChecks, TokenFacts
from .sample_view import ShownSample, terminal_lines, write_html
from .shard_reader import Shard, check_set, open_shard, shard_paths
from .source import BlockReader, Source, open_source
from .source_row import Rejected
from .token_pieces import token_pieces

CLEAN, PROBLEMS, BAD_INPUT = 0, 1, 2
SHOWN_IN_HTML = 20

EXIT_CODES = "exit code: 0 nothing found, 1 problems, 2 the input or the command line could not be read"


def add_doctor(command: argparse.ArgumentParser) -> None:
    command.add_argument("data", type=Path, metavar="FILE|SHARD|DIR",
                         help="rows (JSONL, JSON, Parquet), a token shard, or a folder of shards")
    command.add_argument("--model", type=Path, metavar="DIR",
                         help="Hugging Face model directory: rows are encoded and their masks checked, shards compared "
                              "with its tokenizer (default: what can be told without)")
    command.add_argument("--show", type=positive, metavar="N",
                         help="show the first N samples with their supervised tokens coloured; needs --model")
    command.add_argument("--html", type=Path, metavar="FILE",
                         help=f"write the report and the shown samples (default: {SHOWN_IN_HTML}) as a web page; needs "
                              "--model")
    command.add_argument("--json", action="store_true", help="print the report as JSON")
    command.add_argument("--prompts", action="store_true",
                         help="rows are prompts for evaluation (default: training rows)")
    command.add_argument("--color", choices=("auto", "always", "never"), default="auto",
                         help="colours (default: on a terminal)")
    add_template_variables(command)


def run_doctor(args: argparse.Namespace) -> int:
    """Prints the report. Raises Failure where the input cannot be read."""
    if (args.show or args.html) and not args.model:
        raise Failure("--show and --html need --model DIR, whose tokenizer tells what the tokens say")
    if not args.data.exists():
        raise Failure(f"{args.data} does not exist; give a file of rows, a token shard or a folder of shards")
    model = load_model(args.model, args.template_variables, datetime.datetime.now()) if args.model else None
    options = Options(purpose=Purpose.PROMPTS if args.prompts else Purpose.TRAINING,
                      template_variables=args.template_variables)
    report = Report(str(args.data))
    if args.data.is_dir() or args.data.suffix == SHARD_SUFFIX:
        shards = [open_shard(path) for path in shard_paths(args.data)]
        check_shards(args.data, shards, report, model)
        samples = shown_of_shards(shards, model)
    else:
        source = open_source([args.data])
        examine_rows(source, report, model, options)
        if not report.rows:
            raise Failure(f"{args.data} is empty (`percheron prepare --help` shows rows)")
        samples = shown_of_rows(source, model, options)
    show(args, report, samples)
    return PROBLEMS if report.problems else CLEAN


def show(args: argparse.Namespace, report: Report, samples: Iterator[ShownSample]) -> None:
    coloured = args.color == "always" or (args.color == "auto" and sys.stdout.isatty())
    shown = list(islice(samples, args.show or SHOWN_IN_HTML)) if args.show or args.html else []
    if args.json:
        print(json.dumps(report.as_json(), ensure_ascii=False, indent=1))
    else:
        for line in report_lines(report, coloured):
            print(line)
        if args.show:
            for line in terminal_lines(shown, coloured):
                print(line)
    if args.html:
        write_html(args.html, report, shown)
        print(f"wrote {args.html}", file=sys.stderr if args.json else sys.stdout)


def facts_of(model: Model | None) -> TokenFacts:
    """What the model says of its tokens."""
    if model is None:
        return TokenFacts()
    ends = {model.tokenizer.id_of(model.facts.end_of_turn), *model.facts.stop_ids} - {None}
    bos = model.tokenizer.id_of(model.template.special_tokens.get("bos_token") or "")
    return TokenFacts(model.vocab_size, bos if bos is not None and begins_with_bos(model, bos) else None,
                      frozenset(n for n in ends if n is not None) if not model.facts.why_unusable else None)


def begins_with_bos(model: Model, bos: int) -> bool:
    """Whether the template writes the token once, at the front: some families begin every message with it."""
    try:
        ids = model.encoder.prompt([{"role": "user", "content": "x"}])
    except Exception:  # noqa: BLE001 - a template that refuses this chat tells nothing about its tokens
        return False
    return ids[:1] == [bos] and ids.count(bos) == 1


def check_shards(path: Path, shards: list[Shard], report: Report, model: Model | None) -> None:
    check_set(path, shards, report)
    facts = facts_of(model)
    for shard in shards:
        vocab_size = shard.passport.get("vocab_size")
        if model and shard.passport.get("tokenizer_hash") != model.tokenizer.file_hash:
            report.find("other_tokenizer", str(shard.path))
        if model and shard.passport.get("template_hash") != model.template_hash:
            report.find("other_template", str(shard.path))
        if isinstance(vocab_size, int) and facts.vocab_size is None:
            facts = TokenFacts(vocab_size, facts.bos, facts.end_of_turn)
    checks = SampleChecks(report, facts, Copies.OF_SAMPLES)
    line = ProgressLine(sum(len(shard.tokens) for shard in shards), verb="doctor")
    try:
        for shard in shards:
            for batch in shard.batches():
                checks.add(batch)
                line.show(report.tokens, report.samples, report.tokens, 0)
    finally:
        line.close()
    checks.finish()
    if not report.samples:
        raise Failure(f"{path} holds no sample")


def examine_rows(source: Source, report: Report, model: Model | None, options: Options) -> None:
    checks = SampleChecks(report, facts_of(model), Copies.OF_ROWS)
    line = ProgressLine(source.byte_count, verb="doctor")
    try:
        check_rows(source, report, model, options, checks,
                   lambda byte, rows: line.show(byte, rows, report.tokens, 0))
    finally:
        line.close()


def shown_of_shards(shards: list[Shard], model: Model | None) -> Iterator[ShownSample]:
    assert model is not None
    for shard in shards:
        for d in range(len(shard)):
            begin, end = int(shard.offsets[d]), int(shard.offsets[d + 1])
            ids = shard.tokens[begin:end].tolist()
            if max(ids) >= model.tokenizer.vocab_size:
                raise Failure(f"{shard.where(d)}: id {max(ids)} is not in the vocabulary of --model; give the model "
                              "that the shard was made for")
            yield ShownSample(shard.where(d), ids, shard.mask[begin:end].tolist(),
                              token_pieces(model.tokenizer.raw, ids))


def shown_of_rows(source: Source, model: Model | None, options: Options) -> Iterator[ShownSample]:
    assert model is not None
    encoder, reader = RowEncoder(model, options), BlockReader(source.files)
    for block in source.blocks:
        for row in reader.rows(block):
            try:
                samples = encoder.samples(parse_row(row.parsed()[0], row.number))
            except (Rejected, RowTooLong, RecursionError, UnicodeError):
                continue
            for name, sample in samples:
                yield ShownSample(f"{source.files[block.file].path}:{row.number} ({name})", sample.ids, sample.mask,
                                  token_pieces(model.tokenizer.raw, sample.ids))


def main(arguments: list[str] | None = None) -> int:
    """The command by itself."""
    parser = OneLineParser(prog="percheron doctor", description="Says what is wrong with a data set.",
                           epilog=EXIT_CODES)
    add_doctor(parser)
    args = parser.parse_args(arguments)
    try:
        return run_doctor(args)
    except (KeyboardInterrupt, BrokenPipeError):
        return 130
    except Failure as failure:
        print(f"error: {failure}", file=sys.stderr)
    except OSError as error:
        print(f"error: {error.filename or args.data}: {error.strerror or error}", file=sys.stderr)
    return BAD_INPUT


if __name__ == "__main__":
    sys.exit(main())
