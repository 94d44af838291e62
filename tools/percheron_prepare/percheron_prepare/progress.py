"""One line on a terminal, rewritten; elsewhere nothing, or a line now and then."""
from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO

PERIOD_S = 0.2
BAR_WIDTH = 20


class ProgressLine:
    """Shows how far a run is, how fast, and how long it still takes."""

    def __init__(self, total: int, verb: str = "prepare", stream: TextIO | None = None,
                 plain_period_s: float | None = None, now: Callable[[], float] = time.monotonic) -> None:
        """`total`: bytes, or whatever the work is counted in. `plain_period_s`: between lines where the stream is no
        terminal; None: no lines there."""
        self._stream = stream or sys.stderr
        self._is_terminal = self._stream.isatty()
        self._period = PERIOD_S if self._is_terminal else plain_period_s
        self._total, self._verb, self._now = max(total, 1), verb, now
        # Told by the first call: work that an earlier run did says nothing about this one's speed.
        self._first: tuple[float, int, int] | None = None
        self._next = 0.0

    def show(self, done: int, rows: int, tokens: int, rejected: int) -> None:
        now = self._now()
        if self._period is None or now < self._next:
            return
        if self._first is None:
            self._first = now, done, tokens
            # There is no speed yet, so a line that stays would say little.
            self._next = now if self._is_terminal else now + self._period
            if not self._is_terminal:
                return
        self._next = now + self._period
        since, done_before, tokens_before = self._first
        seconds, share = now - since, done / self._total
        rate = (done - done_before) / seconds if seconds > 0 else 0.0
        left = f"{clock((self._total - done) / rate)} left  " if rate > 0 else ""
        speed = f"  {(tokens - tokens_before) / seconds:,.0f} tokens/s" if seconds > 0 else ""
        bar = f"[{'#' * int(BAR_WIDTH * share):{BAR_WIDTH}}] " if self._is_terminal else ""
        line = (f"{self._verb} {bar}{100 * share:3.0f} %  {left}{rows:,} rows  {tokens:,} tokens{speed}"
                + (f"  {rejected:,} rejected" if rejected else ""))
        if self._is_terminal:
            self._stream.write("\r\x1b[K" + line[: shutil.get_terminal_size().columns - 1])
        else:
            self._stream.write(line + "\n")
        self._stream.flush()

    def close(self) -> None:
        if self._is_terminal:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


def clock(seconds: float) -> str:
    """h:mm:ss, or m:ss below an hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
