#!/usr/bin/env python3
"""Prepares a large file of chats twice, once undisturbed and once killed at random moments, and compares the bytes.

    .venv/bin/python tests/e2e/prepare_killed.py --model models/smollm2-135m-instruct --megabytes 2000 --kills 8

The rows are chats of the demo in random order, some of hundreds of kilobytes and some of no use, and rows of ready ids.
Every kill is a SIGKILL to the whole process group, at a random moment. Peak memory is that of the command and its
workers together, the larger of both runs: the sum of their resident bytes, and the sum in which shared pages count
once. Exit code 1 where the bytes differ or memory was over --memory-limit.
"""
from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tools" / "percheron_prepare"

sys.path.insert(0, str(ROOT / "bench"))

from prepare_rows import write_mixed_rows  # noqa: E402
from process_tree import MemoryWatch  # noqa: E402

POLL_S = 0.02
# Of so many kills, one in the first seconds of a run.
EARLY_PERIOD, EARLY_S = 3, 2.0

# The command, with another period between the points that a later run goes on from.
DRIVER = """
import sys
from percheron_prepare import prepare
prepare.KEEP_PERIOD_S = float(sys.argv.pop(1))
from percheron_prepare.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


class Runs:
    """Starts the command, and remembers how much memory it took."""

    def __init__(self, args: argparse.Namespace, rows: Path) -> None:
        self._args, self._rows = args, rows
        self.resident_peak = self.proportional_peak = 0  # bytes
        self.went_on_from: list[int] = []  # rows that each run found done by those before it

    def run(self, output: Path, kill_after_s: float | None = None, from_kept: bool = False) -> tuple[bool, str]:
        """Whether the command came to its end, and what it said. `from_kept`: the time until the kill begins when the run
        has kept something. Ends the program when the command failed."""
        command = [sys.executable, "-c", DRIVER, str(self._args.keep_period_s), "prepare", "--model",
                   str(self._args.model), "--input", str(self._rows), "--output", str(output), "--held-out-share",
                   "0.02", "--shard-bytes", self._args.shard_bytes]
        state = output.with_name(output.name + ".partial") / "state.json"
        before = kept_at(state)
        self.went_on_from.append(kept_rows(state))
        with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(PACKAGE)}, stdout=subprocess.PIPE, text=True,
                              start_new_session=True) as process, MemoryWatch(process.pid) as memory:
            while from_kept and process.poll() is None and kept_at(state) == before:
                time.sleep(POLL_S)
            try:
                said, _ = process.communicate(timeout=kill_after_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                said, _ = process.communicate()
        self.resident_peak = max(self.resident_peak, memory.resident_peak)
        self.proportional_peak = max(self.proportional_peak, memory.proportional_peak)
        if process.returncode not in (0, -signal.SIGKILL):
            raise SystemExit(f"prepare ended with exit code {process.returncode}: {said}")
        return process.returncode == 0, said


def kept_at(state: Path) -> int:
    """When a run last kept what it had done; 0 for none."""
    try:
        return state.stat().st_mtime_ns
    except OSError:
        return 0


def kept_rows(state: Path) -> int:
    """Rows that a later run of the same command need not read again."""
    try:
        return int(json.loads(state.read_text(encoding="utf-8"))["state"]["tally"]["read"])
    except OSError:
        return 0


def hashes_of(folder: Path) -> dict[str, str]:
    """SHA-256 of every file, by its path in the folder."""
    out = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        with open(path, "rb") as file:
            out[str(path.relative_to(folder))] = hashlib.file_digest(file, "sha256").hexdigest()
    return out


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="percheron prepare, killed and gone on from, beside an undisturbed run")
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face model directory")
    parser.add_argument("--megabytes", type=int, default=100, help="of rows (default: %(default)s)")
    parser.add_argument("--chat-share", type=float, default=0.5,
                        help="of the bytes; the rest are rows of ready ids, which are faster (default: %(default)s)")
    parser.add_argument("--kills", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, help="of the moments (default: a new one, which is printed)")
    parser.add_argument("--shard-bytes", default="256M", help="as of percheron prepare (default: %(default)s)")
    parser.add_argument("--keep-period-s", type=float, default=5.0, help="(default: %(default)s, as the command has it)")
    parser.add_argument("--memory-limit", type=int, default=1000, metavar="MB",
                        help="of resident bytes together (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="where rows and shards are made (default: a temporary folder)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse(arguments)
    seed = random.randrange(1 << 30) if args.seed is None else args.seed
    print(f"seed {seed}", flush=True)
    draw = random.Random(seed)
    if args.folder:
        args.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        rows, undisturbed, killed = folder / "rows.jsonl", folder / "undisturbed", folder / "killed"
        write_mixed_rows(rows, args.megabytes * 1_000_000, seed=1, chat_share=args.chat_share)
        runs = Runs(args, rows)
        start = time.monotonic()
        _, said = runs.run(undisturbed / "set")
        seconds = time.monotonic() - start
        print(said, end="", flush=True)
        print(f"undisturbed: {seconds:.0f} s", flush=True)
        kills = 0
        for number in range(args.kills):
            # Most runs get nearer to the end; some are killed while they start.
            longest = seconds / (args.kills + 1)
            is_early = number % EARLY_PERIOD == EARLY_PERIOD - 1
            is_done, _ = runs.run(killed / "set", draw.uniform(0, min(longest, EARLY_S) if is_early else longest),
                                     from_kept=not is_early)
            if is_done and kills:
                break
            if is_done:  # Faster than the undisturbed run, so that nothing was killed.
                shutil.rmtree(killed)
                continue
            kills += 1
        else:
            runs.run(killed / "set")
        went_on_from = runs.went_on_from[1:]
        print(f"killed {kills} times; the runs went on behind rows {went_on_from}; "
              f"{time.monotonic() - start - seconds:.0f} s", flush=True)
        left, right = hashes_of(undisturbed), hashes_of(killed)
        for path, digest in left.items():
            print(f"{digest}  {path}: {'the same bytes' if right.get(path) == digest else 'OTHER BYTES'}")
        print(f"{rows.stat().st_size:,} bytes of rows; peak memory of all processes {runs.resident_peak / 1e6:,.0f} MB "
              f"resident, {runs.proportional_peak / 1e6:,.0f} MB with shared pages once", flush=True)
    if left != right:
        print("error: the bytes differ", file=sys.stderr)
    if runs.resident_peak > args.memory_limit * 1e6:
        print(f"error: more memory than {args.memory_limit} MB", file=sys.stderr)
    is_tried = kills > 0 and any(went_on_from)
    if not is_tried:
        print("error: no run went on from a killed one; give more --megabytes, or a shorter --keep-period-s",
              file=sys.stderr)
    return int(left != right or runs.resident_peak > args.memory_limit * 1e6 or not is_tried)


if __name__ == "__main__":
    sys.exit(main())
