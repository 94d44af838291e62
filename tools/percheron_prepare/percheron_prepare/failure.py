"""Failures that the user can mend: one line that says what, with which path, and what to do."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Failure(Exception):
    """Ends the command. Its text is the whole message."""


@contextmanager
def reported(action: str, path: Path, remedy: str) -> Iterator[None]:
    """Turns an error of the operating system into a Failure: can't `action` `path`, why, and the remedy."""
    try:
        yield
    except OSError as error:
        raise Failure(f"can't {action} {path}: {error.strerror or error}; {remedy}") from error


def read_text(path: Path, remedy: str) -> str:
    """A file's UTF-8 text."""
    with reported("read", path, remedy):
        content = path.read_bytes()
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Failure(f"{path} is no UTF-8 text (byte {error.start}); {remedy}") from error
