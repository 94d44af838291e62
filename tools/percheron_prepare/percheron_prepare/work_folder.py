"""The folder of a run that is not done yet, which a later run of the same command goes on from."""
from __future__ import annotations

import enum
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


class OnOther(enum.Enum):
    """What happens to a folder that a run of another identity left."""

    EMPTY = enum.auto()
    REFUSE = enum.auto()  # where what it holds took long to make


class WorkFolder:
    """Holds the lock on the folder until it is closed. `state`: what an interrupted run of the same identity left."""

    def __init__(self, path: Path, identity: dict[str, Any], command: str = "prepare",
                 on_other: OnOther = OnOther.EMPTY) -> None:
        """Raises Failure when another process has the folder, and where `on_other` says so."""
        self.path = path
        self._made = [folder for folder in path.absolute().parents if not folder.exists()]
        self._identity = identity
        path.mkdir(parents=True, exist_ok=True)
        self._lock: TextIO = open(path / LOCK_NAME, "w", encoding="utf-8")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._lock.close()
            raise Failure(f"another percheron {command} is writing this output (it holds {path / LOCK_NAME}); wait "
                          "for it, or choose another output") from error
        try:
            if on_other is OnOther.REFUSE:
                self._refuse_other()
        except Failure:
            self._lock.close()
            raise
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

    def _refuse_other(self) -> None:
        """Raises Failure, which names what differs, when the folder is another run's."""
        state = self.path / STATE_NAME
        if not state.exists():
            return
        try:
            kept = json.loads(state.read_text(encoding="utf-8"))["identity"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Failure(f"{state} can't be read ({error}), so nobody knows what {self.path} holds; move it away to "
                          "begin anew") from error
        differing = differences(kept, self._identity)
        if differing:
            raise Failure(f"{self.path} was begun with other settings: {'; '.join(differing)}; give the same as "
                          "before to go on, or remove that folder to begin anew")

    def _empty(self) -> None:
        """Removes what another command left here."""
        for entry in self.path.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            elif entry.name != LOCK_NAME:
                entry.unlink()


def differences(kept: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """Which entries differ, with what they were and what they are."""
    return [f"{name} was {shown(kept.get(name))} and is {shown(wanted.get(name))}"
            for name in sorted(kept.keys() | wanted.keys()) if kept.get(name) != wanted.get(name)]


def shown(value: Any) -> str:
    """A value as messages show it."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."
