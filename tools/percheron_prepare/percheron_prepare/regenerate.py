"""Replaces the answers of chats by a target's own. Every row is written, or counted and kept with the reason why not.

Rows are begun in their order, as many at once as the source of answers wants, and written in their order. What is done
lies in a journal in OUT.partial/ until everything is; then OUT appears by one rename.
"""
from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .answer_journal import AnswerJournal, Entry
from .answer_source import AnswerSource, Question
from .conversation import Answer, Conversation
from .failure import Failure, reported
from .shard import sync_folder
from .source import BlockReader, Source, check_unchanged
from .source_row import Rejected, SourceRow, rejected_entry, unusable_text_rejected
from .tally import Tally
from .work_folder import STATE_NAME, OnOther, WorkFolder

# Rows that may be done before the oldest one that is not.
WINDOW_ROWS = 1 << 16
REPORT_FORMAT = "percheron.regenerated.v1"
JOURNAL_NAME = "journal"
# A turn that can't be answered for these reasons ends its chat; for others, such as a server's error, the row is kept
# aside, so that it can be tried again.
ENDS_CHAT = {"prompt_too_long", "cut_inside_thought"}


@dataclass(frozen=True)
class RegenerateOutput:
    """The file of rows and what lies beside it."""

    path: Path

    @property
    def rejected(self) -> Path:
        """The side file."""
        return self.path.with_name(self.path.name + ".rejected.jsonl")

    @property
    def report(self) -> Path:
        """What made the rows, and the counts."""
        return self.path.with_name(self.path.name + ".report.json")

    @property
    def work(self) -> Path:
        """The folder of a run that is not done yet."""
        return self.path.with_name(self.path.name + ".partial")


@dataclass
class Regenerated:
    """What a run did. `resumed_rows`, `resumed_tokens`: what an earlier run had done of it."""

    tally: Tally = field(default_factory=Tally)
    rows: int = 0
    answers: int = 0
    tokens: int = 0
    resumed_rows: int = 0
    resumed_tokens: int = 0
    is_up_to_date: bool = False

    def add(self, entry: Entry, path: Path) -> None:
        """Counts a row that is done."""
        self.tally.read += 1
        self.tally.notes.update(entry["notes"])
        self.tokens += entry["tokens"]
        if entry["row"] is not None:
            self.rows += 1
            self.answers += entry["answers"]
        else:
            left_out = entry["rejected"]
            why = str(Rejected(left_out["reason"], left_out["detail"]))
            self.tally.reject(left_out["reason"], f"{path}:{left_out['line']}", why)

    def as_json(self) -> dict[str, Any]:
        return {"rows": self.rows, "answers": self.answers, "tokens": self.tokens, **self.tally.as_json()}


Progress = Callable[[Regenerated], None]


@dataclass(frozen=True)
class RegenerateJob:
    """What is made anew, by whom, and where it goes. `identity`: what decides the answers besides the source of them.
    `rows_max`: rows of the file that are read; None: all. `rejected_max`: how many of so many rows may be rejected."""

    source: Source
    answers: AnswerSource
    output: RegenerateOutput
    identity: dict[str, Any]
    began: str  # when the run began, which templates may render; kept for runs that go on from it
    rows_max: int | None = None
    rejected_max: Callable[[int], int] | None = None
    clock: Callable[[], float] = time.monotonic

    def whole_identity(self) -> dict[str, Any]:
        return {"input": self.source.hash, "limit": self.rows_max, **self.identity, **self.answers.identity}

    def rows(self) -> Iterator[tuple[int, SourceRow]]:
        """Ordinals and rows. Numbers of rows name them to people."""
        reader = BlockReader(self.source.files)
        rows = (row for block in self.source.blocks for row in reader.rows(block))
        for ordinal, row in enumerate(rows):
            if self.rows_max is not None and ordinal >= self.rows_max:
                return
            yield ordinal, row


class Run:
    """Asks, takes answers, and keeps rows in the journal as they are done."""

    def __init__(self, job: RegenerateJob, journal: AnswerJournal, done: Regenerated, progress: Progress) -> None:
        self._job, self._journal, self._done, self._progress = job, journal, done, progress
        self._rows = job.rows()
        self._next: tuple[int, SourceRow] | None = next(self._rows, None)
        self._open: dict[int, tuple[SourceRow, Conversation]] = {}

    def answer_all(self) -> None:
        """Raises Failure. What was done until then is in the journal."""
        while True:
            self._begin_rows()
            if not self._open:
                return
            ordinal, answer = self._job.answers.take()
            self._take(ordinal, answer)

    def _begin_rows(self) -> None:
        while self._next is not None and len(self._open) < self._job.answers.capacity:
            ordinal, row = self._next
            if ordinal - self._journal.first_missing >= WINDOW_ROWS:
                return
            self._next = next(self._rows, None)
            if ordinal in self._journal:
                continue
            try:
                with unusable_text_rejected():
                    value, is_repaired = row.parsed()
                    conversation = Conversation(value)
                conversation.notes["lone_surrogates_replaced"] += is_repaired
            except Rejected as rejected:
                self._reject(ordinal, row, rejected, None)
                continue
            self._open[ordinal] = row, conversation
            self._ask(ordinal)

    def _ask(self, ordinal: int) -> None:
        row, conversation = self._open[ordinal]
        try:
            with unusable_text_rejected():
                self._job.answers.ask(Question(ordinal, row.number, conversation.answers, list(conversation.history),
                                               conversation.tools))
        except Rejected as rejected:
            self._take(ordinal, rejected)

    def _take(self, ordinal: int, answer: Answer | Rejected) -> None:
        row, conversation = self._open[ordinal]
        try:
            if isinstance(answer, Answer):
                conversation.take(answer)
            elif answer.reason in ENDS_CHAT:
                conversation.end_early(answer)
            else:
                raise answer
        except Rejected as rejected:
            del self._open[ordinal]
            self._reject(ordinal, row, rejected, conversation)
            return
        if not conversation.is_done:
            self._ask(ordinal)
            return
        del self._open[ordinal]
        try:
            with unusable_text_rejected():
                self._keep(ordinal, {"row": conversation.result(), "rejected": None, "notes": +conversation.notes,
                                     "tokens": conversation.tokens, "answers": conversation.answers})
        except Rejected as rejected:
            self._reject(ordinal, row, rejected, conversation)

    def _reject(self, ordinal: int, row: SourceRow, why: Rejected, conversation: Conversation | None) -> None:
        # Answers before the one that failed cost tokens, but are not kept: their cuts and additions are not counted.
        tokens, turn = (conversation.tokens, conversation.answers) if conversation else (0, 0)
        entry = rejected_entry(row, why)
        if turn:
            entry["turn"] = turn
        kept = {"row": None, "rejected": entry, "notes": {}, "tokens": tokens, "answers": 0}
        try:
            self._keep(ordinal, kept)
        except RecursionError:  # As deep as may be by itself, and too deep inside the entry.
            content = row.content
            entry["row"] = content.decode("utf-8", "replace") if isinstance(content, bytes) else repr(content)
            self._keep(ordinal, kept)

    def _keep(self, ordinal: int, entry: Entry) -> None:
        self._journal.append(ordinal, entry)
        self._done.add(entry, self._job.source.files[0].path)
        self._progress(self._done)


def began_before(output: RegenerateOutput) -> str | None:
    """When the run began that this one would go on from."""
    try:
        kept = json.loads((output.work / STATE_NAME).read_text(encoding="utf-8"))
        return str(kept["state"]["began"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def regenerate(job: RegenerateJob, progress: Progress = lambda done: None) -> Regenerated:
    """Writes the rows, the rejected ones and the report. Raises Failure; what is done then waits in OUT.partial."""
    output, identity = job.output, job.whole_identity()
    if output.path.exists() and not (output.work / STATE_NAME).exists():
        return up_to_date(output, identity)
    done = Regenerated()
    with reported("write", output.path, "choose an --out in a folder that you may write to and that has room"):
        work = WorkFolder(output.work, identity, "regenerate", OnOther.REFUSE)
        try:
            if work.state is None:
                work.keep({"began": job.began})
            journal = AnswerJournal(work.path / JOURNAL_NAME, job.clock,
                                    lambda entry: done.add(entry, job.source.files[0].path))
            done.resumed_rows, done.resumed_tokens = done.tally.read, done.tokens
            try:
                Run(job, journal, done, progress).answer_all()
            finally:
                journal.sync()
                journal.close()
            check_unchanged(job.source)
            check_rejected(job, done)
            publish(job, work, journal, done, identity)
        except BaseException:
            # A folder of this run's own without a row would only refuse a mended command. One that was there is kept:
            # its rows may be unread so far.
            if work.state is None and not done.tally.read:
                work.remove()
            work.close()
            raise
        work.remove()
    if not done.rows:
        where, why = done.tally.first_rejected[done.tally.rejected.most_common(1)[0][0]]
        raise Failure(f"none of {done.tally.read} rows could be regenerated ({reasons(done)}; {where}: {why}); "
                      f"{output.path} was not written, and the rows are in {output.rejected}")
    return done


def up_to_date(output: RegenerateOutput, identity: dict[str, Any]) -> Regenerated:
    """The run that made OUT, if it was this one. Raises Failure otherwise: OUT may have taken days."""
    try:
        report = json.loads(output.report.read_text(encoding="utf-8"))
        is_same = report["identity"] == identity and report["bytes"] == output.path.stat().st_size
        counts = report["counts"]
        done = Regenerated(Tally.from_json(counts), counts["rows"], counts["answers"], counts["tokens"],
                           is_up_to_date=True)
    except (OSError, ValueError, KeyError, TypeError):
        is_same = False
    if not is_same:
        raise Failure(f"{output.path} is there already and was not made by this very command; choose another --out, "
                      "or remove it")
    return done


def check_rejected(job: RegenerateJob, done: Regenerated) -> None:
    rejected, read = done.tally.rejected_count, done.tally.read
    if not read:
        raise Failure(f"{job.source.files[0].path} has no rows; nothing was written")
    if job.rejected_max is not None and rejected > job.rejected_max(read):
        raise Failure(f"{rejected} of {read} rows rejected ({reasons(done)}), --max-rejected is "
                      f"{job.rejected_max(read)}; {job.output.path} was not written, and the same command with a "
                      "higher limit writes it at once")


def reasons(done: Regenerated) -> str:
    """The reasons that most rejected rows have."""
    return ", ".join(f"{count} {reason}" for reason, count in done.tally.rejected.most_common(3))


def publish(job: RegenerateJob, work: WorkFolder, journal: AnswerJournal, done: Regenerated,
            identity: dict[str, Any]) -> None:
    """Puts everything in its place. A kill in between leaves the journal, from which it is done again."""
    output = job.output
    rows, rejected, report = work.path / "rows", work.path / "rejected", work.path / "report"
    with open(rows, "wb") as kept, open(rejected, "wb") as left_out:
        for entry in journal.in_order():
            write_line(left_out if entry["row"] is None else kept, entry["rejected"] if entry["row"] is None else
                       entry["row"])
        for file in (kept, left_out):
            file.flush()
            os.fsync(file.fileno())
        size = kept.tell()
    with open(report, "wb") as file:
        write_line(file, {"format": REPORT_FORMAT, "identity": identity, "bytes": size, "counts": done.as_json()})
        file.flush()
        os.fsync(file.fileno())
    if done.rows:
        os.replace(rows, output.path)
        os.replace(report, output.report)
    if done.tally.rejected_count:
        os.replace(rejected, output.rejected)
    else:
        output.rejected.unlink(missing_ok=True)
    sync_folder(output.path.parent)


def write_line(file: Any, value: Any) -> None:
    file.write(json.dumps(value, ensure_ascii=False).encode("utf-8") + b"\n")
