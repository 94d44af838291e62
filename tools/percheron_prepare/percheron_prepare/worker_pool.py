"""Encodes blocks in several processes and gives the results in the blocks' order."""
from __future__ import annotations

import os
import selectors
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .block_encoder import BlockEncoder, EncodedBlock
from .failure import Interrupted
from .model import Model
from .source import Block
from .worker import Task, read_frame, write_frame

# Blocks that a worker has, and results that wait for an earlier one, for each worker.
BLOCKS_AHEAD = 2
RESULTS_WAITING = 2


class WorkerDied(Interrupted):
    """A worker process was killed."""


def process_count(asked: int | None, blocks: int) -> int:
    """How many processes encode: as many as asked, else one a core, and no more than there are blocks."""
    return max(1, min(asked or len(os.sched_getaffinity(0)), blocks))


def encoded_blocks(task: Task, model: Model, blocks: Sequence[Block], processes: int) -> Iterator[EncodedBlock]:
    """The blocks' results in order. Raises Failure when a worker dies."""
    if processes == 1:
        encoder = BlockEncoder(model, task.options, task.files)
        yield from map(encoder.encode, blocks)
        return
    pool = WorkerPool(task, processes)
    try:
        yield from pool.encode(blocks)
    finally:
        pool.close()


class WorkerPool:
    """Worker processes. Blocks are sent as places in files, which never fill a pipe; results are bounded."""

    def __init__(self, task: Task, processes: int) -> None:
        package = str(Path(__file__).resolve().parents[1])
        paths = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
        # A tokenizer's own threads would compete with the other workers.
        environment = {**os.environ, "PYTHONPATH": paths, "TOKENIZERS_PARALLELISM": "false"}
        self._workers: list[subprocess.Popen[bytes]] = []
        self._files = task.files
        for _ in range(processes):
            # Unbuffered: what select() waits for must not lie in a buffer of this process.
            self._workers.append(subprocess.Popen([sys.executable, "-m", f"{__package__}.worker"], env=environment,
                                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0))
            self._send(self._workers[-1], task)

    def encode(self, blocks: Sequence[Block]) -> Iterator[EncodedBlock]:
        sent: dict[int, deque[int]] = {i: deque() for i in range(len(self._workers))}
        done: dict[int, EncodedBlock] = {}
        next_sent = next_given = 0
        limit = len(self._workers) * (BLOCKS_AHEAD + RESULTS_WAITING)
        with selectors.DefaultSelector() as selector:
            for i, worker in enumerate(self._workers):
                selector.register(worker.stdout, selectors.EVENT_READ, i)  # type: ignore[arg-type]
            while next_given < len(blocks):
                while next_sent < len(blocks) and next_sent < next_given + limit:
                    idlest = min(sent, key=lambda i: len(sent[i]))
                    if len(sent[idlest]) == BLOCKS_AHEAD:
                        break
                    self._send(self._workers[idlest], blocks[next_sent])
                    sent[idlest].append(next_sent)
                    next_sent += 1
                for key, _ in selector.select():
                    self._receive(key.data, sent[key.data], blocks, done)
                while next_given in done:
                    yield done.pop(next_given)
                    next_given += 1

    def close(self) -> None:
        """Ends all workers, whatever they are doing."""
        for worker in self._workers:
            worker.kill()
            worker.wait()
            for stream in (worker.stdin, worker.stdout):
                try:
                    stream.close()  # type: ignore[union-attr]
                except BrokenPipeError:  # What was not sent yet is not needed any more.
                    pass

    def _receive(self, i: int, sent: deque[int], blocks: Sequence[Block], done: dict[int, EncodedBlock]) -> None:
        worker = self._workers[i]
        result = read_frame(worker.stdout)  # type: ignore[arg-type]
        if result is None:
            code = worker.wait()
            block = blocks[sent[0]] if sent else None
            where = f" at row {block.first_number} of {self._files[block.file].path}" if block else ""
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise WorkerDied(f"a worker process {how}{where}; run the same command again, with fewer --processes if memory "
                             "ran out")
        done[sent.popleft()] = result

    @staticmethod
    def _send(worker: subprocess.Popen[bytes], value: Any) -> None:
        try:
            write_frame(worker.stdin, value)  # type: ignore[arg-type]
        except BrokenPipeError:
            pass  # It has ended, which shows when its result is read.
