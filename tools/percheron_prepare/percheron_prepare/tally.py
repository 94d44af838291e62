"""What became of the rows: counts, and the first rejected row of each reason."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

# Characters of a rejected row's reason in the table; the side file has all of it.
SHOWN_MAX = 300
# Names of ignored entries that are told apart, and the characters of one.
KEYS_MAX, KEY_SHOWN_MAX = 16, 40
KEY_NOTE, OTHER_KEYS = "entry that nothing is made of: ", "(others)"


@dataclass
class Tally:
    """`first_rejected`: where the first row of each reason stands, as FILE:LINE, and what was wrong with it."""

    read: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    first_rejected: dict[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def rejected_count(self) -> int:
        return sum(self.rejected.values())

    def reject(self, reason: str, where: str, why: str) -> None:
        self.rejected[reason] += 1
        self.first_rejected.setdefault(reason, (where, one_line(why)))

    def note_key(self, key: str, count: int = 1) -> None:
        """Counts rows with an entry that nothing was made of."""
        name = KEY_NOTE + one_line(key)[:KEY_SHOWN_MAX]
        if name not in self.notes and sum(note.startswith(KEY_NOTE) for note in self.notes) >= KEYS_MAX:
            name = KEY_NOTE + OTHER_KEYS
        self.notes[name] += count

    def add(self, later: Tally) -> None:
        """Adds what became of rows that follow those counted so far."""
        self.read += later.read
        self.rejected.update(later.rejected)
        for note, count in later.notes.items():
            if note.startswith(KEY_NOTE):
                self.note_key(note.removeprefix(KEY_NOTE), count)
            else:
                self.notes[note] += count
        for reason, first in later.first_rejected.items():
            self.first_rejected.setdefault(reason, first)

    def as_json(self) -> dict[str, Any]:
        return {"read": self.read, "rejected": dict(self.rejected), "notes": dict(self.notes),
                "first_rejected": {reason: list(first) for reason, first in self.first_rejected.items()}}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Tally:
        return cls(value["read"], Counter(value["rejected"]), Counter(value["notes"]),
                   {reason: (where, why) for reason, (where, why) in value["first_rejected"].items()})

    def table(self) -> Iterator[str]:
        """Lines for people: a reason and its count each."""
        for title, counts in (("rejected", self.rejected), ("noted", self.notes)):
            for reason, count in sorted(counts.items()):
                if not count:
                    continue
                yield f"  {title:9}{count:>8}  {reason}"
                if counts is self.rejected:
                    yield "    {}: {}".format(*self.first_rejected[reason])


def one_line(text: str) -> str:
    """Text that quotes a row, made fit for a table."""
    text = "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text.split()))
    return text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + " ..."
