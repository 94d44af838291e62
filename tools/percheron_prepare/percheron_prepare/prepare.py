"""Turns files of rows into token shards. Every row is written, or counted and kept with the reason why not."""
from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .block_encoder import EncodedBlock
from .failure import Failure, Interrupted, reported
from .model import Model
from .options import Options
from .output_paths import HELD_OUT, INDEX_NAME, Output
from .shard import canonical_json, read_passport, sync_folder
from .shard_set import Counts, SetState, ShardSetWriter, are_spools_whole, file_size
from .source import Source, check_unchanged
from .tally import Tally
from .work_folder import WorkFolder
from .worker import Task
from .worker_pool import encoded_blocks, process_count

# Goes up whenever the same rows, model and options may give other tokens, masks or passports.
PREPARER_VERSION = 5
SET_FORMAT = "percheron.token_set.v1"
KEEP_PERIOD_S = 5.0  # how much of a run a kill may cost
TRAIN = "train"


@dataclass(frozen=True)
class Job:
    """What is prepared from what, and where it goes."""

    model: Model
    options: Options
    inputs: Sequence[Path]
    output: Output
    shard_bytes: int | None = None  # of each shard at most; None: one shard
    processes: int | None = None  # None: one a core
    # How many of so many rows may be rejected; None: any number.
    rejected_max: Callable[[int], int] | None = None


@dataclass
class Prepared:
    """What a run made. `why_nothing` says why no shard was written."""

    tally: Tally = field(default_factory=Tally)
    sets: dict[str, SetState] = field(default_factory=dict)
    resumed_rows: int = 0
    why_nothing: str = ""

    def counts(self, side: str) -> Counts:
        return self.sets[side].total()


Progress = Callable[[int, Prepared], None]


def passport(model: Model, options: Options, source_hash: str) -> dict[str, Any]:
    """Hashes of everything that decides the tokens."""
    settings = options.as_json()
    if model.template.uses_clock:
        settings["date"] = model.template.now.date().isoformat()
    return {"preparer": PREPARER_VERSION,
            "tokenizer_hash": model.tokenizer.file_hash, "template_hash": model.template_hash,
            "source_hash": source_hash, "vocab_size": model.vocab_size,
            "options_hash": hashlib.sha256(canonical_json(settings).encode()).hexdigest()}


class Run:
    """Encodes a source into the work folder, block by block."""

    def __init__(self, job: Job, source: Source, stamp: dict[str, Any], work: WorkFolder) -> None:
        self._job, self._source, self._work = job, source, work
        state = self._kept_state() or {"next_block": 0, "rejected_bytes": 0, "tally": Tally().as_json(), "sets": {}}
        self._next_block = state["next_block"]
        self.done = Prepared(Tally.from_json(state["tally"]))
        self.done.resumed_rows = self.done.tally.read
        metadata = {"passport": canonical_json(stamp), "options": canonical_json(job.options.as_json())}
        self._writers: dict[str, ShardSetWriter] = {}
        for side in sides_of(job.options):
            kept = SetState.from_json(state["sets"][side]) if side in state["sets"] else None
            self._writers[side] = ShardSetWriter(self.set_folder(side), self._spool_folder(side), job.shard_bytes,
                                                 metadata, kept)
            self.done.sets[side] = self._writers[side].state
        self._rejected = open(self.rejected, "ab")
        self._rejected.truncate(state["rejected_bytes"])

    def _kept_state(self) -> dict[str, Any] | None:
        """What an earlier run left, unless its shards have already gone where they belong."""
        state = self._work.state
        if state is None or not all((self.set_folder(side) / shard["file"]).exists()
                                    for side, kept in state["sets"].items() for shard in kept["shards"]):
            return None
        is_whole = file_size(self.rejected) >= state["rejected_bytes"] and all(
            are_spools_whole(self._spool_folder(side), SetState.from_json(kept)) for side, kept in state["sets"].items())
        return state if is_whole else None

    def _spool_folder(self, side: str) -> Path:
        return self._work.path / f"spool-{side}"

    @property
    def rejected(self) -> Path:
        return self._work.path / "rejected.jsonl"

    def set_folder(self, side: str) -> Path:
        """Held-out shards lie in a folder within the set's."""
        return self._work.path / "set" / HELD_OUT if side == HELD_OUT else self._work.path / "set"

    def encode(self, progress: Progress) -> None:
        """Raises Failure. What was done until then is kept where a later run can go on from it."""
        job, blocks = self._job, self._source.blocks
        task = Task(job.model.path, job.model.template.now, job.options, self._source.files,
                    job.model.tokenizer.file_hash, job.model.template_hash)
        left = blocks[self._next_block:]
        kept_at = time.monotonic()
        try:
            for result in encoded_blocks(task, job.model, left, process_count(job.processes, len(left))):
                if result.failure:
                    raise (Interrupted if result.is_interrupted else Failure)(result.failure)
                self._add(result)
                self._next_block += 1
                if time.monotonic() - kept_at > KEEP_PERIOD_S:
                    self.keep()
                    kept_at = time.monotonic()
                progress(blocks[self._next_block - 1].file_bytes, self.done)
        except (KeyboardInterrupt, Interrupted):
            self.keep()
            raise

    def keep(self) -> None:
        self._rejected.flush()
        os.fsync(self._rejected.fileno())
        sets = {side: writer.commit().as_json() for side, writer in self._writers.items()}
        self._work.keep({"next_block": self._next_block, "rejected_bytes": os.fstat(self._rejected.fileno()).st_size,
                         "tally": self.done.tally.as_json(), "sets": sets})

    def finish(self) -> None:
        """Composes the last shards."""
        for writer in self._writers.values():
            writer.finish()

    def close(self) -> None:
        self._rejected.close()
        for writer in self._writers.values():
            writer.close()

    def _add(self, result: EncodedBlock) -> None:
        self._writers[TRAIN].add(result.train)
        if HELD_OUT in self._writers:
            self._writers[HELD_OUT].add(result.held_out)
        self._rejected.write(result.rejected)
        self.done.tally.add(result.tally)


def sides_of(options: Options) -> tuple[str, ...]:
    return (TRAIN, HELD_OUT) if options.held_out_share else (TRAIN,)


def prepare(job: Job, source: Source, progress: Progress = lambda byte, done: None) -> Prepared:
    """Writes shards and rejected rows, or the rejected rows only and `why_nothing`. Raises Failure."""
    stamp = passport(job.model, job.options, source.hash)
    identity = {"passport": stamp, "inputs": [str(path) for path in job.inputs], "shard_bytes": job.shard_bytes}
    with reported("write", job.output.path, "choose an --output in a folder that you may write to and that has room"):
        work = WorkFolder(job.output.work, identity)
        run = None
        try:
            run = Run(job, source, stamp, work)
            run.encode(progress)
            check_unchanged(source)
            run.done.why_nothing = why_nothing(job, run.done)
            if not run.done.why_nothing:
                run.keep()
                run.finish()
            run.close()
            publish(job, run, stamp)
        except BaseException as error:
            if run is not None:
                run.close()
            if work.is_kept and isinstance(error, (KeyboardInterrupt, Interrupted, OSError)):
                work.close()
            else:
                work.remove()
            raise
        work.remove()
    return run.done


def why_nothing(job: Job, done: Prepared) -> str:
    """Why no shard is to be written; empty when there is no reason."""
    rejected, read = done.tally.rejected_count, done.tally.read
    names = ", ".join(map(str, job.inputs))
    if not read:
        return f"{names} is empty; no shard was written (`percheron prepare --help` shows rows)"
    if not any(done.counts(side).samples for side in done.sets):
        return (f"none of {read} rows of {names} could be used; no shard was written (`percheron prepare --help` shows "
                "rows)")
    if job.rejected_max is not None and rejected > job.rejected_max(read):
        return f"{rejected} rows rejected, --max-rejected is {job.rejected_max(read)}; no shard was written"
    empty = next((side for side in done.sets if not done.counts(side).samples), None)
    if empty:
        return (f"with --held-out-share {job.options.held_out_share:g} none of {read - rejected} rows falls to the "
                f"{empty.replace('_', '-')} side; give another share; no shard was written")
    return ""


def publish(job: Job, run: Run, stamp: dict[str, Any]) -> None:
    """Puts everything in its place. A kill in between leaves the work folder, from which it is done again."""
    output, folder = job.output, run.set_folder(TRAIN)
    parent = output.path.parent
    if not run.done.why_nothing:
        # The shards go first: when that fails, no side file may tell of them.
        if output.is_folder:
            for side, state in run.done.sets.items():
                write_index(run.set_folder(side), stamp, job, state)
            if output.path.exists():
                os.rename(output.path, output.work / f"replaced-{time.time_ns()}")
            os.rename(folder, output.path)
        else:
            for side in run.done.sets:
                target = output.held_out if side == HELD_OUT else output.path
                os.replace(run.set_folder(side) / run.done.sets[side].shards[0]["file"], target)
    if run.done.tally.rejected_count:
        os.replace(run.rejected, output.rejected)
    else:
        output.rejected.unlink(missing_ok=True)
    sync_folder(parent)


def write_index(folder: Path, stamp: dict[str, Any], job: Job, state: SetState) -> None:
    """What shards there are in a folder, so that a missing one is noticed."""
    index = {"format": SET_FORMAT, "passport": stamp, "options": job.options.as_json(),
             "shard_bytes": job.shard_bytes, "counts": vars(state.total()), "shards": state.shards}
    with open(folder / INDEX_NAME, "w", encoding="utf-8") as file:
        json.dump(index, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    sync_folder(folder)


def is_up_to_date(job: Job, source: Source) -> bool:
    """Whether the output is there, whole, and was made of the same rows, model and options."""
    stamp = passport(job.model, job.options, source.hash)
    paths = [job.output.held_out if side == HELD_OUT else job.output.path for side in sides_of(job.options)]
    if not job.output.is_folder:
        return all(read_passport(path) == stamp for path in paths)
    for path in paths:
        try:
            index = json.loads((path / INDEX_NAME).read_text(encoding="utf-8"))
            if index["passport"] != stamp or index["shard_bytes"] != job.shard_bytes:
                return False
            files = [(path / shard["file"], shard["bytes"]) for shard in index["shards"]]
        except (OSError, ValueError, KeyError, TypeError):
            return False
        if not all(file.is_file() and file.stat().st_size == size and read_passport(file) == stamp
                   for file, size in files):
            return False
    return True
