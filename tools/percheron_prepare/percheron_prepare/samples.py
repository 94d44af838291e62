"""Samples between the processes that make them and the one that writes them."""
from __future__ import annotations

from array import array
from dataclasses import dataclass, field


@dataclass
class Samples:
    """Samples end to end: U32 ids, a mask of 0 and 1, UTF-8 names, and how long each sample and name is."""

    tokens: array[int] = field(default_factory=lambda: array("I"))
    mask: bytearray = field(default_factory=bytearray)
    names: bytearray = field(default_factory=bytearray)
    lengths: array[int] = field(default_factory=lambda: array("q"))
    name_lengths: array[int] = field(default_factory=lambda: array("q"))

    def __len__(self) -> int:
        return len(self.lengths)

    def add(self, name: str, ids: list[int], mask: list[int]) -> None:
        """`mask` has one 0 or 1 per id."""
        assert len(ids) == len(mask) and ids
        encoded = name.encode("utf-8")
        self.tokens.extend(ids)
        self.mask.extend(mask)
        self.names.extend(encoded)
        self.lengths.append(len(ids))
        self.name_lengths.append(len(encoded))
