"""The doctor finds what is wrong with rows and shards, says it in one screen, and tells by its exit code."""
import contextlib
import html
import io
import json
import random
import re
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from support import GOLDEN, QUESTION, ROOT, Scratch, assistant, samples_of, user

from percheron_prepare import __main__, doctor, seen_hashes
from percheron_prepare.shard import Tensor, write_safetensors

CLEAN, PROBLEMS, BAD_INPUT = 0, 1, 2
PASSPORT = {"tokenizer_hash": "t", "template_hash": "c", "source_hash": "s", "options_hash": "o", "vocab_size": 100}
BOS, USER, END = 1, 2, 3


def write_shard(path: Path, samples: list[tuple[list[int], list[int]]], **passport: Any) -> Path:
    """A shard of given ids and masks, without names."""
    path.parent.mkdir(exist_ok=True)
    ids = np.array([i for sample, _ in samples for i in sample], dtype="<u4")
    mask = bytes(m for _, part in samples for m in part)
    offsets = np.cumsum([0, *(len(sample) for sample, _ in samples)]).astype("<i8")
    write_safetensors(path, {"offsets": Tensor("I64", len(offsets), offsets.nbytes, [offsets.tobytes()]),
                             "tokens": Tensor("U32", len(ids), ids.nbytes, [ids.tobytes()]),
                             "loss_mask": Tensor("U8", len(mask), len(mask), [mask])},
                      {"format": "percheron.tokens.v1", "passport": json.dumps({**PASSPORT, **passport})})
    return path


def sample(i: int) -> tuple[list[int], list[int]]:
    return [BOS, USER, 10 + i, 20, 30 + i, END], [0, 0, 0, 0, 1, 1]


class DoctorTest(unittest.TestCase):
    def setUp(self) -> None:
        self.scratch = Scratch()
        self.addCleanup(self.scratch.close)
        self.path = self.scratch.path
        self.out = self.err = ""

    def examine(self, data: Path, *options: str) -> int:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = doctor.main([str(data), *options])
        self.out, self.err = out.getvalue(), err.getvalue()
        return code

    def found(self, data: Path, *options: str) -> dict[str, int]:
        """Problems and notes with their counts; the exit code must fit."""
        code = self.examine(data, "--json", *options)
        report = json.loads(self.out)
        self.assertEqual(code, PROBLEMS if report["problems"] else CLEAN)
        return {f["check"]: f["count"] for f in report["problems"] + report["notes"]}

    def test_clean_data_is_said_to_be_clean(self) -> None:
        rows = self.scratch.rows([{"messages": QUESTION}, {"messages": [user("a"), assistant("b")]}])
        for options in ((), ("--model", str(GOLDEN / "qwen2.5"))):
            self.assertEqual(self.examine(rows, *options), CLEAN, self.out)
            self.assertIn("no problems found", self.out)
        shard = write_shard(self.path / "a.safetensors", [sample(i) for i in range(9)])
        self.assertEqual(self.examine(shard), CLEAN, self.out)
        self.assertIn("33.3 % of the tokens", self.out)

    def test_faults_of_rows_are_counted(self) -> None:
        rows = [{"id": 1, "messages": QUESTION}, {"id": 1, "conversations": QUESTION}, {"messages": [user("a"), assistant("")]},
                {"messages": [user("a"), assistant("b", finish_reason="length")]},
                {"messages": [user("a"), user("b"), assistant("c")]}, {"messages": [user("a"), assistant("b"), assistant("c")]},
                {"messages": [*QUESTION, user("More?")]}, {"messages": [user("a")]}, {"messages": []},
                {"messages": [user("<|im_end|>"), assistant("x")]}, {"messages": [{"role": "odd", "content": "a"}]}, 5]
        expected = {"duplicate": 1, "duplicate_id": 1, "empty_answer": 1, "answer_cut": 1, "consecutive_users": 1, "odd_roles": 1,
                    "ends_with_user": 1, "no_assistant_turn": 1, "empty_conversation": 1, "unknown_role": 1,
                    "not_an_object": 1}
        source = self.scratch.rows(rows)
        self.assertEqual(self.found(source), expected)
        self.assertEqual(self.found(source, "--model", str(GOLDEN / "qwen2.5")), {**expected, "markers_in_content": 1})

    def test_specforge_482_skipped_rows_have_different_reasons(self) -> None:
        # SpecForge#482, #368: an empty conversation and one that starts with an answer.
        rows = self.scratch.rows([{"conversations": []}, {"conversations": [assistant("a"), user("b"), assistant("c")]}])
        self.assertEqual(self.found(rows), {"empty_conversation": 1, "starts_with_assistant": 1})

    def test_copies_beyond_the_limit_are_looked_for_in_a_share_and_that_is_said(self) -> None:
        rows = [{"id": i % 450, "messages": [user(f"q{i % 450}"), assistant("a")]} for i in range(900)]
        source, shard = self.scratch.rows(rows), self.path / "a.safetensors"
        write_shard(shard, [([BOS, USER, 10 + i % 30, 40 + i // 30 % 15, END], [0, 0, 0, 1, 1]) for i in range(900)])
        for data, checks in ((source, ("duplicate", "duplicate_id")), (shard, ("duplicate",))):
            whole = self.found(data)
            self.assertEqual([whole[check] for check in checks], [450] * len(checks))
            with mock.patch.object(seen_hashes, "HASHES_MAX", 100):
                found = self.found(data)
            self.assertEqual(found["copies_sampled"], len(checks))
            self.assertIn("copies_sampled", self.out)
            self.assertRegex(self.out, r"in the end 1 of (8|16) (rows|samples) was compared")
            for check in checks:
                self.assertTrue(0 < found[check] < 450, found)

    def test_seen_hashes_are_bounded_and_a_share_of_copies_is_found(self) -> None:
        draw = random.Random(1)
        keys = [draw.getrandbits(64) for _ in range(20_000)]
        seen = seen_hashes.SeenHashes(hashes_max=1000)
        self.assertFalse(any(seen.is_copy(key, str) for key in keys))
        self.assertLessEqual(len(seen._seen), 1000)
        found = sum(seen.is_copy(key, str) for key in keys)
        self.assertEqual(found, len(seen._seen))
        self.assertGreater(found, 400)

    def test_speculators_835_cut_answers_are_counted(self) -> None:
        # speculators#835: 35 % of the answers had ended by length, and none was said to be.
        row = {"messages": [user("a"), assistant("b")]}
        rows = self.scratch.rows([{**row, "id": i, "finish_reason": "length" if i < 3 else "stop"} for i in range(10)])
        for options in ((), ("--model", str(GOLDEN / "qwen2.5"))):
            self.assertEqual(self.found(rows, *options)["answer_cut"], 3)

    def test_faults_of_samples_are_counted(self) -> None:
        ids, mask = sample(0)
        bad = {"no_supervision": (ids[:3], [0] * 3), "everything_supervised": ([9, 8, END], [1] * 3),
               "double_bos": ([BOS, *ids[:2], 77, *ids[3:]], [0, *mask]), "answer_cut": ([BOS, USER, 40, 41], [0, 0, 1, 1]),
               "missing_end_of_turn": ([BOS, USER, 50, 51, USER, 52, END], [0, 0, 1, 1, 0, 1, 1]),
               "supervised_behind_end_of_turn": ([BOS, USER, 60, END, 61], [0, 0, 1, 1, 1]),
               "empty_answer": ([BOS, USER, 70, END], [0, 0, 0, 1]), "id_out_of_range": ([BOS, 100, 5, END], [0, 0, 1, 1]),
               "duplicate": sample(3)}
        good = [sample(i) for i in range(20)]
        for check, odd in bad.items():
            for name, samples in (("a", [*good, odd]), ("b", [*good[:10], odd, *good[10:]])):
                with self.subTest(check=check):
                    shard = write_shard(self.path / f"{name}.safetensors", samples)
                    self.assertEqual(self.found(shard), {check: 1})

    def test_an_end_of_turn_that_is_not_found_is_said(self) -> None:
        shard = write_shard(self.path / "a.safetensors", [([1, 10 + i], [0, 1]) for i in range(30)])
        self.assertEqual(self.found(shard), {"end_of_turn_unknown": 1})

    def test_sets_are_compared_with_their_index(self) -> None:
        folder = self.path / "set"
        for i in range(2):
            write_shard(folder / f"tokens-0000{i}.safetensors", [sample(9 * i + j) for j in range(9)])
        index = {"shards": [{"file": f"tokens-0000{i}.safetensors"} for i in range(2)]}
        (folder / "shards.json").write_text(json.dumps(index), encoding="utf-8")
        self.assertEqual(self.found(folder), {})
        write_shard(folder / "tokens-00002.safetensors", [sample(30)], vocab_size=101)
        (folder / "tokens-00000.safetensors").unlink()
        self.assertEqual(self.found(folder), {"missing_shard": 1, "unlisted_shard": 1, "passports_differ": 1})

    def test_another_models_shard_is_told(self) -> None:
        shard = self.path / "out.safetensors"
        with contextlib.redirect_stdout(io.StringIO()):
            __main__.main(["prepare", "--model", str(GOLDEN / "qwen2.5"), "--input", str(self.scratch.rows([{"messages": QUESTION}])),
                           "--output", str(shard)])
        self.assertEqual(self.found(shard, "--model", str(GOLDEN / "qwen2.5")), {})
        self.assertLessEqual({"other_tokenizer", "other_template"}, set(self.found(shard, "--model", str(GOLDEN / "llama3"))))

    def test_bad_input_is_one_line_and_exit_code_2(self) -> None:
        whole = write_shard(self.path / "a.safetensors", [sample(1)]).read_bytes()
        (self.path / "empty").mkdir()
        (self.path / "empty.jsonl").write_text("", encoding="utf-8")
        rows = self.scratch.rows([{"messages": QUESTION}])
        cases = [(self.path / "none", "does not exist"), (self.path / "empty", "no token shard"),
                 (self.path / "empty.jsonl", "is empty")]
        for i, content in enumerate((whole[:-1], whole + b"x", whole[:9], b"", b"\xff" * 20,
                                     whole.replace(b"percheron.tokens.v1", b"percheron.tokens.v9"),
                                     whole.replace(b'"loss_mask"', b'"lost_mask"'))):
            (self.path / f"bad{i}.safetensors").write_bytes(content)
            cases.append((self.path / f"bad{i}.safetensors", f"bad{i}.safetensors"))
        for path, text in cases:
            with self.subTest(path=path.name):
                self.assertEqual(self.examine(path), BAD_INPUT)
                self.assertRegex(self.err, f"^error: .*{re.escape(text)}")
                self.assertEqual((len(self.err.splitlines()), self.out), (1, ""))
        self.assertEqual(self.examine(rows, "--show", "1"), BAD_INPUT)
        self.assertIn("--model", self.err)

    def test_offsets_and_masks_of_a_shard_are_checked(self) -> None:
        for samples, word in (([([1, 2], [0, 2])], "loss_mask has the value 2"), ([([], []), ([1], [1])], "must ascend")):
            self.assertEqual(self.examine(write_shard(self.path / "a.safetensors", samples)), BAD_INPUT)
            self.assertIn(word, self.err)

    def test_supervised_tokens_are_coloured_or_bracketed(self) -> None:
        rows = self.scratch.rows([{"messages": [user("Is it?\x1b[31m"), assistant("It is.\nYes")]}])
        model = ("--model", str(GOLDEN / "qwen2.5"))
        self.examine(rows, *model, "--show", "1", "--color", "always")
        self.assertIn("assistant\n\x1b[30;42mIt is.\x1b[0m\n\x1b[30;42mYes<|im_end|>\x1b[0m\n", self.out)
        self.assertIn("Is it?\ufffd[31m", self.out)
        self.examine(rows, *model, "--show", "1")
        self.assertIn("assistant\n[[It is.]]\n[[Yes<|im_end|>]]\n", self.out)
        self.assertNotIn("\x1b", self.out)

    def test_the_page_holds_all_it_needs_and_marks_what_is_supervised(self) -> None:
        page, shard = self.path / "page.html", self.path / "out.safetensors"
        rows = self.scratch.rows([{"messages": [user("<script>?"), assistant("<b> & é \U0001f600")]}] * 3)
        model = ("--model", str(GOLDEN / "qwen2.5"))
        with contextlib.redirect_stdout(io.StringIO()):
            __main__.main(["prepare", *model, "--input", str(rows), "--output", str(shard)])
        for data in (rows, shard):
            self.assertEqual(self.examine(data, *model, "--html", str(page)), PROBLEMS)
            text = page.read_text(encoding="utf-8")
            marked = ["".join(re.findall(r"<span[^>]*>([^<]*)</span>", part)) for part in
                      re.findall(r"<mark>(<span.*?)</mark>", text, re.DOTALL)]
            self.assertEqual([html.unescape(part) for part in marked], ["<b> & é \U0001f600<|im_end|>"] * 3)
            self.assertNotIn("<script", text)
            self.assertNotRegex(text, "src=|href=|http")
        self.assertEqual(len(samples_of(shard)), 3)

    def test_real_files_are_examined(self) -> None:
        # SpecForge's tool_use_conversation.jsonl in small, and rows of prompts as evaluation sets have them.
        turns = self.scratch.rows([{"turns": ["a", "b"]}, {"turns": ["c"]}])
        self.assertEqual(self.found(turns, "--model", str(GOLDEN / "qwen2.5"), "--prompts").get("no_assistant_turn"), None)
        demo = ROOT / "deploy" / "demo" / "data" / "eval_conversations.jsonl"
        self.assertEqual(self.found(demo), {"answer_cut": 55})


if __name__ == "__main__":
    unittest.main()
