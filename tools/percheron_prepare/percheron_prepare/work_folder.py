"""The folder of a run that is not done yet, which a later run of the same command goes on from."""
from __future__ import annotations

import fcntl
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from .failure import Failure
from .shard import sync_folder

STATE_NAME = "state.json"
LOCK_NAME = "lock"


class WorkFolder:
    """Holds the lock on the folder until it is closed. `state`: what an interrupted run of the same identity left."""

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        """Raises Failure when another process has the folder."""
        self.path = path
        self._made = [folder for folder in path.absolute().parents if not folder.exists()]
        self._identity = identity
        path.mkdir(parents=True, exist_ok=True)
        self._lock: TextIO = open(path / LOCK_NAME, "w", encoding="utf-8")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._lock.close()
            raise Failure(f"another percheron prepare is writing this output (it holds {path / LOCK_NAME}); wait for "
                          "it, or choose another --output") from error
        self.state = self._read_state()
        if self.state is None:
            self._empty()

    def keep(self, state: dict[str, Any]) -> None:
        """Makes `state` the one that a later run goes on from."""
        partial = self.path / f"{STATE_NAME}.partial"
        with open(partial, "w", encoding="utf-8") as file:
            json.dump({"identity": self._identity, "state": state}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, self.path / STATE_NAME)
        sync_folder(self.path)

    @property
    def is_kept(self) -> bool:
        return (self.path / STATE_NAME).exists()

    def close(self) -> None:
        self._lock.close()

    def remove(self) -> None:
        """Removes the folder, and those that were made for it if nothing else was put in. The state goes first: a later
        run must not go on from it without the files that it counts."""
        with suppress(OSError):
            (self.path / STATE_NAME).unlink(missing_ok=True)
            sync_folder(self.path)
        shutil.rmtree(self.path, ignore_errors=True)
        self.close()
        for folder in self._made:
            with suppress(OSError):
                folder.rmdir()

    def _read_state(self) -> dict[str, Any] | None:
        try:
            with open(self.path / STATE_NAME, encoding="utf-8") as file:
                kept = json.load(file)
            return kept["state"] if kept["identity"] == self._identity else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _empty(self) -> None:
        """Removes what another command left here."""
        for entry in self.path.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            elif entry.name != LOCK_NAME:
                entry.unlink()
