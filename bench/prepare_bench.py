#!/usr/bin/env python3
"""How fast `percheron prepare` is beside the tokenizers library alone, on all cores, in one run.

    .venv/bin/python bench/prepare_bench.py --model models/smollm2-135m-instruct [--megabytes 64] [--rounds 3]

The library encodes the same chats, rendered beforehand and held in memory, in its own threads and without offsets,
which is the fastest way that it has. Ours is the whole command: reading, rendering, masks, shards. Both sides run in
turn; the best of the rounds counts. Peak memory is that of all processes together.
"""
from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "tools" / "percheron_prepare"
CHATS = ROOT / "deploy" / "demo" / "data" / "conversations.jsonl"
BATCH_TEXTS = 4096

sys.path.insert(0, str(PACKAGE))


def write_rows(path: Path, byte_count: int, seed: int) -> None:
    """Chats of the demo in random order, each told apart by its number."""
    rows = [json.loads(line) for line in CHATS.read_text(encoding="utf-8").splitlines()]
    draw = random.Random(seed)
    written = number = 0
    with open(path, "w", encoding="utf-8") as out:
        while written < byte_count:
            row = draw.choice(rows)
            first, *rest = row["conversations"]
            first = {**first, "content": f"{first['content']} ({number})"}
            row = {**row, "id": number, "conversations": [first, *rest]}
            written += out.write(json.dumps(row, ensure_ascii=False) + "\n")
            number += 1


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


def time_library(model_folder: Path, texts: list[str]) -> tuple[float, int]:
    """Seconds and tokens."""
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(str(model_folder / "tokenizer.json"))
    tokens = 0
    start = time.perf_counter()
    for at in range(0, len(texts), BATCH_TEXTS):
        encoded = tokenizer.encode_batch_fast(texts[at: at + BATCH_TEXTS], add_special_tokens=False)
        tokens += sum(map(len, encoded))
    return time.perf_counter() - start, tokens


def resident_bytes(pid: int) -> int:
    """Of a process and all its children."""
    total = 0
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
        total += pages * os.sysconf("SC_PAGE_SIZE")
        for task in Path(f"/proc/{pid}/task").iterdir():
            total += sum(map(resident_bytes, map(int, (task / "children").read_text(encoding="ascii").split())))
    except OSError:
        pass  # It has just ended.
    return total


def time_prepare(model_folder: Path, rows: Path, output: Path) -> tuple[float, int, int]:
    """Seconds, tokens and peak bytes of the whole command."""
    from percheron_prepare.shard_reader import open_shard, shard_paths
    command = [sys.executable, "-m", "percheron_prepare", "prepare", "--model", str(model_folder), "--input", str(rows),
               "--output", str(output)]
    peak = 0
    start = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        done = threading.Event()

        def watch() -> None:
            nonlocal peak
            while not done.wait(0.2):
                peak = max(peak, resident_bytes(process.pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        code = process.wait()
        seconds = time.perf_counter() - start
        done.set()
        watcher.join()
    if code:
        raise SystemExit(f"prepare ended with exit code {code}")
    return seconds, sum(len(open_shard(path).tokens) for path in shard_paths(output)), peak


def main() -> None:
    parser = argparse.ArgumentParser(description="percheron prepare beside the tokenizers library alone")
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face model directory")
    parser.add_argument("--megabytes", type=int, default=64, help="of rows (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="(default: %(default)s)")
    args = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.jsonl"
        write_rows(rows, args.megabytes * 1_000_000, args.seed)
        texts = rendered_texts(args.model, rows)
        alone, ours, peak = 0.0, 0.0, 0
        for number in range(args.rounds):
            seconds, tokens = time_library(args.model, texts)
            alone = max(alone, tokens / seconds)
            prepare_seconds, prepare_tokens, prepare_peak = time_prepare(args.model, rows, Path(folder) / "shards")
            ours, peak = max(ours, prepare_tokens / prepare_seconds), max(peak, prepare_peak)
            print(f"round {number + 1}: tokenizers alone {tokens / seconds:,.0f} tokens/s, prepare "
                  f"{prepare_tokens / prepare_seconds:,.0f} tokens/s", flush=True)
        cores = len(os.sched_getaffinity(0))
        print(f"{args.megabytes} MB, {len(texts):,} chats, {cores} cores: tokenizers alone {alone:,.0f} tokens/s, "
              f"prepare {ours:,.0f} tokens/s, {100 * ours / alone:.0f} % of it; peak memory {peak / 1e6:,.0f} MB")


if __name__ == "__main__":
    main()
