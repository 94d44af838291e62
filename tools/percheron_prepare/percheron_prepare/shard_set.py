"""Writes samples as one shard or as a set of shards of limited size, in memory that does not grow with them.

Samples are appended to spool files until their shard is full; then the shard is composed of them. What was appended and
composed up to a `commit` is found again by a later process that passes its `state` to `resume`.
"""
from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .samples import Samples
from .shard import FORMAT, Tensor, canonical_json, sync_folder, write_safetensors

SHARD_NAME = "tokens-{:05d}.safetensors"
SPOOLS = ("tokens", "mask", "names", "lengths", "name_lengths")
PIECE_BYTES = 4 << 20
WORD_BYTES = 8
# What a sample adds to a shard besides its name: an id and a mask byte a token, and two offsets.
TOKEN_BYTES, OFFSETS_BYTES = 5, 16
# Room for the header, within --shard-bytes.
HEADER_ROOM_BYTES = 2048


@dataclass
class Counts:
    samples: int = 0
    tokens: int = 0
    supervised_tokens: int = 0


@dataclass
class SetState:
    """What is in the shards that are done, and in the spool files of the one that is not."""

    shards: list[dict[str, Any]] = field(default_factory=list)
    open_counts: Counts = field(default_factory=Counts)
    name_bytes: int = 0  # in the open shard

    def total(self) -> Counts:
        total = Counts(**vars(self.open_counts))
        for shard in self.shards:
            total.samples += shard["samples"]
            total.tokens += shard["tokens"]
            total.supervised_tokens += shard["supervised_tokens"]
        return total

    def as_json(self) -> dict[str, Any]:
        return {"shards": self.shards, "open_counts": vars(self.open_counts), "name_bytes": self.name_bytes}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SetState:
        return cls(list(value["shards"]), Counts(**value["open_counts"]), value["name_bytes"])


def spool_path(folder: Path, state: SetState, spool: str) -> Path:
    return folder / f"{len(state.shards):05d}.{spool}"


def spool_sizes(state: SetState) -> dict[str, int]:
    """Bytes of each spool file of the open shard."""
    counts = state.open_counts
    return {"tokens": 4 * counts.tokens, "mask": counts.tokens, "names": state.name_bytes,
            "lengths": WORD_BYTES * counts.samples, "name_lengths": WORD_BYTES * counts.samples}


def are_spools_whole(folder: Path, state: SetState) -> bool:
    """Whether everything lies there that `state` counts; opening what is shorter would fill it up with zeros."""
    return all(file_size(spool_path(folder, state, spool)) >= size for spool, size in spool_sizes(state).items())


def file_size(path: Path) -> int:
    """In bytes; 0 where nothing lies."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


class ShardSetWriter:
    """Writes to `folder`, as tokens-00000.safetensors and so on; without `shard_bytes`, as the first of them alone."""

    def __init__(self, folder: Path, spool_folder: Path, shard_bytes: int | None, metadata: Mapping[str, str],
                 state: SetState | None = None) -> None:
        """Goes on from `state`, and forgets what was written after it."""
        for made in (folder, spool_folder):
            made.mkdir(parents=True, exist_ok=True)
        self._folder, self._spool_folder, self._shard_bytes = folder, spool_folder, shard_bytes
        self._metadata = dict(metadata)
        self.state = state or SetState()
        self._spools: dict[str, BinaryIO] = {}
        # Spool files of composed shards: since the last commit, and before it.
        self._left: list[Path] = []
        self._unneeded: list[Path] = []
        self._open_spools(spool_sizes(self.state))

    def add(self, samples: Samples) -> None:
        """Appends samples; composes a shard whenever the next sample would not fit."""
        if not len(samples):
            return
        lengths = np.frombuffer(samples.lengths, dtype=np.int64)
        names = np.frombuffer(samples.name_lengths, dtype=np.int64)
        sizes = lengths * TOKEN_BYTES + names + OFFSETS_BYTES
        at = 0
        while at < len(samples):
            end = len(samples)
            if self._shard_bytes is not None:
                used = np.cumsum(sizes[at:]) + self._open_bytes()
                end = at + int(np.searchsorted(used, self._shard_bytes - HEADER_ROOM_BYTES, side="right"))
                if end == at and not self.state.open_counts.samples:
                    end += 1  # A sample longer than the limit has a shard of its own.
            if end > at:
                self._append(samples, lengths, names, at, end)
            if end < len(samples):
                self._compose()
            at = end

    def commit(self) -> SetState:
        """Makes durable what was added so far, and says how much that is."""
        for file in self._spools.values():
            file.flush()
            os.fsync(file.fileno())
        sync_folder(self._spool_folder)
        for path in self._unneeded:
            path.unlink(missing_ok=True)
        # The state that is in force until the caller has kept this one may still need these.
        self._unneeded, self._left = self._left, []
        return self.state

    def finish(self) -> None:
        """Composes the last shard."""
        if self.state.open_counts.samples:
            self._compose()
        self.close()

    def close(self) -> None:
        for file in self._spools.values():
            file.close()

    def _open_spools(self, sizes: Mapping[str, int]) -> None:
        for spool, size in sizes.items():
            self._spools[spool] = file = open(self._spool_path(spool), "ab")
            file.truncate(size)

    def _spool_path(self, spool: str) -> Path:
        return spool_path(self._spool_folder, self.state, spool)

    def _open_bytes(self) -> int:
        counts = self.state.open_counts
        return counts.tokens * TOKEN_BYTES + counts.samples * OFFSETS_BYTES + OFFSETS_BYTES + self.state.name_bytes

    def _append(self, samples: Samples, lengths: np.ndarray, names: np.ndarray, begin: int, end: int) -> None:
        first, first_name = int(lengths[:begin].sum()), int(names[:begin].sum())
        last, last_name = first + int(lengths[begin:end].sum()), first_name + int(names[begin:end].sum())
        mask = memoryview(samples.mask)[first:last]
        pieces = {"tokens": memoryview(samples.tokens)[first:last], "mask": mask,
                  "names": memoryview(samples.names)[first_name:last_name],
                  "lengths": memoryview(samples.lengths)[begin:end],
                  "name_lengths": memoryview(samples.name_lengths)[begin:end]}
        for spool, piece in pieces.items():
            self._spools[spool].write(piece)
        counts = self.state.open_counts
        counts.samples += end - begin
        counts.tokens += last - first
        counts.supervised_tokens += int(np.frombuffer(mask, dtype=np.uint8).sum(dtype=np.int64))
        self.state.name_bytes += last_name - first_name

    def _compose(self) -> None:
        """Writes the open shard and begins the next one."""
        for file in self._spools.values():
            file.flush()
        counts = self.state.open_counts
        path = self._folder / SHARD_NAME.format(len(self.state.shards))
        offsets_bytes = WORD_BYTES * (counts.samples + 1)
        tensors = {
            "offsets": Tensor("I64", counts.samples + 1, offsets_bytes, self._offsets("lengths")),
            "id_offsets": Tensor("I64", counts.samples + 1, offsets_bytes, self._offsets("name_lengths")),
            "tokens": Tensor("U32", counts.tokens, 4 * counts.tokens, self._pieces("tokens")),
            "loss_mask": Tensor("U8", counts.tokens, counts.tokens, self._pieces("mask")),
            "ids": Tensor("U8", self.state.name_bytes, self.state.name_bytes, self._pieces("names"))}
        metadata = {"format": FORMAT, **self._metadata, "counts": canonical_json(vars(counts))}
        size = write_safetensors(path, tensors, metadata)
        self.close()
        self._left += [self._spool_path(spool) for spool in SPOOLS]
        self.state.shards.append({"file": path.name, "bytes": size, **vars(counts)})
        self.state.open_counts, self.state.name_bytes = Counts(), 0
        self._open_spools(dict.fromkeys(SPOOLS, 0))

    def _pieces(self, spool: str) -> Iterator[bytes]:
        with open(self._spool_path(spool), "rb") as file:
            while piece := file.read(PIECE_BYTES):
                yield piece

    def _offsets(self, spool: str) -> Iterator[bytes]:
        """Sums of the lengths, from 0."""
        yield bytes(WORD_BYTES)
        total = 0
        for piece in self._pieces(spool):
            sums = np.cumsum(np.frombuffer(piece, dtype="<i8")) + total
            total = int(sums[-1])
            yield sums.astype("<i8").tobytes()
