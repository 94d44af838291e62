"""Opens token shards, one or a folder, and checks that they are what the format says."""
from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .failure import Failure
from .findings import Report
from .output_paths import INDEX_NAME, SHARD_SUFFIX
from .sample_checks import Batch
from .shard import read_shard

LAYOUT = {"offsets": "int64", "tokens": "uint32", "loss_mask": "uint8"}
# Tokens that are checked at once.
BATCH_TOKENS = 4 << 20


@dataclass(frozen=True)
class Shard:
    """A shard, mapped. `names`: of the samples, empty texts where it carries none."""

    path: Path
    passport: dict[str, Any]
    options: dict[str, Any]
    offsets: np.ndarray
    tokens: np.ndarray
    mask: np.ndarray
    name_offsets: np.ndarray | None
    names: np.ndarray | None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def name(self, d: int) -> str:
        if self.name_offsets is None or self.names is None:
            return ""
        return bytes(self.names[self.name_offsets[d]: self.name_offsets[d + 1]]).decode("utf-8", "replace")

    def where(self, d: int) -> str:
        name = self.name(d)
        return f"{self.path} sample {d}" + (f" ({name})" if name else "")

    def batches(self) -> Iterator[Batch]:
        """The samples in batches of about BATCH_TOKENS."""
        begin = 0
        while begin < len(self):
            end = int(np.searchsorted(self.offsets, self.offsets[begin] + BATCH_TOKENS, side="right")) - 1
            end = min(max(end, begin + 1), len(self))
            first, last = int(self.offsets[begin]), int(self.offsets[end])
            yield Batch(self.offsets[begin: end + 1] - first, self.tokens[first:last], self.mask[first:last],
                        lambda d, begin=begin: self.where(begin + d))  # type: ignore[misc]
            begin = end


def shard_paths(path: Path) -> list[Path]:
    """The shard, or those of a folder in the order of their names, as training reads them. Raises Failure."""
    if not path.is_dir():
        return [path]
    found = sorted(p for p in path.iterdir() if p.suffix == SHARD_SUFFIX and not p.name.startswith("."))
    if not found:
        raise Failure(f"folder {path} holds no token shard (*{SHARD_SUFFIX}); make one with percheron prepare")
    return found


def open_shard(path: Path) -> Shard:
    """Raises Failure where the file is not what docs/formats.md says."""
    tensors, metadata = read_shard(path)
    for name, dtype in LAYOUT.items():
        if name not in tensors or tensors[name].dtype != dtype or tensors[name].ndim != 1:
            raise Failure(f"{path} has no vector {name!r} of {dtype}; make it again with percheron prepare")
    offsets, tokens, mask = (tensors[name] for name in LAYOUT)
    check_offsets(path, "offsets", offsets, len(tokens), 1)
    if len(mask) != len(tokens):
        raise Failure(f"{path}: loss_mask has {len(mask)} entries for {len(tokens)} tokens")
    if len(mask) and int(mask.max()) > 1:
        raise Failure(f"{path}: loss_mask has the value {int(mask.max())}, expected 0 or 1")
    name_offsets, names = tensors.get("id_offsets"), tensors.get("ids")
    if name_offsets is not None and names is not None:
        if len(name_offsets) != len(offsets):
            raise Failure(f"{path}: id_offsets has {len(name_offsets)} entries, offsets {len(offsets)}")
        check_offsets(path, "id_offsets", name_offsets, len(names), 0)
    try:
        passport, options = json.loads(metadata["passport"]), json.loads(metadata.get("options", "{}"))
        if not isinstance(passport, dict) or not isinstance(options, dict):
            raise TypeError("not an object")
    except (KeyError, TypeError, ValueError) as error:
        raise Failure(f"{path} has no passport in its metadata; make it again with percheron prepare") from error
    return Shard(path, passport, options, offsets, tokens, mask, name_offsets, names)


def check_offsets(path: Path, name: str, offsets: np.ndarray, end: int, length_min: int) -> None:
    if not len(offsets) or offsets[0] != 0 or offsets[-1] != end:
        raise Failure(f"{path}: {name} must go from 0 to {end}")
    bad = np.flatnonzero(np.diff(offsets) < length_min)
    if len(bad):
        d = int(bad[0])
        raise Failure(f"{path}: {name} of sample {d} go from {offsets[d]} to {offsets[d + 1]}, which must ascend")


def check_set(path: Path, shards: list[Shard], report: Report) -> None:
    """Whether the shards of a folder are those of its index, and were made alike."""
    for shard in shards[1:]:
        for field in ("tokenizer_hash", "template_hash", "vocab_size"):
            if shard.passport.get(field) != shards[0].passport.get(field):
                report.find("passports_differ", str(shard.path), 1, f"{field} is not that of {shards[0].path}")
    index = path / INDEX_NAME
    if not path.is_dir() or not index.exists():
        return
    try:
        listed = {entry["file"] for entry in json.loads(index.read_text(encoding="utf-8"))["shards"]}
    except (ValueError, KeyError, TypeError) as error:
        raise Failure(f"{index} is damaged; prepare the set again") from error
    there = {shard.path.name for shard in shards}
    for name in sorted(listed - there):
        report.find("missing_shard", str(path / name))
    for name in sorted(there - listed):
        report.find("unlisted_shard", str(path / name))
