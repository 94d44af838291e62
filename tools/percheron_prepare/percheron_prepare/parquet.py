"""Rows of Parquet files, by pyarrow, which is only needed for them."""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .failure import READ_AGAIN, Failure, Interrupted, reported

BUFFER_BYTES = 1 << 20


def open_parquet(path: Path) -> Any:
    """The file, opened. Raises Failure."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise Failure(f"{path} is a Parquet file, which needs the package pyarrow: pip install pyarrow (or give the "
                      "rows as JSONL)") from error
    try:
        # A buffer, so that a column of a row group is not read whole.
        return pyarrow.parquet.ParquetFile(path, buffer_size=BUFFER_BYTES)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        require_readable(path, error)
        raise Failure(f"{path} is no Parquet file that can be read: {first_line(error)}; copy the file "
                      "again") from error


def row_group_sizes(path: Path) -> list[int]:
    """Rows of each row group."""
    file = open_parquet(path)
    return [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]


class ParquetReader:
    """Reads ranges of rows. Ranges of one row group must ascend, as each is decoded once, from its front."""

    def __init__(self, path: Path, batch_rows: int) -> None:
        self._path = path
        self._batch_rows = batch_rows
        self._file = open_parquet(path)
        self._group = -1
        self._at = 0
        self._batches: Iterator[Any] = iter(())

    def rows(self, group: int, begin: int) -> list[dict[str, Any]]:
        """The rows of a group from `begin`, a multiple of the batch size, to the next multiple."""
        import pyarrow
        if group != self._group or begin < self._at:
            self._group, self._at = group, 0
            self._batches = self._file.iter_batches(batch_size=self._batch_rows, row_groups=[group], use_threads=False)
        try:
            while self._at < begin:
                self._at += next(self._batches).num_rows
            batch = next(self._batches)
            rows = [without_nulls(row) for row in batch.to_pylist()]
        except (pyarrow.ArrowException, OSError, ValueError) as error:
            require_readable(self._path, error)
            raise Failure(f"{self._path}, row group {group}: {first_line(error)}; copy the file again") from error
        except StopIteration as error:
            raise Failure(f"{self._path}, row group {group}, has fewer rows than it says; copy the file again") from error
        if self._at != begin:
            raise Failure(f"{self._path}, row group {group}: rows came in batches of another size than "
                          f"{self._batch_rows}; write the file again with larger pages")
        self._at += batch.num_rows
        return rows


def require_readable(path: Path, error: BaseException) -> None:
    """Raises Interrupted for an error of the operating system. Damaged files are an OSError too, without a number."""
    if isinstance(error, OSError) and error.errno is not None:
        with reported("read", path, READ_AGAIN, Interrupted):
            raise error


def without_nulls(value: Any) -> Any:
    """The value without entries that are null: columns have every key that any row has. Lists of pairs (Arrow's maps)
    become objects, and what JSON does not know becomes text. Raises UnicodeDecodeError."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        if value and all(isinstance(item, tuple) and len(item) == 2 for item in value):
            return {str(key): without_nulls(item) for key, item in value if item is not None}
        return [without_nulls(item) for item in value]
    if isinstance(value, bytes):  # Text that its writer did not declare as such.
        return value.decode("utf-8")
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
