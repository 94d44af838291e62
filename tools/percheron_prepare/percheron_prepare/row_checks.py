"""Checks of rows as they stand in a source, and of the samples that a model makes of them."""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from .findings import Report
from .model import Model
from .options import Options
from .row_encoder import RowEncoder
from .rows import Chat, Parsed, Prompt, TextRow, TokenRow, content_hash, parse_row
from .sample_checks import Batch, SampleChecks
from .samples import Samples
from .seen_hashes import SeenHashes, bytes_hash
from .source import BlockReader, Source
from .source_row import Rejected, SourceRow, unusable_text

# Tokens that are checked at once.
BATCH_TOKENS = 1 << 20


class RowChecks:
    """Adds what it finds in rows to a report; with an encoder, in their samples too."""

    def __init__(self, report: Report, model: Model | None, options: Options, checks: SampleChecks) -> None:
        self._report = report
        self._encoder = RowEncoder(model, options) if model else None
        self._checks = checks
        self._seen = SeenHashes()
        self._ids = SeenHashes()
        self._samples = Samples()
        self._wheres: list[str] = []
        report.rows = 0
        report.unit = "tokens" if model else "characters"

    def add(self, path: Path, row: SourceRow) -> None:
        report, where = self._report, f"{path}:{row.number}"
        assert report.rows is not None
        report.rows += 1
        try:
            value, repaired = row.parsed()
            report.find("lone_surrogates_replaced", where, int(repaired))
            parsed = parse_row(value, row.number)
            self._check(parsed, where)
            if value.get("id") is not None:
                self._check_id(str(value["id"]), where)
            if self._encoder:
                self._encode(self._encoder, parsed, where)
        except Rejected as error:
            report.find(error.reason, where, detail=error.detail)
        except (RecursionError, UnicodeError) as error:
            refused = unusable_text(error)
            report.find(refused.reason, where, detail=refused.detail)

    def finish(self) -> None:
        self._check_samples()
        self._seen.report(self._report, "rows")
        self._ids.report(self._report, "ids")
        if self._encoder:
            self._notes(self._encoder.notes)

    def _check_id(self, name: str, where: str) -> None:
        key = bytes_hash(name.encode("utf-8", "surrogatepass"))
        self._report.find("duplicate_id", where, int(self._ids.is_copy(key, lambda: where)))

    def _check(self, parsed: Parsed, where: str) -> None:
        report = self._report
        report.find("duplicate", where, int(self._seen.is_copy(content_hash(parsed), lambda: where)))
        if self._encoder is None:
            report.lengths[length_of(parsed)] += 1
        if not isinstance(parsed, Chat):
            return
        roles = [message["role"] for message in parsed.messages]
        pairs = list(zip(roles, roles[1:]))
        if self._encoder is None:  # Else their samples tell.
            empty = sum(m["role"] == "assistant" and not m["content"].strip() and not m.get("tool_calls")
                        for m in parsed.messages)
            report.find("empty_answer", where, empty)
            report.find("answer_cut", where, int(not parsed.complete))
        report.find("consecutive_users", where, int(("user", "user") in pairs))
        report.find("odd_roles", where, int(bool(odd := next(odd_roles(parsed), ""))), odd)
        if "assistant" not in roles:
            if self._encoder is None:  # Else the encoder says so.
                raise Rejected("no_assistant_turn", "nothing to supervise")
        elif roles[-1] == "user":
            report.find("ends_with_user", where)

    def _encode(self, encoder: RowEncoder, parsed: Parsed, where: str) -> None:
        for name, row in encoder.samples(parsed):
            self._samples.add(name, row.ids, row.mask)
            self._wheres.append(where)
        if len(self._samples.tokens) >= BATCH_TOKENS:
            self._check_samples()

    def _check_samples(self) -> None:
        samples, wheres = self._samples, self._wheres
        self._samples, self._wheres = Samples(), []
        if len(samples):
            offsets = np.concatenate([[0], np.cumsum(np.frombuffer(samples.lengths, dtype=np.int64))])
            self._checks.add(Batch(offsets, np.frombuffer(samples.tokens, dtype=np.uint32),
                                   np.frombuffer(samples.mask, dtype=np.uint8), wheres.__getitem__))

    def _notes(self, notes: Counter[str]) -> None:
        for check in ("markers_in_content", "chats_split_by_turn", "rows_truncated"):
            self._report.find(check, self._report.name, notes[check])


def odd_roles(chat: Chat) -> Iterator[str]:
    """What is odd about the order of roles."""
    has_calls = False
    for i, message in enumerate(chat.messages):
        role = message["role"]
        if role in ("system", "developer") and i > 0:
            yield f"message {i} is a system prompt"
        if role == "assistant" and i and chat.messages[i - 1]["role"] == "assistant":
            yield f"messages {i - 1} and {i} are both the assistant's"
        if role == "tool" and not has_calls and chat.messages[i - 1]["role"] not in ("assistant", "tool"):
            yield f"message {i} is a tool's result behind no answer"
        has_calls = has_calls or bool(message.get("tool_calls"))


def length_of(parsed: Parsed) -> int:
    """Characters of all texts; tokens of a row of ids."""
    match parsed:
        case Chat():
            return sum(len(message["content"]) for message in parsed.messages)
        case TextRow():
            return len(parsed.text)
        case TokenRow():
            return len(parsed.ids)
        case Prompt():
            return sum(map(len, parsed.turns))


def check_rows(source: Source, report: Report, model: Model | None, options: Options, checks: SampleChecks,
               progress: Callable[[int, int], None]) -> None:
    """Reads a whole source. `progress` is told bytes and rows."""
    rows = RowChecks(report, model, options, checks)
    reader = BlockReader(source.files)
    for block in source.blocks:
        for row in reader.rows(block):
            rows.add(source.files[block.file].path, row)
        progress(block.file_bytes, report.rows or 0)
    rows.finish()
