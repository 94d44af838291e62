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

    def __init__(self, bytes_total: int, bytes_before: int = 0, stream: TextIO = sys.stderr) -> None:
        """`bytes_before`: of the source, done by an earlier run."""
        self._stream, self._is_shown = stream, stream.isatty()
        self._total, self._before = max(bytes_total, 1), bytes_before
        self._start = time.monotonic()
        self._next = 0.0

    def show(self, bytes_done: int, rows: int, tokens: int, rejected: int) -> None:
        now = time.monotonic()
        if not self._is_shown or now < self._next:
            return
        self._next = now + PERIOD_S
        share = bytes_done / self._total
        rate = (bytes_done - self._before) / max(now - self._start, 1e-3)
        left = f"{clock((self._total - bytes_done) / rate)} left" if rate > 0 else ""
        bar = "#" * int(BAR_WIDTH * share)
        line = (f"prepare [{bar:{BAR_WIDTH}}] {100 * share:3.0f} %  {left}  {rate / 1e6:.1f} MB/s  {rows:,} rows  "
                f"{tokens:,} tokens  {rejected:,} rejected")
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
