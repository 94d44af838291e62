"""Finds the values of a JSON array, or of JSON values one after the other, in memory that does not grow with the file.

The text is read as Latin-1, so that characters are bytes: what JSON is made of is ASCII, and the values themselves are
decoded as UTF-8 later.
"""
from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import BinaryIO

from .source_row import BYTE_ORDER_MARK, ROW_BYTES_MAX

READ_BYTES = 1 << 20
# A fault closer than this to the end of what was read may be the read's own.
MARGIN_BYTES = 64

BETWEEN = re.compile(r"[ \t\r\n,]*")


class BadJson(Exception):
    """The file is no JSON: at which byte, and why."""

    def __init__(self, byte: int, why: str) -> None:
        super().__init__(f"at byte {byte}: {why}")


def skip_to_values(file: BinaryIO) -> tuple[int, bool]:
    """Places `file` at the first byte of its values; that byte's offset, and whether they stand in an array."""
    head = file.read(READ_BYTES)
    start = len(BYTE_ORDER_MARK) if head.startswith(BYTE_ORDER_MARK) else 0
    start += len(head[start:]) - len(head[start:].lstrip())
    is_array = head[start: start + 1] == b"["
    start += is_array
    file.seek(start)
    return start, is_array


def value_spans(file: BinaryIO, start: int, end: int | None, in_array: bool) -> Iterator[tuple[int, int, str]]:
    """Byte range and Latin-1 text of each value of `file`, which stands at byte `start`, up to byte `end`, the closing
    bracket or the file's end. Raises BadJson."""
    decoder = json.JSONDecoder()
    text, at, base, wanted, left = "", 0, start, READ_BYTES, None if end is None else end - start
    is_whole = False
    while True:
        if not is_whole:  # Read on behind what is not used yet.
            more = file.read(wanted if left is None else min(wanted, left))
            left = None if left is None else left - len(more)
            is_whole = not more or left == 0
            base, text, at = base + at, text[at:] + more.decode("latin-1"), 0
        while True:
            at = BETWEEN.match(text, at).end()  # type: ignore[union-attr]
            if at == len(text):
                break
            if in_array and text[at] == "]":
                require_nothing_behind(file, text[at + 1:], base + at + 1)
                return
            try:
                _, stop = decoder.raw_decode(text, at)
            except (ValueError, RecursionError) as error:
                position = getattr(error, "pos", at)
                is_cut = position > len(text) - MARGIN_BYTES or "Unterminated string" in str(error)
                if is_whole or not is_cut or len(text) - at > ROW_BYTES_MAX:
                    raise BadJson(base + position, getattr(error, "msg", str(error))) from error
                break
            if stop == len(text) and not is_whole:
                break  # A number might go on.
            yield base + at, base + stop, text[at:stop]
            at = stop
        if is_whole:
            if in_array and end is None:
                raise BadJson(base + len(text), "the array is not closed; the file was cut")
            return
        wanted = max(READ_BYTES, len(text) - at)  # Twice as much each time: a long value is not parsed too often.


def require_nothing_behind(file: BinaryIO, text: str, base: int) -> None:
    rest = text + file.read(READ_BYTES).decode("latin-1")
    if rest.strip(" \t\r\n"):
        raise BadJson(base, "more text follows the array")
