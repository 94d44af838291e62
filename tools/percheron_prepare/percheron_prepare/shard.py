"""Token shards: one safetensors file of packed samples, written whole or not at all.

Tensors: `offsets` I64 [D+1] (sample d is tokens[offsets[d]:offsets[d+1]]), `id_offsets` I64 [D+1] and `ids` U8 (UTF-8
names of the samples), `tokens` U32 [N], `loss_mask` U8 [N]. Metadata: `format`, `passport` (JSON: what the tokens were
made with), `counts` and `options` (JSON, for people).
"""
from __future__ import annotations

import json
import os
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

FORMAT = "percheron.tokens.v1"
DTYPES = {"int64": "I64", "uint32": "U32", "uint8": "U8"}


class ShardWriter:
    """Collects samples in memory and writes them as one shard."""

    def __init__(self) -> None:
        self._tokens = array("I")
        self._mask = bytearray()
        self._ids = bytearray()
        self._offsets = [0]
        self._id_offsets = [0]
        self.supervised = 0

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @property
    def token_count(self) -> int:
        return len(self._tokens)

    def add(self, name: str, ids: list[int], mask: list[int]) -> None:
        """Adds a sample. `mask` has one 0 or 1 per id."""
        assert len(ids) == len(mask) and ids
        self._tokens.extend(ids)
        self._mask.extend(mask)
        self._ids.extend(name.encode("utf-8"))
        self._offsets.append(len(self._tokens))
        self._id_offsets.append(len(self._ids))
        self.supervised += sum(mask)

    def counts(self) -> dict[str, int]:
        return {"samples": len(self), "tokens": self.token_count, "supervised_tokens": self.supervised}

    def write(self, path: Path, passport: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        """Writes the shard."""
        tensors: dict[str, np.ndarray] = {
            "offsets": np.array(self._offsets, dtype=np.int64),
            "id_offsets": np.array(self._id_offsets, dtype=np.int64),
            "tokens": np.array(self._tokens, dtype=np.uint32),
            "loss_mask": np.frombuffer(bytes(self._mask), dtype=np.uint8),
            "ids": np.frombuffer(bytes(self._ids), dtype=np.uint8),
        }
        metadata = {"format": FORMAT, "passport": canonical_json(passport),
                    "counts": canonical_json(self.counts()), "options": canonical_json(options)}
        write_safetensors(path, tensors, metadata)


def canonical_json(value: Any) -> str:
    """One text for one value, so that it can be hashed and compared."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Writes tensors in the given order. Widest first keeps each aligned to its own width."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, data in tensors.items():
        header[name] = {"dtype": DTYPES[str(data.dtype)], "shape": list(data.shape),
                        "data_offsets": [offset, offset + data.nbytes]}
        offset += data.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % 8)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb") as out:
            out.write(len(text).to_bytes(8, "little"))
            out.write(text)
            for data in tensors.values():
                out.write(data.astype(data.dtype.newbyteorder("<"), copy=False).tobytes())
            out.flush()
            os.fsync(out.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes a rename in the folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_passport(path: Path) -> dict[str, Any] | None:
    """The passport of a shard, or None when there is no whole shard: none, a cut one, or bytes behind its end."""
    try:
        with open(path, "rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(header_bytes))
            size = os.fstat(file.fileno()).st_size
        metadata = header.pop("__metadata__")
        end = max(entry["data_offsets"][1] for entry in header.values())
        found: dict[str, Any] = json.loads(metadata["passport"])
        return found if size == 8 + header_bytes + end else None
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, MemoryError):
        return None


def read_shard(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Tensors and metadata of a safetensors file with the dtypes that shards use."""
    numpy_of = {name: np.dtype(kind) for kind, name in DTYPES.items()}
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    metadata = header.pop("__metadata__", {})
    tensors = {name: np.frombuffer(data[slice(*entry["data_offsets"])], dtype=numpy_of[entry["dtype"]])
               .reshape(entry["shape"]) for name, entry in header.items()}
    return tensors, metadata
