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
    left = memoryview(len(content).to_bytes(LENGTH_BYTES, "little") + content)
    while left:  # An unbuffered stream takes as much as it likes.
        left = left[stream.write(left):]
    stream.flush()


def read_frame(stream: BinaryIO) -> Any:
    """None at the stream's end."""
    length = read_exactly(stream, LENGTH_BYTES)
    if length is None:
        return None
    content = read_exactly(stream, int.from_bytes(length, "little"))
    return None if content is None else pickle.loads(content)


def read_exactly(stream: BinaryIO, size: int) -> bytes | None:
    """None where the stream ends before; an unbuffered stream gives as much as it has."""
    pieces = []
    while size:
        piece = stream.read(size)
        if not piece:
            return None
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


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
