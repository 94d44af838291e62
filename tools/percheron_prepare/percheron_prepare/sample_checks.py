"""Checks of samples: token ids with a loss mask, as shards have them."""
from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .findings import Report
from .seen_hashes import SeenHashes, bytes_hash


# Of all answers, those that must end with one token for it to be taken as the end of a turn.
GUESS_SHARE_MIN = 0.2


class Copies(enum.Enum):
    """Which duplicates count."""

    OF_ROWS = "rows"
    OF_SAMPLES = "samples"


@dataclass(frozen=True)
class TokenFacts:
    """What is known of the tokens' meaning: nothing (None) without the model."""

    vocab_size: int | None = None
    bos: int | None = None
    end_of_turn: frozenset[int] | None = None


@dataclass(frozen=True)
class Batch:
    """Samples end to end. `where` names sample d for people."""

    offsets: np.ndarray  # I64 [D+1], from 0
    tokens: np.ndarray  # U32 [N]
    mask: np.ndarray  # U8 [N]
    where: Callable[[int], str]

    def __len__(self) -> int:
        return len(self.offsets) - 1


class SampleChecks:
    """Adds what it finds to a report. What tokens mean is guessed from the first batch where no model tells.

    Copies are told by 64 bits of a hash; with `Copies.OF_ROWS` somebody else has looked for them.
    """

    def __init__(self, report: Report, facts: TokenFacts, copies: Copies) -> None:
        self._report = report
        self._facts = facts
        self._end: frozenset[int] | None = facts.end_of_turn
        self._bos: int | None = facts.bos
        self._is_guessed = False
        self._copies = copies
        self._seen = SeenHashes()

    def add(self, batch: Batch) -> None:
        if not len(batch):
            return
        starts, ends = batch.offsets[:-1], batch.offsets[1:]
        supervised = np.add.reduceat(batch.mask, starts, dtype=np.int64)
        lengths = ends - starts
        report = self._report
        report.samples += len(batch)
        report.tokens += int(lengths.sum())
        report.supervised_tokens += int(supervised.sum())
        report.lengths.update(Counter(lengths.tolist()))
        self._guess(batch)
        self._find("no_supervision", batch, np.flatnonzero(supervised == 0))
        self._find("everything_supervised", batch, np.flatnonzero((supervised == lengths) & (lengths > 1)))
        self._check_vocabulary(batch)
        self._check_bos(batch, starts, lengths)
        self._check_answers(batch)
        if self._copies is Copies.OF_SAMPLES:
            self._check_copies(batch)

    def finish(self) -> None:
        self._seen.report(self._report, "samples")

    def _find(self, check: str, batch: Batch, samples: np.ndarray, detail: str = "") -> None:
        """`samples`: the numbers of those found, ascending; one may stand several times."""
        if len(samples):
            self._report.find(check, batch.where(int(samples[0])), len(samples), detail)

    def _guess(self, batch: Batch) -> None:
        """The tokens that most answers end with and most samples begin with."""
        if self._is_guessed:
            return
        self._is_guessed = True
        _, ends = runs_of(batch)
        if self._end is None and len(ends):
            token, count = Counter(batch.tokens[ends].tolist()).most_common(1)[0]
            self._end = frozenset([token]) if count >= GUESS_SHARE_MIN * len(ends) else frozenset()
            if not self._end:
                self._report.find("end_of_turn_unknown", self._report.name)
        if self._bos is None:
            token, count = Counter(batch.tokens[batch.offsets[:-1]].tolist()).most_common(1)[0]
            self._bos = token if 2 * count > len(batch) else None

    def _check_vocabulary(self, batch: Batch) -> None:
        if self._facts.vocab_size is None:
            return
        bad = np.flatnonzero(batch.tokens >= self._facts.vocab_size)
        if len(bad):
            detail = f"id {int(batch.tokens[bad[0]])}, the vocabulary has {self._facts.vocab_size}"
            self._find("id_out_of_range", batch, np.unique(samples_at(batch, bad)), detail)

    def _check_bos(self, batch: Batch, starts: np.ndarray, lengths: np.ndarray) -> None:
        if self._bos is None:
            return
        longer = np.flatnonzero(lengths > 1)
        first, second = batch.tokens[starts[longer]], batch.tokens[starts[longer] + 1]
        self._find("double_bos", batch, longer[(first == self._bos) & (second == self._bos)])
        if self._facts.bos is not None and self._facts.bos not in (self._end or ()):
            inside = np.flatnonzero(batch.tokens == self._bos)
            samples = samples_at(batch, inside)
            self._find("bos_inside", batch, np.unique(samples[inside > starts[samples] + 1]))

    def _check_answers(self, batch: Batch) -> None:
        starts, ends = runs_of(batch)
        if not self._end or not len(ends):
            return
        end_ids = np.array(sorted(self._end), dtype=np.int64)
        is_end = np.isin(batch.tokens, end_ids)
        closed = is_end[ends]
        samples = samples_at(batch, ends)
        self._find("empty_answer", batch, samples[closed & (starts == ends)])
        last = batch.offsets[samples + 1] - 1
        # An end of turn not far before: the run goes on behind it.
        behind = np.zeros(len(ends), dtype=bool)
        for back in (1, 2):
            inside = ends - back >= starts
            behind |= ~closed & inside & is_end[np.maximum(ends - back, 0)]
        cut = ~closed & ~behind & (ends == last)
        self._find("supervised_behind_end_of_turn", batch, samples[behind])
        self._find("answer_cut", batch, samples[cut])
        self._find("missing_end_of_turn", batch, samples[~closed & ~behind & ~cut])

    def _check_copies(self, batch: Batch) -> None:
        content = batch.tokens.astype("<u4", copy=False).tobytes()
        offsets = batch.offsets.tolist()
        for d, (begin, end) in enumerate(zip(offsets, offsets[1:])):
            if self._seen.is_copy(bytes_hash(content[4 * begin: 4 * end]), lambda: batch.where(d)):
                self._report.find("duplicate", batch.where(d))


def runs_of(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """First and last positions of supervised runs; none goes over the end of a sample."""
    mask = batch.mask == 1
    before, after = np.zeros_like(mask), np.zeros_like(mask)
    before[1:], after[:-1] = mask[:-1], mask[1:]
    before[batch.offsets[:-1]] = False
    after[batch.offsets[1:] - 1] = False
    return np.flatnonzero(mask & ~before), np.flatnonzero(mask & ~after)


def samples_at(batch: Batch, positions: np.ndarray) -> np.ndarray:
    """The samples in which positions lie."""
    return np.searchsorted(batch.offsets, positions, side="right") - 1
