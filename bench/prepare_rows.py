"""Rows for measurements of data preparation."""
from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHATS = Path(__file__).resolve().parents[1] / "deploy" / "demo" / "data" / "conversations.jsonl"

# Of so many chats, one that cannot be used and one of hundreds of turns.
ODD_PERIOD, LONG_PERIOD = 1000, 20_000
LONG_CHATS = 300
# Tokens of a row of ready ids at most, all below the size of any vocabulary.
READY_TOKENS_MAX, READY_ID_MAX = 4000, 255


def chats(draw: random.Random) -> Iterator[dict[str, Any]]:
    """Chats of the demo in random order without end, each told apart by its number."""
    rows = [json.loads(line) for line in CHATS.read_text(encoding="utf-8").splitlines()]
    number = 0
    while True:
        row = draw.choice(rows)
        first, *rest = row["conversations"]
        first = {**first, "content": f"{first['content']} ({number})"}
        yield {**row, "id": number, "conversations": [first, *rest]}
        number += 1


def write_rows(path: Path, byte_count: int, seed: int) -> None:
    made = chats(random.Random(seed))
    written = 0
    with open(path, "wb") as out:
        while written < byte_count:
            written += out.write(line_of(next(made)))


def write_mixed_rows(path: Path, byte_count: int, seed: int, chat_share: float) -> None:
    """Chats and rows of ready ids. `chat_share`: of the bytes. Some chats cannot be used, and some have hundreds of
    turns."""
    draw = random.Random(seed)
    made = chats(draw)
    sizes = [0, 0]  # bytes of chats and of ready ids
    with open(path, "wb") as out:
        while sum(sizes) < byte_count:
            if chat_share * sizes[1] < (1 - chat_share) * sizes[0]:
                sizes[1] += out.write(line_of(ready_ids(draw)))
                continue
            row = next(made)
            if row["id"] % ODD_PERIOD == ODD_PERIOD - 1:
                row["conversations"] = row["conversations"][1:]  # begins with an answer
            elif row["id"] % LONG_PERIOD == LONG_PERIOD // 2:
                row["conversations"] += [turn for _ in range(LONG_CHATS) for turn in next(made)["conversations"]]
            sizes[0] += out.write(line_of(row))


def ready_ids(draw: random.Random) -> dict[str, Any]:
    prompt, answer = (draw.randrange(1, READY_TOKENS_MAX // 2) for _ in range(2))
    return {"input_ids": draw.choices(range(READY_ID_MAX + 1), k=prompt + answer), "loss_mask": [0] * prompt + [1] * answer}


def line_of(row: dict[str, Any]) -> bytes:
    return (json.dumps(row, ensure_ascii=False) + "\n").encode()
