"""The journal of rows that are done, killed at every byte."""
import random
import unittest
from pathlib import Path
from typing import Any

from support import Scratch

from percheron_prepare.answer_journal import AnswerJournal


class AnswerJournalTest(unittest.TestCase):
    def setUp(self) -> None:
        self.scratch = Scratch()
        self.addCleanup(self.scratch.close)
        self.path = self.scratch.path / "journal"

    def open(self, path: Path | None = None) -> tuple[AnswerJournal, list[dict[str, Any]]]:
        recovered: list[dict[str, Any]] = []
        journal = AnswerJournal(path or self.path, lambda: 0.0, recovered.append)
        self.addCleanup(journal.close)
        return journal, recovered

    def test_entries_come_back_in_the_order_of_the_source(self) -> None:
        ordinals = list(range(300))
        random.Random(5).shuffle(ordinals)
        journal, _ = self.open()
        for ordinal in ordinals:
            journal.append(ordinal, {"row": f"row {ordinal}\n\u2028é"})
        self.assertEqual([entry["ordinal"] for entry in journal.in_order()], list(range(300)))
        self.assertEqual([entry["row"] for entry in journal.in_order()], [f"row {i}\n\u2028é" for i in range(300)])
        self.assertEqual(journal.first_missing, 300)

    def test_whatever_a_kill_leaves_of_the_last_line_is_cut_off(self) -> None:
        journal, _ = self.open()
        ends = [0]
        for ordinal in (1, 0, 2):
            journal.append(ordinal, {"row": "x" * ordinal})
            ends.append(self.path.stat().st_size)
        whole = self.path.read_bytes()
        for size in range(len(whole) + 1):
            torn = self.scratch.path / "torn"
            torn.write_bytes(whole[:size])
            again, recovered = self.open(torn)
            count = sum(end <= size for end in ends[1:])
            self.assertEqual([entry["ordinal"] for entry in recovered], [1, 0, 2][:count])
            self.assertEqual(torn.stat().st_size, ends[count])
            again.append(9, {})  # What follows is not glued to the torn line.
            self.assertIn(9, self.open(torn)[0])

    def test_bytes_that_a_power_cut_left_wrong_are_cut_off(self) -> None:
        journal, _ = self.open()
        for ordinal in range(3):
            journal.append(ordinal, {"row": "x"})
        whole = bytearray(self.path.read_bytes())
        whole[len(whole) // 2] ^= 1
        self.path.write_bytes(whole)
        again, recovered = self.open()
        self.assertEqual((len(recovered), 0 in again, 1 in again, 2 in again), (1, True, False, False))

    def test_only_the_entries_that_wait_for_their_turn_are_remembered(self) -> None:
        journal, _ = self.open()
        for ordinal in [1, 0, 3, 2, 5]:
            journal.append(ordinal, {})
        self.assertEqual(journal.first_missing, 4)
        self.assertEqual([i in journal for i in range(7)], [True] * 4 + [False, True, False])


if __name__ == "__main__":
    unittest.main()
