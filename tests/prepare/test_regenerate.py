"""Whole runs of `percheron regenerate`, answered by a stand-in for the target."""
import contextlib
import http.server
import io
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

from support import GOLDEN, QUESTION, ROOT, Scratch, assistant, run_job, samples_of, supervised_text, user

from percheron_prepare.__main__ import main
from percheron_prepare.local_answers import LocalAnswers, stop_ids
from percheron_prepare.model import load_model
from percheron_prepare.options import Options

FAKE = Path(__file__).parent / "fake_target.py"
FAMILY = GOLDEN / "qwen2.5"


class RegenerateTest(unittest.TestCase):
    def setUp(self) -> None:
        self.scratch = Scratch()
        self.addCleanup(self.scratch.close)
        self.out = self.scratch.path / "new.jsonl"
        self.model = load_model(FAMILY)
        program = self.scratch.path / "percheron"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE}" "$@"\n', encoding="utf-8")
        program.chmod(0o755)
        stop, = stop_ids(self.model)
        ids = sorted(set(self.model.tokenizer.encode_ids("abcdefghij klmnop")))
        self.environment = {"PERCHERON_PROGRAM": str(program), "FAKE_STOP": str(stop), "FAKE_IDS": json.dumps(ids)}
        self.said = ""

    def arguments(self, data: Path, *options: str) -> list[str]:
        return ["regenerate", "--target", str(FAMILY), "--data", str(data), "--out", str(self.out), *options]

    def command(self, data: Path, *options: str, **environment: str) -> int:
        out = io.StringIO()
        with mock.patch.dict(os.environ, {**self.environment, **environment}), contextlib.redirect_stdout(out), \
                contextlib.redirect_stderr(out):
            code = main(self.arguments(data, *options))
        self.said = out.getvalue()
        return code

    def refused(self, part: str, data: Path, *options: str, **environment: str) -> None:
        self.assertEqual(self.command(data, *options, **environment), 1, self.said)
        self.assertIn(part, self.said)
        self.assertEqual(self.said.count("error:"), 1)

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.read_text(encoding="utf-8").splitlines()]

    def side(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in Path(f"{self.out}.rejected.jsonl").read_text(encoding="utf-8").splitlines()]

    def chats(self, count: int) -> Path:
        random_turns = random.Random(3)
        return self.scratch.rows([{"id": i if i % 2 else f"s{i}", "messages": [
            message for turn in range(random_turns.randint(1, 4))
            for message in (user(f"question {i} {turn}"), assistant("old"))]} for i in range(count)], f"{count}.jsonl")

    def test_rows_keep_their_order_and_ids_and_lose_their_old_answers(self) -> None:
        data = self.chats(120)
        self.assertEqual(self.command(data), 0, self.said)
        old = [json.loads(line) for line in data.read_text(encoding="utf-8").splitlines()]
        new = self.rows()
        self.assertEqual([row["id"] for row in new], [row["id"] for row in old])
        for before, after in zip(old, new):
            self.assertEqual([m["role"] for m in after["messages"]], [m["role"] for m in before["messages"]])
            self.assertEqual(after["messages"][0], before["messages"][0])
            self.assertNotIn("old", [m["content"] for m in after["messages"]])
            self.assertTrue(after["complete"])
        answers = sum(len(row["messages"]) // 2 for row in old)
        self.assertIn(f"120 rows read, 120 written, {answers} answers", self.said)
        self.assertFalse(Path(f"{self.out}.partial").exists())
        self.assertFalse(Path(f"{self.out}.rejected.jsonl").exists())

    def test_prepare_reads_what_was_written(self) -> None:
        data = self.scratch.rows([{"id": "a", "messages": [*QUESTION, user("And 1?"), assistant("2")]},
                                  {"id": "b", "prompt": "Hi!"}])
        for limit in ("2048", "2"):
            self.out = self.scratch.path / f"new{limit}.jsonl"
            self.assertEqual(self.command(data, "--new-tokens", limit), 0, self.said)
            done = run_job(self.model, Options(), self.out, self.scratch.path / "out.safetensors")
            self.assertEqual(done.tally.rejected_count, 0)
            rows, samples = self.rows(), samples_of(self.scratch.path / "out.safetensors")
            ending = "" if limit == "2" else "<|im_end|>"
            for row, (name, ids, mask) in zip(rows, samples):
                answers = [m["content"] for m in row["messages"] if m["role"] == "assistant"]
                self.assertEqual((row["id"], supervised_text(self.model, ids, mask)),
                                 (name, "".join(answer + ending for answer in answers)))
            # speculators#835: what a limit cut is counted, here and by prepare.
            cut = 2 if limit == "2" else 0
            self.assertEqual(done.tally.notes["answers_cut_at_length"], cut)
            self.assertEqual("2  answers_cut_at_length" in self.said, bool(cut))

    def test_sampled_answers_depend_on_seed_row_and_turn(self) -> None:
        same = self.scratch.rows([{"messages": [user("a"), assistant("x")]}] * 3)
        answers = []
        for seed in ("1", "1", "2"):
            self.assertEqual(self.command(same, "--temperature", "1", "--seed", seed), 0, self.said)
            answers.append([row["messages"][1]["content"] for row in self.rows()])
            self.out.unlink()
        self.assertEqual(answers[0], answers[1])
        self.assertEqual(len(set(answers[0] + answers[2])), 6)

    def test_what_cannot_be_made_anew_is_counted_and_kept_aside(self) -> None:
        data = self.scratch.path / "in.jsonl"
        lines = [{"id": "good", "messages": QUESTION}, {"text": "x"}, {"messages": [assistant("a")]},
                 {"id": "long", "messages": [user("word " * 400), assistant("a")]},
                 {"id": "later", "messages": [*QUESTION, user("word " * 400), assistant("a")]}]
        data.write_text("\n".join(map(json.dumps, lines)) + "\n\n{broken\n", encoding="utf-8")
        self.assertEqual(self.command(data, FAKE_CONTEXT="300"), 0, self.said)
        self.assertEqual([row["id"] for row in self.rows()], ["good", "later"])
        self.assertEqual(len(self.rows()[1]["messages"]), 2)
        self.assertEqual([(entry["line"], entry["reason"]) for entry in self.side()],
                         [(2, "text_row"), (3, "starts_with_assistant"), (4, "prompt_too_long"), (7, "bad_json")])
        self.assertEqual(self.side()[2]["row"], lines[3])
        for text in ("6 rows read, 2 written", "1  text_row", f"{data}:4: prompt_too_long",
                     "chats_ended_by_prompt_too_long", "1  turns_left_out"):
            self.assertIn(text, self.said)

    def test_too_many_rejected_rows_write_nothing_until_the_limit_is_raised(self) -> None:
        data = self.scratch.rows([{"messages": QUESTION}, {"text": "x"}])
        self.refused("1 of 2 rows rejected (1 text_row), --max-rejected is 0", data, "--max-rejected", "0")
        self.assertFalse(self.out.exists())
        self.assertEqual(self.command(data, "--max-rejected", "1", FAKE_FAIL_AFTER="0"), 0, self.said)
        self.assertIn("2 of the rows were done by an interrupted run before", self.said)

    def test_rows_nested_as_deep_as_can_be_read_are_answered_or_rejected(self) -> None:
        # Which depth is too deep to be written, but not to be read, is Python's to decide.
        data = self.scratch.path / "deep.jsonl"
        question = json.dumps({"messages": QUESTION})
        data.write_text("".join(f'{question[:-1]}, "deep": {"[" * depth}{"]" * depth}}}\n' for depth in range(930, 1000)),
                        encoding="utf-8")
        self.assertEqual(self.command(data), 0, self.said)
        self.assertIn("70 rows read", self.said)
        self.assertEqual(len(self.rows()) + len(self.side()), 70)
        self.assertLessEqual({entry["reason"] for entry in self.side()}, {"nested_too_deep", "bad_json"})

    def test_a_file_that_changes_meanwhile_is_no_silent_mixture(self) -> None:
        data = self.chats(2)
        changing = mock.patch("percheron_prepare.regenerate.Run.answer_all", lambda run: os.utime(data, (1, 1)))
        with changing:
            self.refused("changed while it was being read", data)
        self.assertFalse(self.out.exists())
        self.assertEqual(self.command(data), 0, self.said)

    def test_no_row_regenerated_is_a_failure(self) -> None:
        data = self.scratch.rows([{"text": "x"}])
        self.refused(f"none of 1 rows could be regenerated (1 text_row; {data}:1: text_row: a rendered chat", data)
        self.assertEqual((self.out.exists(), self.side()[0]["reason"]), (False, "text_row"))
        self.refused("has no rows; nothing was written", self.scratch.rows([], "empty.jsonl"))
        self.assertFalse(Path(f"{self.out}.partial").exists())

    def test_a_mended_command_is_not_refused_over_a_folder_without_a_row(self) -> None:
        data = self.chats(3)
        self.refused("the device burns", data, FAKE_FAIL_AFTER="0")
        self.assertFalse(Path(f"{self.out}.partial").exists())
        self.refused("the device burns", self.chats(40), FAKE_FAIL_AFTER="30")
        with mock.patch("percheron_prepare.regenerate.AnswerJournal", side_effect=OSError(5, "Input/output error")):
            self.refused("Input/output error", self.chats(40))
        self.assertEqual(self.command(self.chats(40)), 0, self.said)
        self.assertRegex(self.said, r"\d+ of the rows were done by an interrupted run before")

    def test_a_failing_device_ends_the_run_and_what_was_done_is_kept(self) -> None:
        data = self.chats(40)
        self.refused("cpu:0: the device burns", data, FAKE_FAIL_AFTER="30")
        self.assertEqual(self.command(data), 0, self.said)
        self.assertRegex(self.said, r"\d+ of the rows were done by an interrupted run before")

    def test_another_command_is_refused_by_what_differs(self) -> None:
        data, other = self.chats(12), self.chats(13)
        self.refused("the device burns", data, FAKE_FAIL_AFTER="8")
        for part, given, options, environment in (
                ('target weights was "w" and is "v"', data, (), {"FAKE_WEIGHTS": "v"}),
                ("input was", other, (), {}), ("limit was null and is 5", data, ("--limit", "5"), {}),
                ("temperature was 0.0 and is 0.5", data, ("--temperature", "0.5"), {}),
                ("new-tokens was 2048 and is 9", data, ("--new-tokens", "9"), {}),
                ('dtype was "bf16" and is "f32"', data, ("--dtype", "f32"), {})):
            with self.subTest(part=part):
                self.refused(part, given, *options, **environment)
                self.assertIn("remove that folder to begin anew", self.said)
        self.assertEqual(self.command(data, "--slots", "3", "--threads", "1"), 0, self.said)

    def test_a_finished_output_is_up_to_date_or_in_the_way(self) -> None:
        data = self.chats(3)
        self.assertEqual(self.command(data), 0, self.said)
        content = self.out.read_bytes()
        self.assertEqual(self.command(data, FAKE_FAIL_AFTER="0"), 0, self.said)
        self.assertIn("is up to date: 3 rows", self.said)
        self.refused("was not made by this very command", data, "--new-tokens", "9")
        self.assertEqual(self.out.read_bytes(), content)

    def test_bad_commands_are_refused_before_anything_is_begun(self) -> None:
        data = self.chats(2)
        self.refused("--model is for --server", data, "--model", "m")
        self.refused("does not exist", self.scratch.path / "none.jsonl")
        self.out = self.scratch.path / "new.parquet"
        self.refused("must end in .jsonl", data)
        self.out = data
        self.refused("would overwrite --data", data)
        self.out = self.scratch.path / "out.jsonl"
        self.refused("can't run", data, PERCHERON_PROGRAM=str(self.scratch.path / "none"))
        self.refused("has ended (exit code 1)", data, PERCHERON_PROGRAM="/bin/false")
        self.assertFalse(Path(f"{self.out}.partial").exists())

    def test_a_process_with_more_to_say_than_anybody_reads_ends_by_itself(self) -> None:
        program = self.scratch.path / "talker"
        ready = json.dumps({"ready": True, "weights_hash": "w", "context_max": 9, "capacity": 4})
        program.write_text(f"#!/bin/sh\necho '{ready}'\nexec yes\n", encoding="utf-8")
        program.chmod(0o755)
        with mock.patch.dict(os.environ, {"PERCHERON_PROGRAM": str(program)}):
            answers = LocalAnswers(self.model, {})
        with mock.patch("percheron_prepare.local_answers.subprocess.Popen.kill") as kill, \
                mock.patch("percheron_prepare.local_answers.END_S", 60.0):
            answers.close()
        kill.assert_not_called()

    def test_the_same_bytes_after_kills_at_random_moments(self) -> None:
        data = self.chats(200)
        self.assertEqual(self.command(data, "--temperature", "1"), 0, self.said)
        undisturbed = self.out.read_bytes()
        self.out = self.scratch.path / "killed.jsonl"
        seed = int(os.environ.get("PERCHERON_TEST_SEED", time.time_ns() % 1_000_000))
        print(f"test seed {seed}", file=sys.stderr)
        moments = random.Random(seed)
        command = [sys.executable, "-m", "percheron_prepare", *self.arguments(data, "--temperature", "1")]
        environment = {**os.environ, **self.environment, "PYTHONPATH": str(ROOT / "tools" / "percheron_prepare")}
        journal, kills = Path(f"{self.out}.partial/journal"), 0
        for share in sorted(moments.random() for _ in range(5)):
            with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL) as process:
                # By progress, so that a slow machine kills at the same places.
                while process.poll() is None and (not journal.exists() or
                                                  journal.stat().st_size < share * len(undisturbed)):
                    time.sleep(0.002)
                kills += process.poll() is None
                process.send_signal(signal.SIGKILL)
        self.assertGreater(kills, 2)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.out.read_bytes(), undisturbed)
        self.assertIn("200 rows read, 200 written", done.stdout)


class ServerRunTest(unittest.TestCase):
    def test_a_server_answers_the_same_rows(self) -> None:
        scratch = Scratch()
        self.addCleanup(scratch.close)
        asked: list[dict[str, Any]] = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.reply({"data": [{"id": "served"}]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                asked.append(body)
                text = f"answer to {body['messages'][-1]['content']}"
                self.reply({"choices": [{"message": {"content": text, "reasoning_content": "So."},
                                         "finish_reason": "length" if "cut" in text else "stop"}],
                            "usage": {"completion_tokens": 4}}, 400 if "bad" in text else 200)

            def reply(self, value: Any, status: int = 200) -> None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(value).encode())

            def log_message(self, *_: Any) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        data = scratch.rows([{"id": i, "messages": [user(f"{word} {i}"), assistant("old"), user("next"), assistant("x")]}
                             for i, word in enumerate(["good", "cut", "bad"] * 5)])
        out, said = scratch.path / "new.jsonl", io.StringIO()
        with contextlib.redirect_stdout(said):
            code = main(["regenerate", "--server", f"http://127.0.0.1:{server.server_port}", "--data", str(data), "--out",
                         str(out), "--concurrency", "3", "--new-tokens", "9"])
        self.assertEqual(code, 0, said.getvalue())
        rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
        self.assertEqual([(row["id"], row["complete"], len(row["messages"])) for row in rows],
                         [(i, i % 3 == 0, 4 if i % 3 == 0 else 2) for i in range(15) if i % 3 != 2])
        self.assertEqual(rows[0]["messages"][1], assistant("answer to good 0", reasoning_content="So."))
        self.assertIn("5  server_refused", said.getvalue())
        self.assertIn("5  answers_cut_at_length", said.getvalue())
        second = next(body for body in asked if len(body["messages"]) == 3)
        self.assertEqual((second["messages"][1]["reasoning_content"], second["model"], second["max_tokens"]),
                         ("So.", "served", 9))


if __name__ == "__main__":
    unittest.main()
