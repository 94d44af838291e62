"""Where the shard and the rejected rows go, and what must not stand there."""
from __future__ import annotations

import os
from pathlib import Path

from .failure import Failure

SHARD_SUFFIX = ".safetensors"


def rejected_path(output: Path) -> Path:
    """The side file of a shard."""
    return output.with_name(output.name + ".rejected.jsonl")


def check_paths(model: Path, source: Path, output: Path) -> None:
    """Raises Failure where writing `output` and its side file would destroy an input or could not work."""
    if not source.exists():
        raise Failure(f"--input {source} does not exist; give a JSONL file")
    if not source.is_file():
        raise Failure(f"--input {source} is no regular file; the rows are read twice, so give a JSONL file")
    if output.suffix != SHARD_SUFFIX:
        raise Failure(f"--output {output} must end in {SHARD_SUFFIX}: it is the token shard that is written")
    for written in (output, rejected_path(output)):
        if same_file(written, source):
            raise Failure(f"--output {output} would overwrite the input: {written} is the same file as {source}; "
                          "choose another output")
        if written.is_dir():
            raise Failure(f"{written} is a folder, and --output {output} writes a file there; choose another output")
    if os.path.dirname(os.path.realpath(output)) == os.path.realpath(model):
        raise Failure(f"--output {output} lies among the files of --model {model}; choose another folder")
    folder = next(folder for folder in output.absolute().parents if folder.exists())
    if not folder.is_dir():
        raise Failure(f"--output {output} can't be written: {folder} is no folder; choose another output")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise Failure(f"--output {output} can't be written: no permission to write in {folder}; choose another folder")


def same_file(left: Path, right: Path) -> bool:
    """Whether both paths lead to one file, through links of any kind."""
    if left.exists() and right.exists():
        return left.samefile(right)
    return os.path.realpath(left) == os.path.realpath(right)
