"""Answers by the target on this machine's devices: `percheron answer`, a process that batches continuously.

The protocol stands in tools/answer_lines.h. Here is the tokenizer's side: chats are rendered by the model's own
template, and what the target writes becomes a message again.
"""
from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from typing import Any

from .answer_source import Question
from .chat_template import TemplateRefused
from .conversation import Answer
from .failure import Failure
from .model import Model
from .source_row import Rejected
from .written_answer import written_answer

PROGRAM_VARIABLE = "PERCHERON_PROGRAM"
END_S = 20.0  # how long the process may take to end


class LocalAnswers:
    """Starts the process, which ends with this object or with this process, however that ends."""

    def __init__(self, model: Model, options: Mapping[str, Any]) -> None:
        """`options`: of `percheron answer`, by their names without dashes; None: the default. Raises Failure."""
        self._model = model
        self._open: dict[int, tuple[Question, str]] = {}
        given = {**options, "stop-token-ids": ",".join(map(str, stop_ids(model)))}
        program = os.environ.get(PROGRAM_VARIABLE)
        if not program:
            raise Failure(f"`percheron regenerate` sets {PROGRAM_VARIABLE} to the program that answers; start it so, "
                          "or set the variable")
        command = [program, "answer", "--target", str(model.path)]
        for name, value in given.items():
            command += [] if value in (None, "") else [f"--{name}", str(value)]
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except OSError as error:
            raise Failure(f"can't run {program}: {error.strerror or error}") from error
        try:
            ready = self._read()
        except BaseException:
            self.close()
            raise
        self._capacity = int(ready["capacity"])
        self._identity = {"target weights": ready["weights_hash"], "target tokenizer": model.tokenizer.file_hash,
                          "target template": model.template_hash, "context": ready["context_max"]}

    @property
    def capacity(self) -> int:
        # As many again wait, so that a finished answer's place is taken at once.
        return 2 * self._capacity

    @property
    def identity(self) -> dict[str, Any]:
        return self._identity

    def ask(self, question: Question) -> None:
        try:
            prompt = self._model.encoder.render(question.history, question.tools, generation_prompt=True)
        except TemplateRefused as error:
            raise Rejected("template_refused", str(error)) from error
        ids = self._model.tokenizer.encode_ids(prompt.text)
        self._open[question.ordinal] = question, prompt.text
        line = json.dumps({"id": question.ordinal, "sample_key": question.sample_key, "prompt": ids})
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            self._read()  # says why, if the process did
            raise Failure(f"the process that answers takes no more prompts: {error}") from error

    def take(self) -> tuple[int, Answer | Rejected]:
        line = self._read()
        question, prompt = self._open.pop(line["id"])
        if "refused" in line:
            return question.ordinal, Rejected(line["refused"], line["detail"])
        try:
            return question.ordinal, written_answer(self._model, question.history, question.tools, prompt,
                                                    line["tokens"], line["stopped"])
        except Rejected as rejected:
            return question.ordinal, rejected

    def close(self) -> None:
        process = self._process
        # Answers that nobody reads any more go first: with the pipe full of them, the process could not end.
        if process.stdout is not None:
            process.stdout.close()
        if process.stdin is not None and not process.stdin.closed:
            try:
                process.stdin.close()
            except OSError:
                pass  # It is gone already.
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _read(self) -> dict[str, Any]:
        """The next line. Raises Failure when the process says that it can't go on, or has ended."""
        assert self._process.stdout is not None
        text = self._process.stdout.readline()
        if not text.endswith(b"\n"):
            code = self._process.wait()
            raise Failure(f"the process that answers has ended ({ending_of(code)}); what is done is kept, and the same "
                          "command goes on from there")
        line: dict[str, Any] = json.loads(text)
        if "error" in line:
            raise Failure(str(line["error"]))
        return line


def ending_of(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def stop_ids(model: Model) -> list[int]:
    """Where answers end: at the ids at which servers stop, and at the token with which the template ends a turn."""
    ending = model.tokenizer.encode_ids(model.facts.end_of_turn)
    return sorted(model.facts.stop_ids | set(ending if len(ending) == 1 else ()))
