#!/usr/bin/env python3
"""How fast `percheron prepare` is beside the tokenizers library alone and beside SpecForge's preparation, in one run.

    bench/specforge_environment.sh
    .venv/bin/python bench/prepare_bench.py --model models/smollm2-135m-instruct --specforge .venv-specforge/bin/python

All use all cores, in turn; the best of the rounds counts. The library encodes the same chats, rendered beforehand and
held in memory, in its own threads and without offsets, which is the fastest way that it has. SpecForge prepares the
same file as its training does, from the rows to the Arrow file that it trains on; its imports are not counted. Ours is
the whole command: start, reading, rendering, masks, shards. SpecForge adds a system prompt to every chat, so it is
compared in chats a second, not in tokens. Peak memory is that of all processes together.
"""
from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from prepare_rows import write_rows
from process_tree import MemoryWatch

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "tools" / "percheron_prepare"
BATCH_TEXTS = 4096

sys.path.insert(0, str(PACKAGE))


@dataclass
class Made:
    """What one side made of the rows, and how fast."""

    seconds: float
    rows: int
    tokens: int
    peak_bytes: int = 0

    def __str__(self) -> str:
        memory = f", peak memory {self.peak_bytes / 1e6:,.0f} MB" if self.peak_bytes else ""
        return f"{self.rows / self.seconds:,.0f} chats/s, {self.tokens / self.seconds:,.0f} tokens/s{memory}"


def rendered_texts(model_folder: Path, rows: Path) -> list[str]:
    from percheron_prepare.model import load_model
    from percheron_prepare.rows import Chat, parse_row
    model = load_model(model_folder)
    texts = []
    with open(rows, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            chat = parse_row(json.loads(line), number)
            assert isinstance(chat, Chat)
            texts.append(model.encoder.render(chat.messages, chat.tools).text)
    return texts


def time_library(model_folder: Path, texts: list[str]) -> Made:
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(str(model_folder / "tokenizer.json"))
    tokens = 0
    start = time.perf_counter()
    for at in range(0, len(texts), BATCH_TEXTS):
        encoded = tokenizer.encode_batch_fast(texts[at: at + BATCH_TEXTS], add_special_tokens=False)
        tokens += sum(map(len, encoded))
    return Made(time.perf_counter() - start, len(texts), tokens)


def watched(command: list[str], environment: dict[str, str]) -> tuple[float, int, str]:
    """Seconds, peak bytes and standard output of a program."""
    start = time.perf_counter()
    with subprocess.Popen(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as process, MemoryWatch(process.pid) as memory:
        said, complaint = process.communicate()
        seconds = time.perf_counter() - start
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with exit code {process.returncode}: {complaint[-2000:]}")
    return seconds, memory.resident_peak, said


def time_prepare(model_folder: Path, rows: Path, output: Path) -> Made:
    from percheron_prepare.shard_reader import open_shard, shard_paths
    seconds, peak, _ = watched([sys.executable, "-m", "percheron_prepare", "prepare", "--model", str(model_folder), "--input",
                                str(rows), "--output", str(output)], {"PYTHONPATH": str(PACKAGE)})
    shards = [open_shard(path) for path in shard_paths(output)]
    return Made(seconds, sum(map(len, shards)), sum(len(shard.tokens) for shard in shards), peak)


def time_specforge(python: Path, model_folder: Path, rows: Path, processes: int) -> Made:
    with tempfile.TemporaryDirectory() as folder:
        _, peak, said = watched([str(python), str(ROOT / "bench" / "specforge_prepare.py"), str(model_folder), str(rows),
                                 folder, str(processes)], {"TOKENIZERS_PARALLELISM": "false"})
    made = json.loads(said.splitlines()[-1])
    return Made(made["seconds"], made["rows"], made["tokens"], peak)


def main() -> None:
    parser = argparse.ArgumentParser(description="percheron prepare beside the tokenizers library and SpecForge")
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face model directory")
    parser.add_argument("--specforge", type=Path, metavar="PYTHON",
                        help="the Python that bench/specforge_environment.sh made (default: without SpecForge)")
    parser.add_argument("--megabytes", type=int, default=64, help="of rows (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="(default: %(default)s)")
    args = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    cores = len(os.sched_getaffinity(0))
    best: dict[str, Made] = {}
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.jsonl"
        write_rows(rows, args.megabytes * 1_000_000, args.seed)
        texts = rendered_texts(args.model, rows)
        for number in range(1, args.rounds + 1):
            round_made = {"tokenizers alone": time_library(args.model, texts),
                          "prepare": time_prepare(args.model, rows, Path(folder) / "shards")}
            if args.specforge:
                round_made["SpecForge"] = time_specforge(args.specforge, args.model, rows, cores)
            for side, made in round_made.items():
                print(f"round {number}: {side}: {made}", flush=True)
                best[side] = min(best.get(side, made), made, key=lambda m: m.seconds)
    print(f"{args.megabytes} MB, {len(texts):,} chats, {cores} cores, best of {args.rounds}:")
    for side, made in best.items():
        print(f"  {side}: {made}")
    ours, alone = best["prepare"], best["tokenizers alone"]
    print(f"prepare has {100 * (ours.tokens / ours.seconds) / (alone.tokens / alone.seconds):.0f} % of the library's "
          "tokens a second")
    if peer := best.get("SpecForge"):
        print(f"prepare has {(ours.rows / ours.seconds) / (peer.rows / peer.seconds):.2f} times SpecForge's chats a second")


if __name__ == "__main__":
    main()
