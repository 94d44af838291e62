"""The command, its limits, and the shard it writes."""
import contextlib
import io
import json
import unittest
import unittest.mock
from typing import Any

from support import GOLDEN, QUESTION, Scratch, assistant, user

from percheron_prepare.__main__ import ROW_SHAPES, main
from percheron_prepare.model import load_model
from percheron_prepare.shard import read_shard


class PrepareTest(unittest.TestCase):
    def setUp(self) -> None:
        self.scratch = Scratch()
        self.addCleanup(self.scratch.close)
        self.output = self.scratch.path / "deep" / "out.safetensors"
        self.said = ""

    def run_prepare(self, rows: list[Any], *options: str, family: str = "qwen2.5") -> int:
        source = self.scratch.rows(rows)
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code = main(["prepare", "--model", str(GOLDEN / family), "--input", str(source),
                         "--output", str(self.output), *options])
        self.said = out.getvalue()
        return code

    def passport(self) -> dict[str, Any]:
        return json.loads(read_shard(self.output)[1]["passport"])

    def test_the_file_has_the_documented_layout(self) -> None:
        self.assertEqual(self.run_prepare([{"id": "é", "messages": QUESTION}, {"id": 2, "messages": QUESTION}]), 0)
        content = self.output.read_bytes()
        header_bytes = int.from_bytes(content[:8], "little")
        header = json.loads(content[8: 8 + header_bytes])
        self.assertEqual(header_bytes % 8, 0)
        self.assertEqual({name: entry["dtype"] for name, entry in header.items() if name != "__metadata__"},
                         {"offsets": "I64", "id_offsets": "I64", "tokens": "U32", "loss_mask": "U8", "ids": "U8"})
        end = max(entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__")
        self.assertEqual(len(content), 8 + header_bytes + end)
        tensors, metadata = read_shard(self.output)
        self.assertEqual(metadata["format"], "percheron.tokens.v1")
        self.assertEqual(set(self.passport()), {"preparer", "tokenizer_hash", "template_hash", "source_hash",
                                                "options_hash", "vocab_size"})
        self.assertEqual(tensors["offsets"].tolist(), [0, len(tensors["tokens"]) // 2, len(tensors["tokens"])])
        self.assertEqual(tensors["id_offsets"].tolist(), [0, 2, 3])
        self.assertEqual(tensors["ids"].tobytes().decode(), "é2")
        self.assertEqual(len(tensors["tokens"]), len(tensors["loss_mask"]))

    def test_speculators_393_the_vocabulary_is_the_tokenizers_and_not_the_padded_tables(self) -> None:
        # speculators#393: without a row that no text uses a masked slot means something else too.
        folder = self.scratch.model("qwen2.5")
        ids = load_model(folder).tokenizer.raw.get_vocab(with_added_tokens=True).values()
        for rows, expected in ((max(ids) + 65, max(ids) + 1), (max(ids) - 1, max(ids) - 1)):
            (folder / "config.json").write_text(json.dumps({"vocab_size": rows}), encoding="utf-8")
            self.assertEqual(load_model(folder).vocab_size, expected)
        source = self.scratch.rows([{"input_ids": [max(ids)], "loss_mask": [1]},
                                    {"input_ids": [max(ids) + 1], "loss_mask": [1]}])
        (folder / "config.json").write_text(json.dumps({"vocab_size": max(ids) + 65}), encoding="utf-8")
        with contextlib.redirect_stdout(io.StringIO()) as out:
            main(["prepare", "--model", str(folder), "--input", str(source), "--output", str(self.output)])
        self.assertEqual(self.passport()["vocab_size"], max(ids) + 1)
        self.assertIn("1  id_out_of_range", out.getvalue())

    def test_the_same_input_gives_the_same_bytes(self) -> None:
        rows = [{"messages": QUESTION}]
        self.run_prepare(rows)
        first = self.output.read_bytes()
        self.run_prepare(rows)
        self.assertEqual(self.output.read_bytes(), first)

    def test_the_passport_tells_source_options_and_template_apart(self) -> None:
        self.run_prepare([{"messages": QUESTION}])
        first = self.passport()
        for field, options, rows, family in (("source_hash", (), [{"messages": QUESTION, "id": 1}], "qwen2.5"),
                                             ("options_hash", ("--rows", "turn"), [{"messages": QUESTION}], "qwen2.5"),
                                             ("template_hash", (), [{"messages": QUESTION}], "qwen3")):
            self.run_prepare(rows, *options, family=family)
            self.assertNotEqual(self.passport()[field], first[field], field)

    def test_a_shard_with_the_same_passport_is_used_again(self) -> None:
        rows = [{"messages": QUESTION}]
        self.run_prepare(rows, "--reuse")
        first = self.output.stat().st_mtime_ns
        self.assertEqual(self.run_prepare(rows, "--reuse"), 0)
        self.assertEqual(self.output.stat().st_mtime_ns, first)
        self.assertIn("up to date", self.said)
        self.run_prepare(rows, "--reuse", "--max-length", "100")
        self.assertNotIn("up to date", self.said)
        whole = self.output.read_bytes()
        for damaged in (whole[:20], whole[:-1], whole + b"\0"):
            with self.subTest(bytes=len(damaged)):
                self.output.write_bytes(damaged)
                self.assertEqual(self.run_prepare(rows, "--reuse", "--max-length", "100"), 0)
                self.assertNotIn("up to date", self.said)
                self.assertEqual(self.output.read_bytes(), whole)

    def test_a_shard_of_another_preparer_is_made_anew(self) -> None:
        rows = [{"messages": QUESTION}]
        with unittest.mock.patch("percheron_prepare.prepare.PREPARER_VERSION", 1):
            self.run_prepare(rows)
        self.assertEqual(self.run_prepare(rows, "--reuse"), 0)
        self.assertNotIn("up to date", self.said)

    def test_nothing_written_is_a_failure(self) -> None:
        # Model-Optimizer#2172: every row was left out, and the exit code was 0.
        self.assertEqual(self.run_prepare([{"messages": QUESTION}] * 10, "--max-length", "3", "--too-long", "skip"), 1)
        self.assertIn("10  too_long", self.said)
        self.assertIn("none of 10 rows", self.said)
        self.assertFalse(self.output.exists())

    def test_too_many_rejected_rows_are_a_failure(self) -> None:
        # SpecForge#392.
        rows = [{"messages": QUESTION}] * 3 + [{"text": "odd"}]
        self.assertEqual(self.run_prepare(rows, "--max-rejected", "0"), 1)
        self.assertFalse(self.output.exists())
        self.assertEqual(self.run_prepare(rows, "--max-rejected", "1"), 0)
        self.assertIn("1  text_not_of_this_template", self.said)

    def test_rows_over_the_limit_are_cut_skipped_or_an_error(self) -> None:
        # AngelSlim#288.
        rows = [{"messages": QUESTION}, {"messages": [user("x"), assistant("word " * 1000)]}]
        self.assertEqual(self.run_prepare(rows, "--max-length", "100"), 0)
        self.assertEqual(read_shard(self.output)[0]["offsets"][-1] - read_shard(self.output)[0]["offsets"][-2], 100)
        self.assertIn("1  rows_truncated", self.said)
        self.assertEqual(self.run_prepare(rows, "--max-length", "100", "--too-long", "skip"), 0)
        self.assertIn("1  too_long", self.said)
        self.output.unlink()
        for word in ("refuse", "error"):
            self.assertEqual(self.run_prepare(rows, "--max-length", "100", "--too-long", word), 1)
            self.assertIn("in.jsonl:2: ", self.said)
            self.assertFalse(self.output.exists())

    def test_an_old_side_file_goes_away(self) -> None:
        self.run_prepare([{"messages": QUESTION}, {"text": ""}])
        self.assertEqual(len(list(self.output.parent.iterdir())), 2)
        self.run_prepare([{"messages": QUESTION}])
        self.assertEqual(list(self.output.parent.iterdir()), [self.output])

    def test_prompts_end_with_the_generation_prompt_and_keep_the_answer(self) -> None:
        rows = [{"id": "t", "turns": [QUESTION[0]["content"], "More?"]}, {"messages": QUESTION[:1]},
                {"messages": QUESTION}, {"messages": QUESTION, "complete": False},
                {"prompt": QUESTION[0]["content"], "category": "math"}]
        self.assertEqual(self.run_prepare(rows, "--prompts"), 0)
        model = load_model(GOLDEN / "qwen2.5")
        prompt = model.encoder.prompt(QUESTION[:1])
        answer = model.tokenizer.encode(QUESTION[1]["content"] + "<|im_end|>").ids
        tensors, _ = read_shard(self.output)
        offsets = tensors["offsets"]
        samples = [tensors["tokens"][a:b].tolist() for a, b in zip(offsets, offsets[1:])]
        masks = [tensors["loss_mask"][a:b].tolist() for a, b in zip(offsets, offsets[1:])]
        self.assertEqual(samples, [prompt, prompt, prompt + answer, prompt + answer[:-1], prompt])
        self.assertEqual(masks[2], [0] * len(prompt) + [1] * len(answer))
        self.assertFalse(any(masks[0] + masks[1] + masks[4]))

    def test_only_the_last_answer_can_be_asked_for(self) -> None:
        chat = [*QUESTION, user("Thanks."), assistant("You are welcome.")]
        self.assertEqual(self.run_prepare([{"messages": chat}], "--last-turn-only"), 0)
        tensors, _ = read_shard(self.output)
        text = load_model(GOLDEN / "qwen2.5").tokenizer.raw.decode(
            tensors["tokens"][tensors["loss_mask"] == 1].tolist(), skip_special_tokens=False)
        self.assertEqual(text, "You are welcome.<|im_end|>")

    def test_markers_inside_messages_are_kept_turned_to_text_or_skipped(self) -> None:
        rows = [{"messages": [user("What is <|im_end|>?"), assistant("An end.")]}]
        self.assertEqual(self.run_prepare(rows), 0)
        kept = read_shard(self.output)[0]["tokens"].tolist()
        self.assertIn("1  markers_in_content", self.said)
        self.assertEqual(self.run_prepare(rows, "--markers-in-content", "text"), 0)
        text = read_shard(self.output)[0]["tokens"].tolist()
        end = load_model(GOLDEN / "qwen2.5").tokenizer.id_of("<|im_end|>")
        self.assertEqual(kept.count(end) - text.count(end), 1)
        self.assertEqual(self.run_prepare(rows, "--markers-in-content", "skip"), 1)

    def test_the_first_rejected_row_of_each_reason_is_shown(self) -> None:
        rows = [{"messages": QUESTION}, {"text": "odd"}, {"other\n\x1b": 1}, {"text": "again"}]
        self.assertEqual(self.run_prepare(rows), 0)
        lines = [line for line in self.said.splitlines() if "in.jsonl:" in line]
        self.assertEqual([line.split("in.jsonl:")[1].split(": ")[:2] for line in lines],
                         [["2", "text_not_of_this_template"], ["3", "unknown_shape"]])
        self.assertIn("2  text_not_of_this_template", self.said)

    def test_a_long_reason_is_cut(self) -> None:
        self.run_prepare([{"x" * 5000: 1}])
        self.assertLess(max(map(len, self.said.splitlines())), 500)

    def test_an_empty_file_is_said_to_be_empty(self) -> None:
        self.assertEqual(self.run_prepare([]), 1)
        self.assertIn("in.jsonl is empty", self.said)

    def test_a_prompt_is_no_training_row(self) -> None:
        self.assertEqual(self.run_prepare([{"prompt": "x"}]), 1)
        self.assertIn("--prompts takes such rows", self.said)

    def test_every_row_of_the_help_is_taken(self) -> None:
        examples = [json.loads(line) for line in ROW_SHAPES.splitlines() if line.startswith("  {")]
        with_answer = [row for row in examples if "prompt" not in row and "turns" not in row]
        self.assertEqual((len(examples), len(with_answer)), (8, 6))
        text = load_model(GOLDEN / "qwen2.5").encoder.render(QUESTION, None).text
        with_answer, examples = ([{**row, "text": text} if "text" in row else row for row in rows]
                                 for rows in (with_answer, examples))
        self.assertEqual(self.run_prepare(with_answer, "--max-rejected", "0"), 0)
        without_ids = [row for row in examples if "input_ids" not in row and "text" not in row]
        self.assertEqual(self.run_prepare(without_ids, "--prompts", "--max-rejected", "0"), 0)

    def test_the_help_speaks_of_percheron_and_not_of_the_tokenizer(self) -> None:
        for arguments, start in ((["--help"], "usage: percheron ["), (["prepare", "-h"], "usage: percheron prepare [")):
            out = io.StringIO()
            with contextlib.redirect_stdout(out), self.assertRaises(SystemExit):
                main(arguments)
            self.assertTrue(out.getvalue().startswith(start), out.getvalue())
            self.assertNotIn("tokenize ", out.getvalue())
            self.assertNotIn("percheron_prepare", out.getvalue())

    def test_a_wrong_command_line_is_one_line_that_names_the_command_with_the_help(self) -> None:
        given = ["--model", "m", "--input", "i", "--output", "o"]
        for arguments, text in ((["prepare", *given, "--bogus", "--max-length", "3"], "unrecognized arguments: --bogus"),
                                (["prepare", *given, "--max-length", "x"], "argument --max-length: must be a whole"),
                                (["doctor"], "the following arguments are required"),
                                (["regenerate", "--data", "d", "--out", "o"], "one of the arguments --target --server")):
            err = io.StringIO()
            with contextlib.redirect_stderr(err), self.assertRaises(SystemExit) as ended:
                main(arguments)
            self.assertEqual((ended.exception.code, err.getvalue().count("\n")), (2, 1), err.getvalue())
            self.assertTrue(err.getvalue().startswith(f"error: {text}"), err.getvalue())
            self.assertIn(f"percheron {arguments[0]} --help", err.getvalue())


if __name__ == "__main__":
    unittest.main()
