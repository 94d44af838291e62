"""The held-out side: disjoint, complete, and the same whatever the order, the spelling and the processes."""
import contextlib
import io
import random
import unittest
from typing import Any

from support import GOLDEN, Scratch, assistant, samples_of, user

from percheron_prepare.__main__ import main

SHARE = 0.2


def row(i: int, name: str = "") -> dict[str, Any]:
    return {"id": name or f"r{i}", "messages": [user(f"What is {i}?"), assistant(f"It is {i}.")]}


class HeldOutTest(unittest.TestCase):
    def setUp(self) -> None:
        self.scratch = Scratch()
        self.addCleanup(self.scratch.close)
        self.output = self.scratch.path / "out.safetensors"
        self.held_out = self.scratch.path / "out.held_out.safetensors"

    def split(self, rows: list[Any], *options: str, share: str = str(SHARE)) -> tuple[list[Any], list[Any]]:
        """Samples of both sides."""
        source = self.scratch.rows(rows)
        self.said = io.StringIO()
        with contextlib.redirect_stdout(self.said), contextlib.redirect_stderr(self.said):
            self.code = main(["prepare", "--model", str(GOLDEN / "qwen2.5"), "--input", str(source), "--output",
                              str(self.output), "--held-out-share", share, *options])
        if self.code:
            return [], []
        return samples_of(self.output), samples_of(self.held_out)

    def test_sides_are_disjoint_and_complete(self) -> None:
        train, held_out = self.split([row(i) for i in range(500)])
        names = [name for name, _, _ in train + held_out]
        self.assertEqual(sorted(names), sorted(f"r{i}" for i in range(500)))
        self.assertAlmostEqual(len(held_out) / 500, SHARE, delta=0.06)

    def test_order_and_processes_do_not_matter(self) -> None:
        rows = [row(i) for i in range(200)]
        train, held_out = self.split(rows)
        random.Random(1).shuffle(rows)
        for options in ((), ("--processes", "3")):
            again, held_out_again = self.split(rows, *options)
            self.assertEqual((sorted(again), sorted(held_out_again)), (sorted(train), sorted(held_out)))

    def test_files_may_be_renamed_reordered_and_cut_elsewhere(self) -> None:
        seed = random.randrange(1 << 30)
        draw = random.Random(seed)
        rows = [row(i) for i in range(300)]
        expected: set[str] | None = None
        for _ in range(6):
            draw.shuffle(rows)
            cuts = sorted(draw.sample(range(1, 300), draw.randrange(4)))
            files = [self.scratch.rows(rows[a:b], f"{draw.randrange(1 << 30)}.jsonl") for a, b in zip([0, *cuts], [*cuts, 300])]
            with contextlib.redirect_stdout(io.StringIO()):
                code = main(["prepare", "--model", str(GOLDEN / "qwen2.5"), "--input", *map(str, files), "--output",
                             str(self.output), "--held-out-share", str(SHARE)])
            self.assertEqual(code, 0)
            train, held_out = ({name for name, _, _ in samples_of(path)} for path in (self.output, self.held_out))
            self.assertEqual((train & held_out, train | held_out), (set(), {r["id"] for r in rows}), f"seed {seed}")
            self.assertEqual(held_out, expected or held_out, f"seed {seed}")
            expected = held_out

    def test_soup_680_copies_of_a_row_land_on_one_side(self) -> None:
        # Soup#680: over-sampling before the split put every validation row into training.
        rows = [row(i % 100, f"c{i}") for i in range(400)]
        rows += [{"id": f"s{i}", "conversations": [{"from": "human", "value": f"What is {i}?"},
                                                   {"from": "gpt", "value": f"It is {i}."}]} for i in range(100)]
        train, held_out = self.split(rows)
        sides = [{tuple(ids) for _, ids, _ in side} for side in (train, held_out)]
        self.assertFalse(sides[0] & sides[1])
        self.assertEqual((len(sides[0] | sides[1]), len(train) + len(held_out)), (100, 500))
        self.assertTrue(held_out)

    def test_a_larger_share_keeps_what_is_held_out(self) -> None:
        rows = [row(i) for i in range(200)]
        small = {name for name, _, _ in self.split(rows, share="5%")[1]}
        large = {name for name, _, _ in self.split(rows, share="0.3")[1]}
        self.assertLess(small, large)

    def test_an_empty_side_is_a_failure(self) -> None:
        self.split([row(0), row(1)], share="0.0001")
        self.assertEqual(self.code, 1)
        self.assertIn("none of 2 rows falls to the held-out side", self.said.getvalue())
        self.assertFalse(self.output.exists() or self.held_out.exists())

    def test_the_passport_tells_the_share(self) -> None:
        self.split([row(i) for i in range(50)], "--reuse")
        self.split([row(i) for i in range(50)], "--reuse")
        self.assertIn("up to date", self.said.getvalue())
        self.split([row(i) for i in range(50)], "--reuse", share="0.3")
        self.assertNotIn("up to date", self.said.getvalue())
        self.held_out.unlink()
        self.split([row(i) for i in range(50)], "--reuse", share="0.3")
        self.assertNotIn("up to date", self.said.getvalue())


if __name__ == "__main__":
    unittest.main()
