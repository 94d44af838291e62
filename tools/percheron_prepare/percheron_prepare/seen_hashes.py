"""Tells copies by their hashes, in memory that has a limit."""
from __future__ import annotations

import hashlib
from collections.abc import Callable

from .findings import Report

# About 100 bytes each.
HASHES_MAX = 1 << 21


def bytes_hash(content: bytes) -> int:
    """64 evenly spread bits, the same in every run: which share is looked at does not change."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


class SeenHashes:
    """Remembers every hash up to a limit. From then on, and from each time that the limit is reached again, half of
    those before: the ones whose lowest bits are zero, so that all copies of a thing are remembered or none is."""

    def __init__(self, hashes_max: int | None = None) -> None:
        """`hashes_max`: HASHES_MAX unless it is given."""
        self._hashes_max = HASHES_MAX if hashes_max is None else hashes_max
        self._seen: set[int] = set()
        self._skipped_bits = 0  # a mask
        self._sampled_from = ""

    def is_copy(self, key: int, where: Callable[[], str]) -> bool:
        """Whether `key`, evenly spread 64 bits, was seen before. `where` names its place for people."""
        if key & self._skipped_bits:
            return False
        if key in self._seen:
            return True
        self._seen.add(key)
        while len(self._seen) > self._hashes_max:
            self._sampled_from = self._sampled_from or where()
            self._skipped_bits = 2 * self._skipped_bits + 1
            self._seen = {kept for kept in self._seen if not kept & self._skipped_bits}
        return False

    def report(self, report: Report, things: str) -> None:
        """Says from where on it was a sample, if it became one."""
        if self._sampled_from:
            report.find("copies_sampled", self._sampled_from, 1,
                        f"in the end 1 of {self._skipped_bits + 1} {things} was compared with those before")
