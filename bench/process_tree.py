"""The memory of a process and of all that it started."""
from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType

PERIOD_S = 0.2


def tree_bytes(pid: int) -> tuple[int, int]:
    """Resident and proportional bytes of a process and all its children. Pages that several of them share count for
    each of them in the first, once in the second."""
    resident = proportional = 0
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
            if line.startswith("Rss:"):
                resident += 1024 * int(line.split()[1])
            elif line.startswith("Pss:"):
                proportional += 1024 * int(line.split()[1])
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text(encoding="ascii").split():
                more = tree_bytes(int(child))
                resident, proportional = resident + more[0], proportional + more[1]
    except OSError:
        pass  # It has just ended.
    return resident, proportional


class MemoryWatch:
    """Samples a process's tree until it is left."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.resident_peak = self.proportional_peak = 0  # bytes

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(PERIOD_S):
            resident, proportional = tree_bytes(self._pid)
            self.resident_peak = max(self.resident_peak, resident)
            self.proportional_peak = max(self.proportional_peak, proportional)
