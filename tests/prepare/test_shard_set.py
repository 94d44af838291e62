"""Sets of shards: cut by size, the same bytes for any number of processes, and after a kill at any place."""
import contextlib
import errno
import io
import json
import os
import random
import signal
import subprocess
import sys
import time
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO
from unittest import mock

from support import GOLDEN, ROOT, Scratch, assistant, samples_of, user

from percheron_prepare import prepare, source
from percheron_prepare.__main__ import main
from percheron_prepare.shard import read_shard

# The command with small blocks that are kept at once, so that a small file has many places to stop at.
DRIVER = """
import sys
from percheron_prepare import prepare, source
source.BLOCK_BYTES, prepare.KEEP_PERIOD_S = 2000, 0.0
from percheron_prepare.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
# The run below takes seconds; one that has stopped never ends.
WATCHDOG_S = 120.0


def rows(count: int) -> list[dict[str, Any]]:
    good = [{"id": i, "messages": [user(f"Say {i}."), assistant(f"{i} " * (i % 50))]} for i in range(count)]
    return [row if row["id"] % 17 else {"odd": row["id"]} for row in good]


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


class ShardSetTest(unittest.TestCase):
    def setUp(self) -> None:
        self.scratch = Scratch()
        self.addCleanup(self.scratch.close)
        self.said = ""

    def arguments(self, source_file: Path, output: Path, *options: str) -> list[str]:
        return ["prepare", "--model", str(GOLDEN / "qwen2.5"), "--input", str(source_file), "--output", str(output), *options]

    def prepare_process(self, source_file: Path, output: Path, *options: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-c", DRIVER, *self.arguments(source_file, output, "--processes", "2", *options)],
            env={**os.environ, "PYTHONPATH": str(ROOT / "tools" / "percheron_prepare")}, stdout=subprocess.PIPE, text=True)

    def run_prepare(self, source_file: Path, output: Path, *options: str) -> int:
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code = main(self.arguments(source_file, output, *options))
        self.said = out.getvalue()
        return code

    def test_shards_keep_the_limit_and_hold_everything(self) -> None:
        file = self.scratch.rows(rows(300))
        whole, folder = self.scratch.path / "whole.safetensors", self.scratch.path / "set"
        self.assertEqual(self.run_prepare(file, whole), 0)
        self.assertEqual(self.run_prepare(file, folder, "--shard-bytes", "16K"), 0, self.said)
        shards = sorted(folder.glob("*.safetensors"))
        self.assertGreater(len(shards), 3)
        self.assertLessEqual(max(shard.stat().st_size for shard in shards), 16 << 10)
        self.assertEqual([s for shard in shards for s in samples_of(shard)], samples_of(whole))
        self.assertEqual(len({read_shard(shard)[1]["passport"] for shard in [whole, *shards]}), 1)
        index = json.loads((folder / "shards.json").read_text(encoding="utf-8"))
        self.assertEqual([shard["file"] for shard in index["shards"]], [shard.name for shard in shards])
        self.assertEqual(sum(shard["samples"] for shard in index["shards"]), index["counts"]["samples"])

    def test_a_sample_over_the_limit_has_a_shard_of_its_own(self) -> None:
        folder = self.scratch.path / "set"
        self.assertEqual(self.run_prepare(self.scratch.rows(rows(40)), folder, "--shard-bytes", "10"), 0)
        self.assertEqual(len(list(folder.glob("*.safetensors"))), 37)

    def test_any_number_of_processes_gives_the_same_bytes(self) -> None:
        file, folder = self.scratch.rows(rows(400)), self.scratch.path / "out"
        trees = []
        with mock.patch.object(source, "BLOCK_BYTES", 5000):
            for processes in ("1", "2", "5"):
                self.assertEqual(self.run_prepare(file, folder / "set", "--shard-bytes", "16K", "--processes", processes,
                                                  "--held-out-share", "0.1"), 0, self.said)
                trees.append(tree(folder))
        self.assertEqual(trees[0], trees[1])
        self.assertEqual(trees[0], trees[2])
        self.assertIn("24  unknown_shape", self.said)
        self.assertIn(f"{file}:1: unknown_shape", self.said)

    def test_specforge_481_a_long_row_does_not_stop_the_workers(self) -> None:
        # SpecForge#422, #481: rows over 32,768 tokens dead-locked the processes that tokenized them.
        file, output = self.scratch.rows([*rows(50), {"messages": [user("x"), assistant("1 2 " * 40_000)]}, *rows(50)]), \
            self.scratch.path / "o.safetensors"
        done = subprocess.run([sys.executable, "-c", DRIVER, *self.arguments(file, output, "--processes", "8")],
                              env={**os.environ, "PYTHONPATH": str(ROOT / "tools" / "percheron_prepare")},
                              stdout=subprocess.PIPE, text=True, timeout=WATCHDOG_S)
        self.assertEqual(done.returncode, 0, done.stdout)
        lengths = sorted(len(ids) for _, ids, _ in samples_of(output))
        self.assertEqual(len(lengths), 95)
        self.assertGreater(lengths[-1], 40_000)

    def test_speculators_295_a_killed_run_goes_on_to_the_same_bytes(self) -> None:
        # speculators#295: resumed data generation kept wrong lengths.
        seed = random.randrange(1 << 30)
        draw, file = random.Random(seed), self.scratch.rows(rows(1500))
        kills = resumed = 0
        for options in (("--shard-bytes", "20K", "--held-out-share", "0.1"), ()):
            name = "set" if options else "one.safetensors"
            undisturbed, folder = self.scratch.path / "a", self.scratch.path / "b"
            self.assertEqual(self.run_prepare(file, undisturbed / name, *options), 0)
            began = time.monotonic()
            self.prepare_process(file, self.scratch.path / "timed" / name, *options).communicate()
            span = time.monotonic() - began
            for _ in range(12):
                process = self.prepare_process(file, folder / name, *options)
                try:
                    said, _ = process.communicate(timeout=span * draw.uniform(0.1, 0.8))
                    resumed += "interrupted run" in said
                    break
                except subprocess.TimeoutExpired:
                    process.send_signal(signal.SIGKILL)
                    process.communicate()
                    kills += 1
            else:
                with mock.patch.object(source, "BLOCK_BYTES", 2000):
                    self.assertEqual(self.run_prepare(file, folder / name, *options), 0)
                resumed += "interrupted run" in self.said
            self.assertEqual(tree(folder), tree(undisturbed), f"seed {seed}, {kills} kills")
        self.assertGreater(kills, 0)

    def test_what_another_command_left_is_not_gone_on_from(self) -> None:
        file, output = self.scratch.rows(rows(300)), self.scratch.path / "out.safetensors"
        with mock.patch.object(source, "BLOCK_BYTES", 1000), mock.patch.object(prepare, "KEEP_PERIOD_S", 0.0):
            with mock.patch.object(prepare, "why_nothing", side_effect=KeyboardInterrupt):
                self.assertEqual(self.run_prepare(file, output), 130)
            self.assertTrue((self.scratch.path / "out.safetensors.partial").is_dir())
            self.assertEqual(self.run_prepare(file, output, "--max-length", "200"), 0, self.said)
            self.assertNotIn("interrupted run", self.said)
            with mock.patch.object(prepare, "why_nothing", side_effect=KeyboardInterrupt):
                self.assertEqual(self.run_prepare(file, output), 130)
            self.assertEqual(self.run_prepare(file, output), 0)
            self.assertIn("300 of the rows were read by an interrupted run", self.said)
        self.assertFalse((self.scratch.path / "out.safetensors.partial").exists())

    def test_work_that_lost_a_file_is_not_gone_on_from(self) -> None:
        file, output = self.scratch.rows(rows(300)), self.scratch.path / "out.safetensors"
        self.assertEqual(self.run_prepare(file, output), 0)
        whole = output.read_bytes()
        for lost in ("spool-train/00000.tokens", "spool-train/00000.mask"):
            output.unlink()
            with mock.patch.object(source, "BLOCK_BYTES", 1000), mock.patch.object(prepare, "KEEP_PERIOD_S", 0.0), \
                    mock.patch.object(prepare, "why_nothing", side_effect=KeyboardInterrupt):
                self.assertEqual(self.run_prepare(file, output), 130)
            (self.scratch.path / "out.safetensors.partial" / lost).unlink()
            self.assertEqual(self.run_prepare(file, output), 0, self.said)
            self.assertNotIn("interrupted run", self.said)
            self.assertEqual(output.read_bytes(), whole)

    def test_a_worker_that_dies_is_told_and_gone_on_from(self) -> None:
        file, output = self.scratch.rows(rows(300)), self.scratch.path / "out.safetensors"
        killed = []

        def kill_one(pool: Any) -> None:
            killed.append(pool._workers[0].pid)
            os.kill(pool._workers[0].pid, signal.SIGKILL)

        from percheron_prepare.worker_pool import WorkerPool
        made = WorkerPool.__init__
        with mock.patch.object(source, "BLOCK_BYTES", 1000), \
                mock.patch.object(WorkerPool, "__init__", lambda pool, *a: (made(pool, *a), kill_one(pool))[0]):
            self.assertEqual(self.run_prepare(file, output, "--processes", "2"), 1)
        self.assertIn("a worker process was killed by signal 9", self.said)
        self.assertEqual(self.run_prepare(file, output), 0)

    def test_a_read_error_in_the_middle_is_told_and_gone_on_from(self) -> None:
        file, output = self.scratch.rows(rows(300)), self.scratch.path / "out.safetensors"
        self.assertEqual(self.run_prepare(file, output), 0)
        whole, lines_of = output.read_bytes(), source.lines_of
        output.unlink()

        def flaky(opened: BinaryIO, block: source.Block) -> Iterator[Any]:
            if block.begin > file.stat().st_size // 2:
                raise OSError(errno.EIO, "Input/output error")
            return lines_of(opened, block)

        with mock.patch.object(source, "BLOCK_BYTES", 1000):
            with mock.patch.object(source, "lines_of", flaky):
                self.assertEqual(self.run_prepare(file, output, "--processes", "1"), 1)
            self.assertIn(f"can't read {file}: Input/output error; run the same command again when it can be read; it goes on "
                          f"from what is in {output}.partial", self.said)
            self.assertFalse(output.exists())
            self.assertEqual(self.run_prepare(file, output), 0, self.said)
        self.assertRegex(self.said, "1[0-9][0-9] of the rows were read by an interrupted run")
        self.assertEqual(output.read_bytes(), whole)

    def test_a_file_that_workers_cannot_read_any_more_costs_nothing_that_is_done(self) -> None:
        file, output = self.scratch.rows(rows(300)), self.scratch.path / "out.safetensors"
        from percheron_prepare.worker_pool import WorkerPool
        made = WorkerPool.__init__
        away = file.with_suffix(".away")
        with mock.patch.object(source, "BLOCK_BYTES", 1000), \
                mock.patch.object(WorkerPool, "__init__", lambda pool, *a: (made(pool, *a), file.rename(away))[0]):
            self.assertEqual(self.run_prepare(file, output, "--processes", "2"), 1)
        self.assertIn(f"can't read {file}: No such file or directory", self.said)
        self.assertTrue((self.scratch.path / "out.safetensors.partial" / "state.json").exists())
        away.rename(file)
        self.assertEqual(self.run_prepare(file, output), 0)

    def test_a_file_that_changes_while_it_is_read_is_refused(self) -> None:
        file, output = self.scratch.rows(rows(300)), self.scratch.path / "out.safetensors"

        def grow(*_: Any) -> None:
            with open(file, "a", encoding="utf-8") as more:
                more.write(json.dumps(rows(1)[0]) + "\n")

        with mock.patch.object(prepare.WorkFolder, "keep", grow), mock.patch.object(prepare, "KEEP_PERIOD_S", 0.0):
            self.assertEqual(self.run_prepare(file, output), 1)
        self.assertIn(f"{file} changed while it was being read", self.said)
        self.assertFalse(output.exists())

    def test_two_runs_do_not_write_one_output(self) -> None:
        file, output = self.scratch.rows(rows(30)), self.scratch.path / "out.safetensors"
        from percheron_prepare.work_folder import WorkFolder
        held = WorkFolder(self.scratch.path / "out.safetensors.partial", {})
        self.assertEqual(self.run_prepare(file, output), 1)
        self.assertIn("another percheron prepare is writing this output", self.said)
        held.remove()
        self.assertEqual(self.run_prepare(file, output), 0)

    def test_an_old_set_is_replaced_and_other_folders_are_not(self) -> None:
        file, folder = self.scratch.rows(rows(300)), self.scratch.path / "set"
        self.run_prepare(file, folder, "--shard-bytes", "16K")
        self.assertEqual(self.run_prepare(file, folder, "--shard-bytes", "16K", "--reuse"), 0)
        self.assertIn("up to date", self.said)
        self.assertEqual(self.run_prepare(file, folder, "--reuse"), 0)
        self.assertEqual(sorted(tree(folder)), ["shards.json", "tokens-00000.safetensors"])
        (folder / "mine.txt").write_text("x", encoding="utf-8")
        self.assertEqual(self.run_prepare(file, folder), 1)
        self.assertIn("holds other files (mine.txt)", self.said)

    def test_a_size_for_one_shard_is_refused(self) -> None:
        self.assertEqual(self.run_prepare(self.scratch.rows(rows(3)), self.scratch.path / "o.safetensors",
                                          "--shard-bytes", "1M"), 1)
        self.assertIn("give a folder", self.said)


if __name__ == "__main__":
    unittest.main()
