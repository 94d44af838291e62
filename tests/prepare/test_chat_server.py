"""Answers of a server: what is sent, what comes back, and what is tried again."""
import http.server
import json
import os
import threading
import unittest
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

from support import QUESTION, assistant, user

from percheron_prepare.answer_source import Question
from percheron_prepare.chat_server import (KEY_VARIABLE, ChatServer, NoReply, Reply, ServerAnswers, ServerOptions,
                                           TimedOut, http_transport)
from percheron_prepare.conversation import Answer
from percheron_prepare.failure import Failure
from percheron_prepare.source_row import Rejected

ASKED = Question(0, 12, 1, [*QUESTION, user("b")], None)


def completion(message: dict[str, Any], reason: str | None = "stop") -> bytes:
    return json.dumps({"choices": [{"message": {"role": "assistant", **message}, "finish_reason": reason}],
                       "usage": {"completion_tokens": 5}}).encode()


class Script:
    """A network that gives prepared replies, and notes what was sent and how long was waited."""

    def __init__(self, *replies: Reply | Exception) -> None:
        self.replies = list(replies)
        self.sent: list[tuple[str, Any, Mapping[str, str]]] = []
        self.pauses: list[float] = []

    def send(self, url: str, body: bytes | None, headers: Mapping[str, str]) -> Reply:
        self.sent.append((url, json.loads(body) if body else None, headers))
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def server(self, **options: Any) -> ChatServer:
        given = ServerOptions(**{"url": "http://host:1", "model": "m", **options})
        return ChatServer(given, self.send, self.pauses.append, lambda: 1.0)


class ChatServerTest(unittest.TestCase):
    def reason(self, *replies: Reply | Exception, **options: Any) -> str:
        with self.assertRaises(Rejected) as raised:
            Script(*replies).server(**options).answer(ASKED)
        return raised.exception.reason

    def failure(self, *replies: Reply | Exception, **options: Any) -> str:
        with self.assertRaises(Failure) as raised:
            Script(*replies).server(**options).answer(ASKED)
        return str(raised.exception)

    def test_a_question_is_a_chat_completion(self) -> None:
        script = Script(Reply(200, completion({"content": "new"})))
        with mock.patch.dict(os.environ, {KEY_VARIABLE: "secret"}):
            server = script.server(url="http://host:1/v1/", temperature=0.5, seed=3, new_tokens_max=7,
                                   template_variables={"enable_thinking": False})
        history = [user("a"), assistant("b", reasoning_content="So."), user("c")]
        self.assertEqual(server.answer(Question(0, 12, 1, history, [{"type": "function"}])), Answer(assistant("new"), 5))
        (url, body, headers), = script.sent
        self.assertEqual(url, "http://host:1/v1/chat/completions")
        self.assertEqual(headers["Authorization"], "Bearer secret")
        self.assertTrue(0 <= body.pop("seed") < 1 << 31)
        # speculators#864: the history keeps its thoughts; the server's template decides.
        self.assertEqual(body, {"model": "m", "messages": history, "temperature": 0.5, "max_tokens": 7,
                                "tools": [{"type": "function"}], "chat_template_kwargs": {"enable_thinking": False}})

    def test_seeds_depend_on_seed_row_and_turn(self) -> None:
        seeds = []
        for seed, row, turn in ((1, 2, 3), (1, 2, 3), (2, 2, 3), (1, 3, 3), (1, 2, 4)):
            script = Script(Reply(200, completion({"content": "x"})))
            script.server(temperature=1.0, seed=seed).answer(Question(9, row, turn, QUESTION[:1], None))
            seeds.append(script.sent[0][1]["seed"])
        self.assertEqual(seeds[0], seeds[1])
        self.assertEqual(len(set(seeds)), 4)

    def test_thoughts_calls_and_ends_of_an_answer_are_kept(self) -> None:
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        for message, reason, answer in (
                ({"content": "x"}, "length", Answer(assistant("x"), 5, is_cut=True)),
                ({"content": "x", "reasoning_content": "So."}, "stop",
                 Answer(assistant("x", reasoning_content="So."), 5)),
                ({"content": "x", "reasoning": "So."}, "stop", Answer(assistant("x", reasoning_content="So."), 5)),
                ({"content": None, "tool_calls": [call]}, "tool_calls", Answer(assistant("", tool_calls=[call]), 5)),
                ({"content": ""}, "stop", Answer(assistant(""), 5, notes=("answers_empty",))),
                ({"content": "\ud83d"}, "stop", Answer(assistant("\ufffd"), 5))):
            with self.subTest(message=message):
                self.assertEqual(Script(Reply(200, completion(message, reason))).server().answer(ASKED), answer)

    def test_what_is_no_answer_is_the_rows_error(self) -> None:
        for body in (b"", b"[]", b"{}", b"\xff", b'{"choices": []}', completion({"content": "x"}, "content_filter"),
                     completion({"content": "x"}, None), completion({"content": 5})):
            with self.subTest(body=body):
                self.assertEqual(self.reason(Reply(200, body)), "bad_response")
        self.assertEqual(self.reason(Reply(400, b"too long")), "server_refused")
        self.assertEqual(self.reason(Reply(200, completion({"content": None, "reasoning_content": "So"}, "length"))),
                         "cut_inside_thought")

    def test_what_may_pass_is_tried_again_with_growing_pauses(self) -> None:
        script = Script(Reply(429, b""), Reply(503, b"", retry_after=7.0), NoReply("reset"),
                        Reply(200, completion({"content": "new"})))
        self.assertEqual(script.server().answer(ASKED).message["content"], "new")
        self.assertEqual(script.pauses, [0.5, 7.0, 2.0])

    def test_a_server_that_stays_broken_costs_the_row_and_one_that_is_gone_ends_the_run(self) -> None:
        self.assertEqual(self.reason(*[Reply(500, b"x")] * 3, tries_max=3), "server_error")
        self.assertIn("http://host:1/v1/chat/completions can't be reached in 3 tries: refused",
                      self.failure(*[NoReply("refused")] * 3, tries_max=3))
        self.assertEqual(self.reason(*[TimedOut("late")] * 2), "server_timeout")
        for status in (401, 403, 404):
            self.assertIn(f"HTTP {status}", self.failure(Reply(status, b"no")))

    def test_the_model_is_the_servers_only_one(self) -> None:
        one = Reply(200, b'{"data": [{"id": "only"}]}')
        self.assertEqual(Script(one).server(model=None).model, "only")
        for body in (b'{"data": [{"id": "a"}, {"id": "b"}]}', b"{}", b"x", b'{"data": []}'):
            with self.assertRaises(Failure) as raised:
                Script(Reply(200, body)).server(model=None)
            self.assertIn("--model", str(raised.exception))
        for said, *replies in (("no answer", TimedOut("no answer"), TimedOut("no answer")),
                               ("HTTP 503: busy", *[Reply(503, b"busy")] * 8), ("HTTP 400: no", Reply(400, b"no"))):
            with self.subTest(said=said), self.assertRaises(Failure) as raised:
                Script(*replies).server(model=None)
            self.assertIn(said, str(raised.exception))
        with self.assertRaises(Failure):
            Script().server(url="host:1")

    def test_an_error_of_any_thread_reaches_who_takes_the_answers(self) -> None:
        answers = ServerAnswers(Script(NoReply("refused")).server(tries_max=1), 2)
        answers.ask(ASKED)
        with self.assertRaises(Failure):
            answers.take()


class HttpTransportTest(unittest.TestCase):
    """The real network, on this machine."""

    def serve(self, respond: Callable[[http.server.BaseHTTPRequestHandler], None]) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                respond(self)

            def log_message(self, *_: Any) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return f"http://127.0.0.1:{server.server_port}/"

    def test_replies_and_refusals_come_with_status_body_and_pause(self) -> None:
        def respond(handler: http.server.BaseHTTPRequestHandler) -> None:
            body = handler.rfile.read(int(handler.headers["Content-Length"]))
            handler.send_response(429 if body == b"busy" else 200)
            handler.send_header("Retry-After", "3")
            handler.end_headers()
            handler.wfile.write(body + b"!")

        url = self.serve(respond)
        send = http_transport(5.0)
        self.assertEqual(send(url, b"hi", {}), Reply(200, b"hi!"))
        self.assertEqual(send(url, b"busy", {}), Reply(429, b"busy!", 3.0))

    def test_broken_and_late_connections_are_told_apart(self) -> None:
        release = threading.Event()
        self.addCleanup(release.set)
        late = self.serve(lambda handler: None if release.wait(5) else None)
        with self.assertRaises(TimedOut):
            http_transport(0.1)(late, b"", {})
        broken = self.serve(lambda handler: handler.wfile.write(b"no http\r\n\r\n"))
        with self.assertRaises(NoReply):
            http_transport(5.0)(broken, b"", {})
        with self.assertRaisesRegex(NoReply, "^Connection refused$"):
            http_transport(5.0)("http://127.0.0.1:1/", b"", {})


if __name__ == "__main__":
    unittest.main()
