"""Token shards: safetensors files of packed samples, each written whole or not at all.

Tensors: `offsets` I64 [D+1] (sample d is tokens[offsets[d]:offsets[d+1]]), `id_offsets` I64 [D+1] and `ids` U8 (UTF-8
names of the samples), `tokens` U32 [N], `loss_mask` U8 [N]. Metadata: `format`, `passport` (JSON: what the tokens were
made with), `counts` and `options` (JSON, for people).
"""
from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .failure import Failure, reported

FORMAT = "percheron.tokens.v1"
DTYPES = {"int64": "I64", "uint32": "U32", "uint8": "U8"}
HEADER_BYTES_MAX = 100 << 20  # as the safetensors library


@dataclass(frozen=True)
class Tensor:
    """A vector whose bytes come in pieces, so that it need not fit into memory."""

    dtype: str
    shape: int
    byte_count: int
    pieces: Iterable[bytes]


def canonical_json(value: Any) -> str:
    """One text for one value, so that it can be hashed and compared."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def write_safetensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> int:
    """Writes tensors in the given order and returns the file's size. Widest first keeps each aligned to its own width.

    The file appears under its name when it is whole.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": tensor.dtype, "shape": [tensor.shape],
                        "data_offsets": [offset, offset + tensor.byte_count]}
        offset += tensor.byte_count
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % 8)
    partial = path.with_name(f"{path.name}.partial")
    with open(partial, "wb") as out:
        out.write(len(text).to_bytes(8, "little"))
        out.write(text)
        for tensor in tensors.values():
            for piece in tensor.pieces:
                out.write(piece)
        out.flush()
        size = out.tell()
        os.fsync(out.fileno())
    assert size == 8 + len(text) + offset
    os.replace(partial, path)
    sync_folder(path.parent)
    return size


def sync_folder(folder: Path) -> None:
    """Makes a rename in the folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_header(path: Path) -> tuple[dict[str, Any], dict[str, str], int]:
    """Tensors, metadata and the data's first byte of a safetensors file. Raises Failure."""
    damaged = "it was cut or damaged; make it again with percheron prepare"
    with reported("read", path, "give a token shard"), open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if length > min(size - 8, HEADER_BYTES_MAX):
            raise Failure(f"{path} is no safetensors file: its header would have {length} of {size} bytes; {damaged}")
        content = file.read(length)
    try:
        header = json.loads(content)
        metadata = header.pop("__metadata__", {})
        metadata = dict(metadata)
        end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise Failure(f"{path} is no safetensors file: its header is damaged; {damaged}") from error
    if size != 8 + length + end:
        raise Failure(f"{path} has {size} bytes, its header tells of {8 + length + end}; {damaged}")
    return header, metadata, 8 + length


def read_passport(path: Path) -> dict[str, Any] | None:
    """The passport of a shard, or None when there is no whole shard: none, a cut one, or bytes behind its end."""
    try:
        found: Any = json.loads(read_header(path)[1]["passport"])
    except (Failure, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, dict) else None


def read_shard(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Tensors, mapped read-only, and metadata of a safetensors file with the dtypes that shards use."""
    header, metadata, start = read_header(path)
    numpy_of = {name: np.dtype(kind).newbyteorder("<") for kind, name in DTYPES.items()}
    data = np.memmap(path, dtype=np.uint8, mode="r") if path.stat().st_size > start else np.zeros(start, np.uint8)
    tensors = {}
    if metadata.get("format") != FORMAT:
        raise Failure(f"{path} is no token shard: its metadata has format {metadata.get('format')!r}, expected "
                      f"{FORMAT!r}; make shards with percheron prepare")
    for name, entry in header.items():
        try:
            begin, end = entry["data_offsets"]
            tensors[name] = data[start + begin: start + end].view(numpy_of[entry["dtype"]]).reshape(entry["shape"])
        except (KeyError, TypeError, ValueError) as error:
            raise Failure(f"{path}: its header describes tensor {name!r} wrongly ({error}); make it again with "
                          "percheron prepare") from error
    return tensors, metadata
