"""One row of a source as it stands in the file, and its JSON object."""
from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

ROW_BYTES_MAX = 256 << 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Rejected(Exception):
    """A row that is left out: a short reason that is counted, and a detail for the side file."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


def json_kind(value: Any) -> str:
    """What JSON calls a value that is no object."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return {str: "string", list: "array"}.get(type(value), "number")


def unusable_text(error: RecursionError | UnicodeError) -> Rejected:
    """What a row is refused with that is nested too deep, or holds text that is no Unicode."""
    return Rejected("nested_too_deep" if isinstance(error, RecursionError) else "bad_text", str(error))


@contextmanager
def unusable_text_rejected() -> Iterator[None]:
    """Refuses the row that the block is about where it can't be understood or written."""
    try:
        yield
    except (RecursionError, UnicodeError) as error:
        raise unusable_text(error) from error


@dataclass(frozen=True)
class SourceRow:
    """`content` is JSON text, or the object itself where the file holds no text (Parquet)."""

    number: int  # its line, else its place in the file, from 1
    byte_offset: int | None
    content: bytes | dict[str, Any]
    is_ended: bool = True  # False: a last line without a line end, which may have been cut

    def parsed(self) -> tuple[dict[str, Any], bool]:
        """The row's JSON object, and whether lone surrogates in it were replaced. Raises Rejected."""
        if isinstance(self.content, dict):
            return self.content, False
        if not self.content:
            raise Rejected("row_too_long", f"more than {ROW_BYTES_MAX} bytes")
        try:
            text = self.content.decode("utf-8")
            value = json.loads(text)
        except UnicodeDecodeError as error:
            raise Rejected("bad_utf8", f"byte {(self.byte_offset or 0) + error.start}") from error
        except (ValueError, RecursionError) as error:
            reason = "bad_json" if self.is_ended else "cut_last_line"
            raise Rejected(reason, f"{error}, the row begins at byte {self.byte_offset}") from error
        if not isinstance(value, dict):
            raise Rejected("not_an_object", f"a JSON {json_kind(value)}")
        if "\\ud" not in text and "\\uD" not in text:
            return value, False
        repaired = replace_surrogates(value)
        return repaired, repaired != value


def replace_surrogates(value: Any) -> Any:
    """The value with every lone surrogate, which no UTF-8 text can have, replaced by U+FFFD."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [replace_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {replace_surrogates(key): replace_surrogates(item) for key, item in value.items()}
    return value


def row_id(row: dict[str, Any], number: int) -> str:
    """The row's id as text; rows without one are named by their place."""
    value = row.get("id")
    if value is None or isinstance(value, (dict, list)):
        return f"line-{number}"
    return str(value)


def rejected_entry(row: SourceRow, error: Rejected) -> dict[str, Any]:
    """A line of the side file. `row` is the row itself where it was JSON, else its text."""
    value: Any = row.content
    if isinstance(value, bytes):
        text = value.decode("utf-8", "replace")
        try:
            value = json.loads(text)
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except (ValueError, RecursionError):
            value = text
    name = row_id(value, row.number) if isinstance(value, dict) else f"line-{row.number}"
    return {"line": row.number, "byte_offset": row.byte_offset, "id": name, "reason": error.reason,
            "detail": error.detail, "row": value}
