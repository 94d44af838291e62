"""Where the shards and the rejected rows go, and what must not stand there."""
from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .failure import Failure

SHARD_SUFFIX = ".safetensors"
# Suffixes that name a file: no folder of shards is called so.
FILE_SUFFIXES = {".arrow", ".bin", ".csv", ".json", ".jsonl", ".ndjson", ".npz", ".parquet", ".partial", ".pt", ".tmp",
                 ".txt", ".yaml", ".yml"}
INDEX_NAME = "shards.json"
HELD_OUT = "held_out"


@dataclass(frozen=True)
class Output:
    """One shard (FILE.safetensors) or a folder of them."""

    path: Path

    @property
    def is_folder(self) -> bool:
        return self.path.suffix != SHARD_SUFFIX

    @property
    def held_out(self) -> Path:
        """Where held-out rows go."""
        if self.is_folder:
            return self.path / HELD_OUT
        return self.path.with_name(f"{self.path.stem}.{HELD_OUT}{SHARD_SUFFIX}")

    @property
    def rejected(self) -> Path:
        """The side file."""
        return self.path.with_name(self.path.name + ".rejected.jsonl")

    @property
    def work(self) -> Path:
        """The folder of a run that is not done yet."""
        return self.path.with_name(self.path.name + ".partial")

    def files(self) -> list[Path]:
        """What is written in the end."""
        return [self.path, self.rejected] if self.is_folder else [self.path, self.held_out, self.rejected]


def check_paths(model: Path, sources: Sequence[Path], output: Output) -> None:
    """Raises Failure where writing would destroy an input or could not work."""
    for source in sources:
        check_source(source)
    path = output.path
    if path.name.startswith(".") or path.suffix in FILE_SUFFIXES or path.is_file() and output.is_folder:
        raise Failure(f"--output {path} must end in {SHARD_SUFFIX}, the token shard that is written, or be a folder "
                      "for several")
    for written in output.files():
        for source in sources:
            if same_file(written, source) or output.is_folder and lies_in(source, path):
                raise Failure(f"--output {path} would overwrite the input: {written} is the same file as {source}; "
                              "choose another output")
        if written.is_dir() and not (output.is_folder and written == path):
            raise Failure(f"{written} is a folder, and --output {path} writes a file there; choose another output")
    if os.path.realpath(path.parent) == os.path.realpath(model) or os.path.realpath(path) == os.path.realpath(model):
        raise Failure(f"--output {path} lies among the files of --model {model}; choose another folder")
    check_folder(path)
    if output.is_folder and path.is_dir():
        check_old_set(path)


def check_source(source: Path, option: str = "--input") -> None:
    if not source.exists():
        raise Failure(f"{option} {source} does not exist; give a JSONL, JSON or Parquet file")
    if not source.is_file():
        raise Failure(f"{option} {source} is no regular file; the rows are read twice, so give a JSONL, JSON or Parquet "
                      "file")


def check_folder(path: Path, option: str = "--output") -> None:
    folder = next(folder for folder in path.absolute().parents if folder.exists())
    if not folder.is_dir():
        raise Failure(f"{option} {path} can't be written: {folder} is no folder; choose another output")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise Failure(f"{option} {path} can't be written: no permission to write in {folder}; choose another folder")


def check_old_set(folder: Path) -> None:
    """A folder is replaced as a whole, so it may hold nothing but an earlier set."""
    names = {entry.name for entry in folder.iterdir()}
    foreign = sorted(name for name in names - {INDEX_NAME, HELD_OUT}
                     if not (name.startswith("tokens-") and name.endswith(SHARD_SUFFIX)))
    if foreign or names and INDEX_NAME not in names:
        raise Failure(f"--output {folder} holds other files ({(foreign or sorted(names))[0]}), and a folder of shards "
                      "is replaced as a whole; choose another folder")


def lies_in(file: Path, folder: Path) -> bool:
    return Path(os.path.realpath(folder)) in Path(os.path.realpath(file)).parents


def same_file(left: Path, right: Path) -> bool:
    """Whether both paths lead to one file, through links of any kind."""
    if left.exists() and right.exists():
        return left.samefile(right)
    return os.path.realpath(left) == os.path.realpath(right)
