"""Answers by a server that speaks OpenAI's chat completions, asked again with growing pauses where that may help."""
from __future__ import annotations

import hashlib
import http.client
import json
import os
import queue
import random
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .answer_source import Question
from .chat_template import Message
from .conversation import Answer
from .failure import Failure
from .source_row import Rejected, replace_surrogates

KEY_VARIABLE = "PERCHERON_API_KEY"
FIRST_PAUSE_S, PAUSE_MAX_S = 0.5, 60.0
TIMEOUTS_MAX = 2  # of one question: a server that is this slow is not helped by more of them
TRY_AGAIN = {408, 409, 425, 429, 500, 502, 503, 504, 529}
KEYS_AND_PATHS = {401, 403, 404, 405}  # the same for every row: the run ends
SHOWN_MAX = 300  # characters of what a server said
ANSWER_BYTES_MAX = 64 << 20


@dataclass(frozen=True)
class Reply:
    """What came back. `retry_after`: seconds that the server asks to wait, 0 if it does not."""

    status: int
    body: bytes
    retry_after: float = 0.0


class NoReply(Exception):
    """The connection failed."""


class TimedOut(Exception):
    """The server was reached, and its answer did not come in time."""


# url, JSON body or None for a GET, headers. Raises NoReply or TimedOut.
Transport = Callable[[str, bytes | None, Mapping[str, str]], Reply]


def http_transport(timeout_s: float) -> Transport:
    """The network."""
    def send(url: str, body: bytes | None, headers: Mapping[str, str]) -> Reply:
        request = urllib.request.Request(url, data=body, headers=dict(headers))
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as response:
                return Reply(response.status, response.read(ANSWER_BYTES_MAX))
        except urllib.error.HTTPError as error:
            with error:
                return Reply(error.code, error.read(ANSWER_BYTES_MAX), seconds_of(error.headers.get("Retry-After")))
        except TimeoutError as error:  # While connecting it comes as a URLError.
            raise TimedOut(f"no answer within {timeout_s:g} s") from error
        except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: an answer that is no HTTP
            raise NoReply(what_failed(error)) from error
    return send


def what_failed(error: Exception) -> str:
    """For people: what the system says, without Python's names where it says something."""
    cause = getattr(error, "reason", error)
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return str(cause) or type(error).__name__


def seconds_of(text: str | None) -> float:
    """Of a Retry-After header; a date counts as none."""
    return float(text) if text and text.strip().isdecimal() else 0.0


@dataclass(frozen=True)
class ServerOptions:
    """What is asked for. `model` None: the only one that the server has."""

    url: str
    model: str | None = None
    temperature: float = 0.0
    seed: int = 0
    new_tokens_max: int = 2048
    template_variables: dict[str, Any] = field(default_factory=dict)
    concurrency: int = 64
    tries_max: int = 8


class ChatServer:
    """Asks one question after the other. Any thread."""

    def __init__(self, options: ServerOptions, transport: Transport, sleep: Callable[[float], None] = time.sleep,
                 jitter: Callable[[], float] = random.random) -> None:
        """Raises Failure when no model is given and the server does not name one."""
        self._options, self._transport, self._sleep, self._jitter = options, transport, sleep, jitter
        base = options.url.rstrip("/")
        if not base.startswith(("http://", "https://")):
            raise Failure(f"--server {options.url} is no URL; give one such as http://127.0.0.1:8000")
        self._base = base if base.endswith("/v1") else f"{base}/v1"
        self._headers = {"Content-Type": "application/json"}
        if os.environ.get(KEY_VARIABLE):
            self._headers["Authorization"] = f"Bearer {os.environ[KEY_VARIABLE]}"
        self.model = options.model or self._only_model()

    def answer(self, question: Question) -> Answer:
        """Raises Rejected when this question can't be answered, Failure when none can."""
        reply = self._send("/chat/completions", json.dumps(self._body(question)).encode("utf-8"))
        if reply.status != 200:
            again = f" after {self._options.tries_max} tries" if reply.status in TRY_AGAIN else ""
            raise Rejected("server_error" if again else "server_refused",
                           f"HTTP {reply.status}{again}: {shown(reply.body)}")
        return answer_of(reply.body)

    def _body(self, question: Question) -> dict[str, Any]:
        options = self._options
        body: dict[str, Any] = {"model": self.model, "messages": question.history, "temperature": options.temperature,
                                "max_tokens": options.new_tokens_max}
        if options.temperature > 0:
            body["seed"] = seed_of(options.seed, question.sample_key)
        if question.tools:
            body["tools"] = question.tools
        if options.template_variables:
            body["chat_template_kwargs"] = options.template_variables
        return body

    def _only_model(self) -> str:
        try:
            reply = self._send("/models", None)
        except Rejected as rejected:
            raise Failure(f"{self._base}/models: {rejected.detail}") from rejected
        if reply.status != 200:
            raise Failure(f"{self._base}/models answers HTTP {reply.status}: {shown(reply.body)}; check --server, or "
                          "say which model with --model")
        try:
            names = [str(entry["id"]) for entry in json.loads(reply.body)["data"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            names = []
        if len(names) != 1:
            raise Failure(f"{self._base}/models names {names or 'no model'}; say which one with --model")
        return names[0]

    def _send(self, path: str, body: bytes | None) -> Reply:
        """Tries again after what may pass: lost connections, too many requests, errors of the server's own."""
        url = self._base + path
        lost, timeouts = "", 0
        reply: Reply | None = None
        for attempt in range(self._options.tries_max):
            if attempt:
                pause = min(FIRST_PAUSE_S * 2 ** (attempt - 1), PAUSE_MAX_S) * (0.5 + self._jitter() / 2)
                self._sleep(max(pause, min(reply.retry_after, PAUSE_MAX_S) if reply else 0.0))
            try:
                reply = self._transport(url, body, self._headers)
            except NoReply as error:
                reply, lost = None, str(error)
                continue
            except TimedOut as error:
                reply, lost, timeouts = None, str(error), timeouts + 1
                if timeouts == TIMEOUTS_MAX:
                    raise Rejected("server_timeout", f"{error}, {timeouts} times; raise --timeout") from error
                continue
            if reply.status in KEYS_AND_PATHS:
                raise Failure(f"{url} answers HTTP {reply.status}: {shown(reply.body)}; check --server, --model and "
                              f"the key in {KEY_VARIABLE}")
            if reply.status not in TRY_AGAIN:
                return reply
        if reply is None:
            raise Failure(f"{url} can't be reached in {self._options.tries_max} tries: {lost}; check --server; what is "
                          "done is kept, and the same command goes on from there")
        return reply


def answer_of(body: bytes) -> Answer:
    """A chat completion's answer. Raises Rejected."""
    try:
        completion = replace_surrogates(json.loads(body))
        choice = completion["choices"][0]
        said = choice["message"]
        content, reason = said.get("content") or "", choice.get("finish_reason")
        thought = said.get("reasoning_content") or said.get("reasoning")
        tokens = int((completion.get("usage") or {}).get("completion_tokens") or 0)
        calls = said.get("tool_calls")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise Rejected("bad_response", f"no chat completion ({error!r}): {shown(body)}") from error
    if not isinstance(content, str) or reason not in ("stop", "length", "tool_calls"):
        raise Rejected("bad_response", f"finish_reason is {reason!r}: {shown(body)}")
    if reason == "length" and not content:
        raise Rejected("cut_inside_thought", f"after {tokens} tokens the answer had not begun; allow more of them")
    message: Message = {"role": "assistant", "content": content}
    if isinstance(thought, str) and thought:
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = calls
    notes = () if content or calls else ("answers_empty",)
    return Answer(message, tokens, is_cut=reason == "length", notes=notes)


def seed_of(seed: int, sample_key: int) -> int:
    """A request's own seed: 31 bits, which every server takes."""
    text = f"{seed} {sample_key}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:4], "big") >> 1


def shown(body: bytes) -> str:
    """What a server said, for a message of one line."""
    text = " ".join(body[:4 * SHOWN_MAX].decode("utf-8", "replace").split())
    return text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + " ..."


class ServerAnswers:
    """Keeps `concurrency` questions open at a server, each on a thread of its own."""

    def __init__(self, server: ChatServer, concurrency: int) -> None:
        self._server = server
        self._concurrency = concurrency
        self._questions: queue.SimpleQueue[Question] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[int, Answer | Rejected | BaseException]] = queue.SimpleQueue()
        # Daemons: the program does not wait for a server when it has to end.
        for _ in range(concurrency):
            threading.Thread(target=self._work, daemon=True).start()

    @property
    def capacity(self) -> int:
        return self._concurrency

    @property
    def identity(self) -> dict[str, Any]:
        return {"server's model": self._server.model}

    def ask(self, question: Question) -> None:
        self._questions.put(question)

    def take(self) -> tuple[int, Answer | Rejected]:
        ordinal, answer = self._answers.get()
        if isinstance(answer, (Answer, Rejected)):
            return ordinal, answer
        raise answer

    def close(self) -> None:
        pass

    def _work(self) -> None:
        while True:
            question = self._questions.get()
            try:
                answer: Answer | Rejected | BaseException = self._server.answer(question)
            except BaseException as error:  # Whatever it is, who takes the answers must hear of it.
                answer = error
            self._answers.put((question.ordinal, answer))
