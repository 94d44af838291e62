"""The line protocol that other programs use."""
import json
import os
import subprocess
import sys
import unittest
from typing import Any

from support import GOLDEN, QUESTION, ROOT

from percheron_prepare.model import load_model
from percheron_prepare.tokenizer_server import TokenizerServer


def process_of(family: str) -> tuple[list[str], dict[str, str]]:
    """Command and environment of the process that other programs start."""
    command = [sys.executable, "-m", "percheron_prepare", "tokenize", "--model", str(GOLDEN / family)]
    return command, {**os.environ, "PYTHONPATH": str(ROOT / "tools" / "percheron_prepare")}


class TokenizerServerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.model = load_model(GOLDEN / "qwen2.5")
        cls.server = TokenizerServer(cls.model)

    def ask(self, **request: Any) -> dict[str, Any]:
        return self.server.answer(json.dumps(request))

    def test_a_chat_is_encoded_as_a_server_does(self) -> None:
        answer = self.ask(op="encode_chat", messages=QUESTION[:1])
        self.assertEqual(answer["ids"], self.model.encoder.prompt(QUESTION[:1]))
        self.assertTrue(answer["text"].endswith("<|im_start|>assistant\n"))

    def test_a_row_of_prompts_is_asked_up_to_its_last_answer(self) -> None:
        expected = self.model.encoder.prompt(QUESTION[:1])
        question = QUESTION[0]["content"]
        rows: list[dict[str, Any]] = [{"prompt": question}, {"turns": [question, "More?"]}, {"messages": QUESTION[:1]}]
        for role in ("assistant", "gpt", "chatgpt", "model"):
            answer = {"from": role, "value": None}
            rows += [{"conversations": [{"from": "human", "value": question}, answer]},
                     {"messages": [*QUESTION[:1], answer, {"role": "user", "content": "Thanks."}]}]
        for row in rows:
            with self.subTest(row=row):
                self.assertEqual(self.ask(op="encode_prompt", row=row), {"ids": expected})

    def test_a_row_without_a_prompt_is_answered_with_an_error(self) -> None:
        for row in (None, [], {}, {"prompt": 5}, {"turns": []}, {"turns": [None]}, {"messages": {}}, {"messages": []},
                    {"messages": ["x"]}, {"messages": [{"role": None, "content": "x"}]},
                    {"messages": [{"role": 5, "from": "user", "content": "x"}]}, {"messages": [{"content": "x"}]},
                    {"messages": QUESTION[1:]}, {"messages": [{"role": "user", "content": 5}]}):
            with self.subTest(row=row):
                self.assertEqual(list(self.ask(op="encode_prompt", row=row)), ["error"])

    def test_pieces_join_to_the_text(self) -> None:
        for text in ("Hello, world 👩‍👩‍👧‍👦 — naïve café, مرحبا, 你好", "", "a\n\n b<|im_end|>\n", "\U0001f1e8\U0001f1ed"):
            ids = self.ask(op="encode", text=text)["ids"]
            answer = self.ask(op="decode", ids=ids)
            self.assertEqual(answer["text"], text)
            self.assertEqual("".join(answer["pieces"]), text)
            self.assertEqual(len(answer["pieces"]), len(ids))

    def test_a_character_stands_at_the_id_that_completes_it(self) -> None:
        ids = self.ask(op="encode", text="x👩")["ids"]
        self.assertEqual(self.ask(op="decode", ids=ids)["pieces"][-1], "👩")
        self.assertGreater(len(ids), 2)

    def test_half_a_character_is_shown_as_a_replacement(self) -> None:
        ids = self.ask(op="encode", text="x👩")["ids"][:-1]
        pieces = self.ask(op="decode", ids=ids)["pieces"]
        self.assertEqual((pieces[0], len(pieces)), ("x", len(ids)))
        self.assertEqual(set("".join(pieces[1:])), {"\ufffd"})

    def test_bad_requests_are_answered_with_an_error(self) -> None:
        for line in ("", "nonsense", "[]", "{}", '{"op": "x"}', '{"op": "encode"}', '{"op": "decode", "ids": [-1]}',
                     '{"op": "decode", "ids": [999999]}', '{"op": "encode_chat", "messages": []}',
                     '{"op": "encode_chat", "messages": [{"role": "king", "content": "x"}]}', '{"op": "decode"}',
                     '{"op": ["list"]}', '{"op": "encode_chat", "messages": [{"role": "user", "content": 5}]}'):
            with self.subTest(line=line):
                self.assertEqual(list(self.server.answer(line)), ["error"])

    def test_a_lone_surrogate_is_replaced(self) -> None:
        ids = self.server.answer('{"op": "encode", "text": "\\ud83d"}')["ids"]
        self.assertEqual(self.ask(op="decode", ids=ids)["text"], "\ufffd")

    def test_an_error_is_the_reason_and_its_detail(self) -> None:
        self.assertTrue(self.ask(op="encode_prompt", row={"q": "x"})["error"].startswith("unknown_shape: a row needs"))

    def test_a_model_that_cannot_be_read_is_said_once(self) -> None:
        command, environment = process_of("none")
        for requests, answered in ((b'{"op": "info"}\n', True), (b"", False)):
            done = subprocess.run(command, input=requests, capture_output=True, env=environment, timeout=30)
            self.assertEqual((done.returncode, bool(done.stdout), bool(done.stderr)), (1, answered, not answered))
            said = json.loads(done.stdout)["error"] if answered else done.stderr.decode()
            self.assertIn(str(GOLDEN / "none"), said)

    def test_a_process_answers_each_line_at_once(self) -> None:
        command, environment = process_of("qwen2.5")
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
            assert process.stdin and process.stdout
            for request in (b'{"op": "info"}\n', b"\n\xff\n", b'{"op": "encode", "text": "\xc3\xa9"}\n'):
                process.stdin.write(request)
                process.stdin.flush()
                answer = json.loads(process.stdout.readline())
                self.assertEqual("error" in answer, b"\xff" in request)
            process.stdin.close()
            self.assertEqual(process.wait(10), 0)


if __name__ == "__main__":
    unittest.main()
