"""A process that encodes blocks: pickled blocks on standard input, their results on standard output, in order.

It ends with its input, so it never outlives the process that started it.
"""
from __future__ import annotations

import datetime
import os
import pickle
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from .block_encoder import BlockEncoder, EncodedBlock
from .failure import Failure
from .model import load_model
from .options import Options
from .source import SourceFile

LENGTH_BYTES = 8


@dataclass(frozen=True)
class Task:
    """What all workers of a run share; the first thing that each is sent."""

    model: Path
    now: datetime.datetime
    options: Options
    files: Sequence[SourceFile]
    tokenizer_hash: str
    template_hash: str


def write_frame(stream: BinaryIO, value: Any) -> None:
    content = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(len(content).to_bytes(LENGTH_BYTES, "little"))
    stream.write(content)
    stream.flush()


def read_frame(stream: BinaryIO) -> Any:
    """None at the stream's end."""
    length = stream.read(LENGTH_BYTES)
    if len(length) < LENGTH_BYTES:
        return None
    size = int.from_bytes(length, "little")
    content = stream.read(size)
    return pickle.loads(content) if len(content) == size else None


def block_encoder(task: Task) -> BlockEncoder:
    model = load_model(task.model, task.options.template_variables, task.now)
    if (model.tokenizer.file_hash, model.template_hash) != (task.tokenizer_hash, task.template_hash):
        raise Failure(f"{task.model} changed while it was being used; run the command again")
    return BlockEncoder(model, task.options, task.files)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent is interrupted, and closes the input.
    requests = sys.stdin.buffer
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # A stray print must not get between the frames.
    task = read_frame(requests)
    encoder: BlockEncoder | None = None
    try:
        while (block := read_frame(requests)) is not None:
            try:
                encoder = encoder or block_encoder(task)
                result = encoder.encode(block)
            except Failure as failure:
                result = EncodedBlock(failure=str(failure))
            write_frame(answers, result)
    except BrokenPipeError:
        os._exit(1)


if __name__ == "__main__":
    main()
