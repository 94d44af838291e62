"""One line on a terminal, rewritten; nothing elsewhere."""
from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO

PERIOD_S = 0.2
BAR_WIDTH = 20


class ProgressLine:
    """Shows how far a run is, how fast, and how long it still takes."""

    def __init__(self, total: int, verb: str = "prepare", stream: TextIO | None = None) -> None:
        """`total`: bytes, or whatever the work is counted in."""
        self._stream = stream or sys.stderr
        self._is_shown = self._stream.isatty()
        self._total, self._verb = max(total, 1), verb
        # Told by the first call: work that an earlier run did says nothing about this one's speed.
        self._first: tuple[float, int] | None = None
        self._next = 0.0

    def show(self, done: int, rows: int, tokens: int, rejected: int) -> None:
        now = time.monotonic()
        if not self._is_shown or now < self._next:
            return
        self._next = now + PERIOD_S
        self._first = self._first or (now, done)
        seconds, share = now - self._first[0], done / self._total
        rate = (done - self._first[1]) / seconds if seconds > 0 else 0.0
        left = f"{clock((self._total - done) / rate)} left  " if rate > 0 else ""
        bar = "#" * int(BAR_WIDTH * share)
        line = (f"{self._verb} [{bar:{BAR_WIDTH}}] {100 * share:3.0f} %  {left}{rows:,} rows  {tokens:,} tokens"
                + (f"  {rejected:,} rejected" if rejected else ""))
        self._stream.write("\r\x1b[K" + line[: shutil.get_terminal_size().columns - 1])
        self._stream.flush()

    def close(self) -> None:
        if self._is_shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


def clock(seconds: float) -> str:
    """h:mm:ss, or m:ss below an hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
