"""Turns a JSONL file into a token shard. Every row is written, or counted and kept with the reason why not."""
from __future__ import annotations

import enum
import hashlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from .chat_template import LITERAL_MARK, Message, TemplateRefused
from .failure import Failure, reported
from .loss_mask import MaskUnproven, Row, Rows
from .model import Model
from .output_paths import rejected_path
from .rows import (Chat, ConsecutiveUsers, Line, Prompt, Rejected, TokenRow, parse_line, parse_row, read_lines, row_id)
from .shard import ShardWriter, canonical_json

# Goes up whenever the same rows, model and options may give other tokens, masks or passports.
PREPARER_VERSION = 3

# Characters of a rejected row's reason in the table; the side file has all of it.
SHOWN_MAX = 300


class TooLong(enum.Enum):
    """What happens to a row longer than the limit."""

    REFUSE = "refuse"
    TRUNCATE = "truncate"
    SKIP = "skip"


class Markers(enum.Enum):
    """What happens to control-token strings inside messages."""

    KEEP = "keep"  # real control tokens, as servers make of them
    TEXT = "text"
    SKIP = "skip"


class Purpose(enum.Enum):
    TRAINING = "training"
    PROMPTS = "prompts"  # evaluation: prompt with generation prompt, then the answer if there is one


@dataclass(frozen=True)
class Options:
    """What decides the tokens besides model and source; all of it enters `options_hash`."""

    purpose: Purpose = Purpose.TRAINING
    rows: Rows = Rows.AUTO
    max_length: int | None = None
    too_long: TooLong = TooLong.TRUNCATE
    last_turn_only: bool = False
    consecutive_users: ConsecutiveUsers = ConsecutiveUsers.KEEP
    markers: Markers = Markers.KEEP
    template_variables: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {name: value.value if isinstance(value, enum.Enum) else value for name, value in vars(self).items()}


class RowTooLong(Failure):
    """A row is over the limit and the options say that this is an error."""


@dataclass
class Tally:
    """What became of the rows."""

    read: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    # The first row of each reason: its line and what was wrong with it.
    first_rejected: dict[str, tuple[int, str]] = field(default_factory=dict)


class Preparer:
    """Feeds rows into a shard."""

    def __init__(self, model: Model, options: Options) -> None:
        self._model = model
        self._options = options
        self.shard = ShardWriter()
        self.tally = Tally()

    def add(self, line: Line) -> None:
        """Adds all samples of one row or none. Raises Rejected."""
        self.tally.read += 1
        value, repaired = parse_line(line)
        self.tally.notes["lone_surrogates_replaced"] += repaired
        parsed = parse_row(value, line.number, self._options.consecutive_users)
        try:
            samples = [(name, self._fit(row)) for name, row in self._samples(parsed)]
        except TemplateRefused as error:
            raise Rejected("template_refused", str(error)) from error
        except MaskUnproven as error:
            raise Rejected(f"mask_unproven_{error.args[0]}", str(error.args[-1])) from error
        for name, row in samples:
            self.shard.add(name, row.ids, row.mask)

    def _samples(self, parsed: Chat | TokenRow | Prompt) -> list[tuple[str, Row]]:
        if isinstance(parsed, TokenRow):
            if self._options.purpose is Purpose.PROMPTS:
                raise Rejected("no_prompt", "ids made elsewhere do not tell where the prompt ends")
            self._require_supervision(parsed.mask)
            return [(parsed.id, Row(parsed.ids, parsed.mask))]
        if isinstance(parsed, Prompt):
            if self._options.purpose is Purpose.TRAINING:
                raise Rejected("no_assistant_turn", "a prompt without an answer; --prompts takes such rows")
            messages = self._treat_markers([{"role": "user", "content": parsed.turns[0]}])
            return [(parsed.id, unanswered(self._model.encoder.prompt(messages)))]
        chat = Chat(parsed.id, self._treat_markers(parsed.messages), parsed.tools, parsed.complete)
        self.tally.notes["answers_cut_at_length"] += not chat.complete
        if self._options.purpose is Purpose.PROMPTS:
            return [(chat.id, self._prompt_row(chat))]
        return self._training_rows(chat)

    def _training_rows(self, chat: Chat) -> list[tuple[str, Row]]:
        if not any(message["role"] == "assistant" for message in chat.messages):
            raise Rejected("no_assistant_turn", "nothing to supervise")
        if self._options.last_turn_only:
            rows = [self._last_turn(chat)]
        else:
            rows = self._model.encoder.rows(chat.messages, chat.tools, self._options.rows, chat.complete)
        for row in rows:
            self._require_supervision(row.mask)
        self.tally.notes["chats_split_by_turn"] += len(rows) > 1
        return [(chat.id if row.message is None or len(rows) == 1 else f"{chat.id}#{row.message}", row)
                for row in rows]

    def _last_turn(self, chat: Chat) -> Row:
        last = max(i for i, message in enumerate(chat.messages) if message["role"] == "assistant")
        encoder = self._model.encoder
        ends_chat = last + 1 == len(chat.messages)
        return encoder.turn_row(encoder.turn(chat.messages, last, chat.tools), chat.complete or not ends_chat)

    def _prompt_row(self, chat: Chat) -> Row:
        """The chat up to its last answer, and the answer. A chat that ends with a question has none."""
        if chat.messages[-1]["role"] == "assistant":
            return self._last_turn(chat)
        return unanswered(self._model.encoder.prompt(chat.messages, chat.tools))

    def _treat_markers(self, messages: list[Message]) -> list[Message]:
        tokenizer = self._model.tokenizer
        if not any(tokenizer.has_special(message["content"]) for message in messages):
            return messages
        self.tally.notes["markers_in_content"] += 1
        if self._options.markers is Markers.SKIP:
            raise Rejected("markers_in_content")
        if self._options.markers is Markers.KEEP:
            return messages
        return [{**m, "content": tokenizer.mark_specials(m["content"], LITERAL_MARK)} for m in messages]

    def _fit(self, row: Row) -> Row:
        """Applies the length limit and checks the ids."""
        if max(row.ids) >= self._model.vocab_size:
            raise Rejected("id_out_of_range", f"id {max(row.ids)}, the vocabulary has {self._model.vocab_size}")
        limit = self._options.max_length
        if limit is None or len(row.ids) <= limit:
            return row
        detail = f"{len(row.ids)} tokens, the limit is {limit}"
        if self._options.too_long is TooLong.REFUSE:
            raise RowTooLong(detail)
        if self._options.too_long is TooLong.SKIP or not any(row.mask[:limit]):
            raise Rejected("too_long", detail)
        self.tally.notes["rows_truncated"] += 1
        return Row(row.ids[:limit], row.mask[:limit], row.message)

    @staticmethod
    def _require_supervision(mask: list[int]) -> None:
        if not any(mask):
            raise Rejected("no_supervision", "no token of the row would be trained on")


def unanswered(ids: list[int]) -> Row:
    return Row(ids, [0] * len(ids))


def passport(model: Model, options: Options, source: Path) -> dict[str, Any]:
    """Hashes of everything that decides the tokens."""
    settings = options.as_json()
    if model.template.uses_clock:
        settings["date"] = model.template.now.date().isoformat()
    with reported("read", source, "give a JSONL file that can be read"), open(source, "rb") as file:
        source_hash = hashlib.file_digest(file, "sha256").hexdigest()
    return {"preparer": PREPARER_VERSION,
            "tokenizer_hash": model.tokenizer.file_hash, "template_hash": model.template_hash,
            "source_hash": source_hash, "vocab_size": model.vocab_size,
            "options_hash": hashlib.sha256(canonical_json(settings).encode()).hexdigest()}


def rejected_entry(line: Line, error: Rejected) -> dict[str, Any]:
    """A line of the side file. `row` is the row itself where it was JSON, else its text."""
    text = line.content.decode("utf-8", "replace")
    try:
        row = json.loads(text)
        json.dumps(row, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError):
        row = text
    name = row_id(row, line.number) if isinstance(row, dict) else f"line-{line.number}"
    return {"line": line.number, "byte_offset": line.byte_offset, "id": name, "reason": error.reason,
            "detail": error.detail, "row": row}


def prepare(model: Model, options: Options, source: Path, output: Path,
            progress: Callable[[Preparer, int], None] = lambda preparer, byte: None,
            rejected_max: int | None = None) -> Preparer:
    """Reads `source`, writes the shard to `output` and rejected rows beside it.

    No shard is written when no row is usable or more than `rejected_max` are not.
    """
    stamp = passport(model, options, source)
    preparer = Preparer(model, options)
    side = rejected_path(output)
    partial = side.with_name(f"{side.name}.{os.getpid()}.partial")
    missing = [folder for folder in output.absolute().parents if not folder.exists()]
    with reported("write", output, "choose an --output in a folder that you may write to and that has room"):
        output.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(partial, "w", encoding="utf-8") as rejected:
                for line in read_lines(source):
                    add_or_reject(preparer, source, line, rejected)
                    progress(preparer, line.byte_offset)
            count = sum(preparer.tally.rejected.values())
            # The shard goes first: when it fails, no side file may tell of it.
            if len(preparer.shard) and (rejected_max is None or count <= rejected_max):
                preparer.shard.write(output, stamp, options.as_json())
            if count:
                os.replace(partial, side)
            else:
                side.unlink(missing_ok=True)
        finally:
            partial.unlink(missing_ok=True)
            for folder in missing:
                with suppress(OSError):  # Folders that nothing was put in go; the others refuse to.
                    folder.rmdir()
    return preparer


def add_or_reject(preparer: Preparer, source: Path, line: Line, rejected: TextIO) -> None:
    try:
        preparer.add(line)
    except Rejected as error:
        preparer.tally.rejected[error.reason] += 1
        preparer.tally.first_rejected.setdefault(error.reason, (line.number, one_line(str(error))))
        rejected.write(json.dumps(rejected_entry(line, error), ensure_ascii=False) + "\n")
    except RowTooLong as error:
        raise RowTooLong(f"{source}:{line.number}: {error}; --too-long truncate or skip takes such rows") from error


def summary(preparer: Preparer, source: Path, seconds: float) -> Iterator[str]:
    """The closing table, with the first rejected row of each reason."""
    counts, tally = preparer.shard.counts(), preparer.tally
    yield (f"{tally.read} rows read, {counts['samples']} samples, {counts['tokens']:,} tokens, "
           f"{counts['supervised_tokens']:,} supervised, {seconds:.1f} s")
    for title, table in (("rejected", tally.rejected), ("noted", tally.notes)):
        for reason, count in sorted(table.items()):
            if count:
                yield f"  {title:9}{count:>8}  {reason}"
            if table is tally.rejected:
                line, why = tally.first_rejected[reason]
                yield f"    {source}:{line}: {why}"


def one_line(text: str) -> str:
    """Text that quotes a row, made fit for a table."""
    text = "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text.split()))
    return text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + " ..."


class ProgressLine:
    """One line on a terminal, rewritten; nothing elsewhere."""

    PERIOD_S = 0.2

    def __init__(self, source: Path, stream: TextIO = sys.stderr) -> None:
        self._stream, self._shown = stream, stream.isatty()
        self._bytes_total = max(source.stat().st_size, 1)
        self._next = 0.0

    def __call__(self, preparer: Preparer, byte: int) -> None:
        now = time.monotonic()
        if not self._shown or now < self._next:
            return
        self._next = now + self.PERIOD_S
        self._stream.write(f"\rprepare {100 * byte // self._bytes_total:3d} %  {preparer.tally.read} rows  "
                           f"{preparer.shard.token_count:,} tokens  {sum(preparer.tally.rejected.values())} rejected ")
        self._stream.flush()

    def close(self) -> None:
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
