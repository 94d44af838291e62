"""Reads rows of JSONL, JSON and Parquet files, in blocks that can be read apart from each other and in any order.

Blocks depend on the files only, never on how many processes read them.
"""
from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from .failure import READ_AGAIN, Failure, Interrupted, reported
from .json_values import BadJson, skip_to_values, value_spans
from .parquet import ParquetReader, row_group_sizes
from .source_row import BYTE_ORDER_MARK, ROW_BYTES_MAX, SourceRow

BLOCK_BYTES = 1 << 20
BLOCK_ROWS = 256  # of a Parquet file

READABLE = "give a JSONL, JSON or Parquet file that can be read"
COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "Zstandard", b"PK\x03\x04": "zip", b"BZh": "bzip2",
              b"\xfd7zXZ": "xz"}


class Kind(enum.Enum):
    LINES = "JSONL"
    VALUES = "JSON"  # an array, or values one after the other
    PARQUET = "Parquet"


@dataclass(frozen=True)
class Block:
    """Bytes [begin, end) of a file, whole rows; of a Parquet file, rows [begin, end) of a row group."""

    file: int
    begin: int
    end: int
    first_number: int  # of its first row
    file_bytes: int  # how far the file is read with it, for progress
    group: int = 0


@dataclass(frozen=True)
class SourceFile:
    """`stamp` tells whether the file changed since it was opened."""

    path: Path
    kind: Kind
    stamp: tuple[int, int, int]


@dataclass(frozen=True)
class Source:
    """Files that are read one after the other. `hash` is the SHA-256 of the file, or of the files' hashes."""

    files: tuple[SourceFile, ...]
    blocks: tuple[Block, ...]
    hash: str
    byte_count: int


def stamp_of(path: Path) -> tuple[int, int, int]:
    with reported("read", path, READABLE):
        found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def check_unchanged(source: Source) -> None:
    """Raises Failure where a file is not the one that was opened: its rows may be of both."""
    for file in source.files:
        if stamp_of(file.path) != file.stamp:
            raise Failure(f"{file.path} changed while it was being read; run the command again when nothing writes to it")


def kind_of(path: Path) -> Kind:
    """Told by the content where the suffix does not say JSONL. Raises Failure."""
    with reported("read", path, READABLE), open(path, "rb") as file:
        head = file.read(1 << 16)
    if head.startswith(b"PAR1"):
        return Kind.PARQUET
    packer = next((name for magic, name in COMPRESSED.items() if head.startswith(magic)), None)
    if packer:
        raise Failure(f"{path} is compressed with {packer}; unpack it first")
    if path.suffix == ".parquet":
        raise Failure(f"{path} is no Parquet file: it does not begin with PAR1; copy the file again")
    if path.suffix in (".jsonl", ".ndjson"):
        return Kind.LINES
    text = head.removeprefix(BYTE_ORDER_MARK).lstrip()
    if text.startswith(b"["):
        return Kind.VALUES
    first, ending, _ = text.partition(b"\n")
    return Kind.LINES if not ending or is_json(first) else Kind.VALUES if text.startswith(b"{") else Kind.LINES


def is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def open_source(paths: Sequence[Path]) -> Source:
    """Reads all files once: their hashes, and where blocks begin. Raises Failure."""
    files, hashes, byte_count = [], [], 0
    blocks: list[Block] = []
    for number, path in enumerate(paths):
        files.append(SourceFile(path, kind_of(path), stamp_of(path)))
        with reported("read", path, READABLE), open(path, "rb") as file:
            if files[-1].kind is Kind.LINES:
                digest, found = index_lines(file, number)
            else:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                file.seek(0)
                found = index_rows(files[-1], file, number)
        hashes.append(digest)
        blocks.extend(Block(b.file, b.begin, b.end, b.first_number, byte_count + b.file_bytes, b.group) for b in found)
        byte_count += path.stat().st_size
    whole = hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()
    return Source(tuple(files), tuple(blocks), whole, byte_count)


def index_lines(file: BinaryIO, number: int) -> tuple[str, list[Block]]:
    """The file's hash, and blocks that begin at the first line break behind each multiple of BLOCK_BYTES."""
    digest = hashlib.sha256()
    begins = [(0, 1)]
    offset = line_breaks = 0
    while chunk := file.read(BLOCK_BYTES):
        digest.update(chunk)
        at = chunk.find(b"\n") if offset else -1
        if at >= 0:
            begins.append((offset + at + 1, line_breaks + 2))
        line_breaks += chunk.count(b"\n")
        offset += len(chunk)
    ends = [begin for begin, _ in begins[1:]] + [offset]
    return digest.hexdigest(), [Block(number, begin, end, line, end) for (begin, line), end in zip(begins, ends)
                                if begin < end]


def index_rows(source: SourceFile, file: BinaryIO, number: int) -> list[Block]:
    if source.kind is Kind.PARQUET:
        return index_row_groups(source.path, number)
    blocks = []
    try:
        start, in_array = skip_to_values(file)
        begin, end, first, count = start, start, 1, 0
        for first_byte, end, _ in value_spans(file, start, None, in_array):
            begin = first_byte if count + 1 == first else begin
            count += 1
            if end - begin >= BLOCK_BYTES:
                blocks.append(Block(number, begin, end, first, end))
                first = count + 1
    except BadJson as error:
        raise Failure(f"{source.path} is no JSON, {error}; mend the file, or give one JSON object a line") from error
    if count >= first:
        blocks.append(Block(number, begin, end, first, end))
    return blocks


def index_row_groups(path: Path, number: int) -> list[Block]:
    sizes = row_group_sizes(path)
    size, total, before = path.stat().st_size, max(sum(sizes), 1), 0
    blocks = []
    for group, rows in enumerate(sizes):
        for begin in range(0, rows, BLOCK_ROWS):
            end = min(begin + BLOCK_ROWS, rows)
            blocks.append(Block(number, begin, end, before + begin + 1, size * (before + end) // total, group))
        before += rows
    return blocks


class BlockReader:
    """Reads blocks of a source; ascending ones fastest."""

    def __init__(self, files: Sequence[SourceFile]) -> None:
        self._files = files
        self._parquet: tuple[int, ParquetReader] | None = None

    def rows(self, block: Block) -> Iterator[SourceRow]:
        source = self._files[block.file]
        if source.kind is Kind.PARQUET:
            yield from self._parquet_rows(source.path, block)
            return
        with reported("read", source.path, READ_AGAIN, Interrupted), open(source.path, "rb") as file:
            file.seek(block.begin)
            yield from lines_of(file, block) if source.kind is Kind.LINES else values_of(file, block)

    def _parquet_rows(self, path: Path, block: Block) -> Iterator[SourceRow]:
        if self._parquet is None or self._parquet[0] != block.file:
            self._parquet = block.file, ParquetReader(path, BLOCK_ROWS)
        for i, row in enumerate(self._parquet[1].rows(block.group, block.begin)):
            yield SourceRow(block.first_number + i, None, row)


def lines_of(file: BinaryIO, block: Block) -> Iterator[SourceRow]:
    """The block's non-blank lines, without byte-order mark and line ends. One over ROW_BYTES_MAX comes empty."""
    offset, number = block.begin, block.first_number
    while offset < block.end:
        raw = file.readline(ROW_BYTES_MAX)
        if not raw:
            return
        start, line = offset, number
        offset, number = offset + len(raw), number + 1
        ends = raw.endswith(b"\n")
        if not ends and len(raw) == ROW_BYTES_MAX:
            offset += skip_line(file)
            yield SourceRow(line, start, b"")
            continue
        if start == 0:
            raw = raw.removeprefix(BYTE_ORDER_MARK)
        if raw.strip():
            yield SourceRow(line, start, raw.rstrip(b"\r\n"), ends)


def skip_line(file: BinaryIO) -> int:
    """Reads to the line's end and returns how many bytes that took."""
    skipped = 0
    while rest := file.readline(ROW_BYTES_MAX):
        skipped += len(rest)
        if rest.endswith(b"\n"):
            break
    return skipped


def values_of(file: BinaryIO, block: Block) -> Iterator[SourceRow]:
    for i, (begin, _, text) in enumerate(value_spans(file, block.begin, block.end, in_array=False)):
        yield SourceRow(block.first_number + i, begin, text.encode("latin-1"))
