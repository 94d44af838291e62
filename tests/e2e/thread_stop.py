"""Holds one thread of another process, while its other threads go on: as a deadlock or a device that hangs does."""
from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Iterator
from pathlib import Path

PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4206, 0x4207
WALL = 0x40000000  # also wait for threads


def _ptrace(request: int, thread: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    libc.ptrace.restype = ctypes.c_long
    if libc.ptrace(request, thread, None, None) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"ptrace: {os.strerror(error)}")


def thread_of(pid: int, name: str) -> int:
    """The thread of this name; the first one for an empty name."""
    if not name:
        return pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().strip() == name:
            return int(task.name)
    raise OSError(f"process {pid} has no thread {name}")


@contextlib.contextmanager
def held(pid: int, name: str) -> Iterator[None]:
    """The thread does nothing until the process is killed, which whoever uses this waits for inside."""
    thread = thread_of(pid, name)
    _ptrace(PTRACE_SEIZE, thread)
    _ptrace(PTRACE_INTERRUPT, thread)
    os.waitpid(thread, WALL)
    # A thread that is held can't be buried by anybody else.
    undertaker = threading.Thread(target=os.waitpid, args=(thread, WALL), daemon=True)
    undertaker.start()
    yield
    undertaker.join(timeout=10)
