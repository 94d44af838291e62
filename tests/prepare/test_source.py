"""Rows of JSONL, JSON and Parquet: the same rows, whatever the format and wherever a block begins."""
import json
import random
import sys
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

from support import GOLDEN, QUESTION, Scratch, run_job, samples_of

from percheron_prepare import json_values, source
from percheron_prepare.failure import Failure
from percheron_prepare.model import load_model
from percheron_prepare.options import Options
from percheron_prepare.source import BlockReader, Kind, kind_of, open_source

ROWS: list[dict[str, Any]] = [{"id": i, "messages": [{"role": "user", "content": "q" * i + " [\"}é\\"},
                                                     {"role": "assistant", "content": f"a{i}"}]} for i in range(50)]


class SourceTest(unittest.TestCase):
    def setUp(self) -> None:
        self.scratch = Scratch()
        self.addCleanup(self.scratch.close)

    def file(self, name: str, content: str | bytes) -> Path:
        path = self.scratch.path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def read(self, *paths: Path, block_bytes: int = 1 << 20) -> list[tuple[int, Any]]:
        with mock.patch.object(source, "BLOCK_BYTES", block_bytes), \
                mock.patch.object(json_values, "READ_BYTES", block_bytes):
            found = open_source(paths)
            reader = BlockReader(found.files)
            return [(row.number, row.parsed()[0]) for block in found.blocks for row in reader.rows(block)]

    def test_blocks_of_any_size_hold_every_row_once(self) -> None:
        expected = list(enumerate(ROWS, 1))
        lines = self.file("a.jsonl", "".join(json.dumps(row) + "\n" for row in ROWS))
        array = self.file("a.json", "\ufeff " + json.dumps(ROWS, indent=1, ensure_ascii=False))
        pretty = self.file("b.json", "\n\n".join(json.dumps(row, indent=2) for row in ROWS) + "\n")
        for size in (64, 100, 129, 1000, 1 << 20):
            for path in (lines, array, pretty):
                with self.subTest(size=size, path=path.name):
                    self.assertEqual(self.read(path, block_bytes=size), expected)

    def test_random_lines_are_numbered_as_an_editor_does(self) -> None:
        seed = random.randrange(1 << 30)
        draw = random.Random(seed)
        for _ in range(50):
            text = "".join(draw.choice(["\n", "\r\n", json.dumps({"x": "y" * draw.randrange(40)}) + "\n"])
                           for _ in range(30))
            expected = [(i, json.loads(line)) for i, line in enumerate(text.split("\n"), 1) if line.strip()]
            self.assertEqual(self.read(self.file("r.jsonl", text), block_bytes=draw.randrange(1, 60)), expected, seed)

    def test_a_json_file_may_hold_lines_or_one_object(self) -> None:
        row = ROWS[3]
        self.assertEqual(kind_of(self.file("a.json", json.dumps(row) + "\n" + json.dumps(row))), Kind.LINES)
        for text in (json.dumps(row), json.dumps(row, indent=1), "[" + json.dumps(row) + "]"):
            self.assertEqual(self.read(self.file("a.json", text)), [(1, row)])
        self.assertEqual(self.read(self.file("a.json", "[]")), [])
        self.assertEqual(self.read(self.file("a.json", "")), [])

    def test_a_damaged_array_is_refused_with_its_byte(self) -> None:
        whole = json.dumps(ROWS)
        for text, word in ((whole[:-1], "not closed"), (whole[:-20], "byte"), (whole + " {}", "follows"),
                           (whole[:30] + "\x01" + whole[30:], "byte 3"), (whole.replace("a7\"", "a7"), "byte")):
            for size in (64, 1 << 20):
                with self.subTest(text=text[-20:]), self.assertRaisesRegex(Failure, f"a.json is no JSON, at byte .*{word}|{word}"):
                    self.read(self.file("a.json", text), block_bytes=size)

    def test_packed_files_and_other_formats_are_named(self) -> None:
        for name, content, word in (("a.jsonl.gz", b"\x1f\x8b\x08", "gzip"), ("a.jsonl.zst", b"\x28\xb5\x2f\xfd", "Zstandard"),
                                    ("a.parquet", b"{}", "no Parquet file"), ("b.parquet", b"PAR1xx", "no Parquet file")):
            with self.subTest(name=name), self.assertRaisesRegex(Failure, word):
                self.read(self.file(name, content))

    def test_several_files_are_read_one_after_the_other(self) -> None:
        one, two = (self.file(f"{i}.jsonl", json.dumps(row) + "\n") for i, row in enumerate(ROWS[:2]))
        self.assertEqual(self.read(one, two), [(1, ROWS[0]), (1, ROWS[1])])
        self.assertNotEqual(open_source([one, two]).hash, open_source([two, one]).hash)


class ParquetTest(unittest.TestCase):
    def setUp(self) -> None:
        self.scratch = Scratch()
        self.addCleanup(self.scratch.close)
        self.path = self.scratch.path / "in.parquet"

    def write(self, rows: list[dict[str, Any]], row_group_size: int) -> None:
        import pyarrow
        import pyarrow.parquet
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), self.path, row_group_size=row_group_size)

    def test_columns_give_the_samples_that_lines_give(self) -> None:
        call = [{"function": {"name": "f", "arguments": "{\"a\": 1}"}}]
        rows = ROWS + [{"id": 50, "messages": [{"role": "user", "content": "?"},
                                               {"role": "assistant", "content": "", "tool_calls": call}]},
                       {"id": 51, "messages": QUESTION}]
        lines = self.scratch.rows(rows)
        model = load_model(GOLDEN / "qwen2.5")
        run_job(model, Options(), lines, self.scratch.path / "lines.safetensors")
        expected = samples_of(self.scratch.path / "lines.safetensors")
        self.assertEqual(len(expected), 52)
        for size in (7, 64):
            self.write(rows, size)
            with mock.patch.object(source, "BLOCK_ROWS", 3):
                run_job(model, Options(), self.path, self.scratch.path / "columns.safetensors")
            self.assertEqual(samples_of(self.scratch.path / "columns.safetensors"), expected)

    def test_a_block_is_read_without_those_before_it(self) -> None:
        self.write(ROWS, 20)
        with mock.patch.object(source, "BLOCK_ROWS", 6):
            found = open_source([self.path])
            for block in reversed(found.blocks):
                rows = list(BlockReader(found.files).rows(block))
                self.assertEqual([row.content["id"] for row in rows], [row.number - 1 for row in rows])  # type: ignore
                self.assertEqual(len(rows), block.end - block.begin)

    def test_without_pyarrow_one_line_says_what_to_install(self) -> None:
        self.write(ROWS, 20)
        with mock.patch.dict(sys.modules, {"pyarrow": None, "pyarrow.parquet": None}), \
                self.assertRaisesRegex(Failure, "in.parquet is a Parquet file, which needs the package pyarrow: pip"):
            open_source([self.path])


if __name__ == "__main__":
    unittest.main()
