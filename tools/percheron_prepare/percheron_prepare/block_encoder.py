"""Turns a block of rows into samples. Every row is used, or counted and kept with the reason why not."""
from __future__ import annotations

import gc
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from .failure import Failure, Interrupted
from .model import Model
from .options import Options
from .row_encoder import RowEncoder, RowTooLong
from .rows import content_hash, ignored_keys, parse_row
from .samples import Samples
from .source import Block, BlockReader, SourceFile
from .source_row import Rejected, SourceRow, rejected_entry, unusable_text
from .tally import Tally


@dataclass
class EncodedBlock:
    """What became of a block. `failure` ends the run: its text. `is_interrupted`: another run may get further."""

    train: Samples = field(default_factory=Samples)
    held_out: Samples = field(default_factory=Samples)
    rejected: bytes = b""  # lines of the side file
    tally: Tally = field(default_factory=Tally)
    failure: str = ""
    is_interrupted: bool = False


class BlockEncoder:
    """Encodes blocks of one source. A block's result depends on nothing else."""

    def __init__(self, model: Model, options: Options, files: Sequence[SourceFile]) -> None:
        self._files = files
        self._reader = BlockReader(files)
        self._rows = RowEncoder(model, options)
        # Rows whose hash is below it are held out.
        self._held_out_below = int(options.held_out_share * 2.0**64)

    def encode(self, block: Block) -> EncodedBlock:
        # Rendering makes no cycles to speak of, and looking for them costs a tenth of the time.
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return self._encode(block)
        finally:
            if was_enabled:
                gc.enable()

    def _encode(self, block: Block) -> EncodedBlock:
        self._rows.notes.clear()
        out, rejected = EncodedBlock(), []
        path = self._files[block.file].path
        try:
            for row in self._reader.rows(block):
                out.tally.read += 1
                try:
                    self._add_or_reject(row, out)
                except Rejected as error:
                    out.tally.reject(error.reason, f"{path}:{row.number}", str(error))
                    rejected.append(json.dumps(rejected_entry(row, error), ensure_ascii=False) + "\n")
                except RowTooLong as error:
                    raise Failure(f"{path}:{row.number}: {error}; --too-long truncate or skip takes such rows") \
                        from error
        except Failure as failure:
            out.failure, out.is_interrupted = str(failure), isinstance(failure, Interrupted)
        out.rejected = "".join(rejected).encode("utf-8")
        out.tally.notes.update(self._rows.notes)
        return out

    def _add_or_reject(self, row: SourceRow, out: EncodedBlock) -> None:
        try:
            self._add(row, out)
        except (RecursionError, UnicodeError) as error:
            raise unusable_text(error) from error

    def _add(self, row: SourceRow, out: EncodedBlock) -> None:
        value, repaired = row.parsed()
        out.tally.notes["lone_surrogates_replaced"] += repaired
        parsed = parse_row(value, row.number)
        samples = self._rows.samples(parsed)
        for key in ignored_keys(value, parsed):
            out.tally.note_key(key)
        is_held_out = self._held_out_below and content_hash(parsed) < self._held_out_below
        side = out.held_out if is_held_out else out.train
        for name, sample in samples:
            side.add(name, sample.ids, sample.mask)
