"""Failures that the user can mend: one line that says what, with which path, and what to do."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# The remedy for a file that could be read before.
READ_AGAIN = "run the same command again when it can be read"


class Failure(Exception):
    """Ends the command. Its text is the whole message."""


class Interrupted(Failure):
    """A failure of the machine, not of the input: what was done before it can be gone on from."""


@contextmanager
def reported(action: str, path: Path, remedy: str, kind: type[Failure] = Failure) -> Iterator[None]:
    """Turns an error of the operating system into a failure: can't `action` `path`, why, and the remedy."""
    try:
        yield
    except OSError as error:
        raise kind(f"can't {action} {path}: {error.strerror or error}; {remedy}") from error


def read_text(path: Path, remedy: str) -> str:
    """A file's UTF-8 text."""
    with reported("read", path, remedy):
        content = path.read_bytes()
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Failure(f"{path} is no UTF-8 text (byte {error.start}); {remedy}") from error
