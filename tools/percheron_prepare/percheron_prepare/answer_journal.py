"""Rows that are done, in the order in which they came to be done, in a file that a kill can't harm.

One line a row: a CRC-32 of the rest in hexadecimal, a blank, JSON. A line that a kill or a power cut left torn is the
first that does not fit its sum; it and what follows are cut off, and those rows are made again. Rows are named by their
ordinal: 0 for the first of the source.
"""
from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

SYNC_PERIOD_S = 5.0  # how much of a run a power cut may cost; a kill costs nothing that is written

Entry = dict[str, Any]


class AnswerJournal:
    """Appends entries, and gives them back in the order of the source. `first_missing`: all ordinals below are done."""

    def __init__(self, path: Path, clock: Callable[[], float], recovered: Callable[[Entry], None]) -> None:
        """Calls `recovered` with each entry that an earlier run left. Raises OSError."""
        self.path = path
        self._clock = clock
        self._synced_at = clock()
        self.first_missing = 0
        self._ahead: set[int] = set()
        path.touch()
        with open(path, "rb") as file:
            end = 0
            for entry, end in whole_lines(file):
                self._mark(entry["ordinal"])
                recovered(entry)
        # Unbuffered: what is written survives a kill.
        self._file = open(path, "ab", buffering=0)
        self._file.truncate(end)

    def __contains__(self, ordinal: int) -> bool:
        return ordinal < self.first_missing or ordinal in self._ahead

    def append(self, ordinal: int, entry: Entry) -> None:
        """Keeps the entry of a row that is not done yet. Raises OSError."""
        assert ordinal not in self, f"row {ordinal} is done already"
        text = json.dumps({"ordinal": ordinal, **entry}, ensure_ascii=False).encode("utf-8")
        line = b"%08x %s\n" % (zlib.crc32(text), text)
        while line:
            line = line[self._file.write(line):]
        self._mark(ordinal)
        if self._clock() - self._synced_at > SYNC_PERIOD_S:
            self.sync()

    def sync(self) -> None:
        os.fsync(self._file.fileno())
        self._synced_at = self._clock()

    def close(self) -> None:
        self._file.close()

    def in_order(self) -> Iterator[Entry]:
        """All entries by ordinal. Holds places, not entries, of those that come before their turn."""
        expected, places = 0, {}
        with open(self.path, "rb") as file, open(self.path, "rb") as early:
            begin = 0
            for entry, end in whole_lines(file):
                places[entry["ordinal"]] = begin
                begin = end
                if entry["ordinal"] != expected:
                    continue
                while expected in places:
                    place = places.pop(expected)
                    if expected != entry["ordinal"]:
                        early.seek(place)
                        entry, _ = next(whole_lines(early))
                    yield entry
                    expected += 1
        assert not places, f"row {expected} is missing"

    def _mark(self, ordinal: int) -> None:
        self._ahead.add(ordinal)
        while self.first_missing in self._ahead:
            self._ahead.remove(self.first_missing)
            self.first_missing += 1


def whole_lines(file: BinaryIO) -> Iterator[tuple[Entry, int]]:
    """Entries with the offset at which each ends, relative to the file's place, up to the first line that is torn."""
    end = 0
    for line in file:
        summed, _, text = line.rstrip(b"\n").partition(b" ")
        if not line.endswith(b"\n") or summed != b"%08x" % zlib.crc32(text):
            return
        end += len(line)
        yield json.loads(text), end
