"""Encodes and decodes for another program: one JSON object a line on standard input, one answer a line.

    {"op": "info"}                                  -> {"vocab_size", "stop_ids", "tokenizer_hash", "template_hash"}
    {"op": "encode", "text": "..."}                 -> {"ids": [...]}
    {"op": "encode_chat", "messages": [...], "tools": [...]?, "generation_prompt": true?} -> {"ids": [...], "text": ...}
    {"op": "encode_prompt", "row": {...}}           -> {"ids": [...]}
    {"op": "decode", "ids": [...]}                  -> {"text": "...", "pieces": ["...", ...]}

`row` is a row of a file of prompts (`rows.parse_prompt`). `pieces` has one text per id and joins to `text`; ids that
end inside a character have an empty piece, and the character stands at the id that completes it. A request that fails
is answered by {"error": "..."}; the next one is served as if nothing had been. The program ends with its input; with a
model that cannot be read it answers one request, with the error, and ends.
"""
from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TextIO

from .chat_template import TemplateRefused
from .model import Model
from .rows import parse_message, parse_prompt, parse_tools
from .source_row import Rejected, replace_surrogates
from .token_pieces import token_pieces


class BadRequest(Exception):
    """The request lacks something or has it in the wrong kind."""


class TokenizerServer:
    """Answers requests with one model's tokenizer and template."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._operations: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "info": self._info, "encode": self._encode, "encode_chat": self._encode_chat,
            "encode_prompt": self._encode_prompt, "decode": self._decode}

    def answer(self, line: str) -> dict[str, Any]:
        """The answer to one line. Never raises on account of a request."""
        try:
            request = replace_surrogates(json.loads(line))
            if not isinstance(request, dict):
                raise BadRequest("a request is a JSON object")
            operation = self._operations.get(str(request.get("op")))
            if operation is None:
                raise BadRequest(f"unknown op {request.get('op')!r}; there are {sorted(self._operations)}")
            return operation(request)
        except (BadRequest, Rejected, TemplateRefused) as error:
            return {"error": str(error)}
        except (ValueError, RecursionError, OverflowError, TypeError) as error:
            return {"error": f"bad request: {error}"}

    def _info(self, _: dict[str, Any]) -> dict[str, Any]:
        model = self._model
        return {"vocab_size": model.vocab_size, "stop_ids": sorted(model.facts.stop_ids),
                "tokenizer_hash": model.tokenizer.file_hash, "template_hash": model.template_hash}

    def _encode(self, request: dict[str, Any]) -> dict[str, Any]:
        text = request.get("text")
        if not isinstance(text, str):
            raise BadRequest("encode needs `text`")
        return {"ids": self._model.tokenizer.encode(text).ids}

    def _encode_chat(self, request: dict[str, Any]) -> dict[str, Any]:
        listed = request.get("messages")
        if not isinstance(listed, list) or not listed:
            raise BadRequest("encode_chat needs `messages`, a list that is not empty")
        messages = [parse_message(entry) for entry in listed]
        rendered = self._model.encoder.render(messages, parse_tools(request.get("tools")),
                                              generation_prompt=bool(request.get("generation_prompt", True)))
        return {"ids": self._model.tokenizer.encode(rendered.text).ids, "text": rendered.text}

    def _encode_prompt(self, request: dict[str, Any]) -> dict[str, Any]:
        row = request.get("row")
        if not isinstance(row, dict):
            raise BadRequest("a row is a JSON object")
        return {"ids": self._model.encoder.prompt(*parse_prompt(row))}

    def _decode(self, request: dict[str, Any]) -> dict[str, Any]:
        ids = request.get("ids")
        limit = self._model.tokenizer.vocab_size
        if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < limit for i in ids):
            raise BadRequest(f"decode needs `ids`, a list of numbers below {limit}")
        pieces = token_pieces(self._model.tokenizer.raw, ids)
        return {"text": "".join(pieces), "pieces": pieces}


def serve(model: Model, requests: TextIO, answers: TextIO) -> None:
    """Answers line by line until the input ends."""
    server = TokenizerServer(model)
    while line := requests.readline():
        if line.strip():
            answers.write(json.dumps(server.answer(line), ensure_ascii=False) + "\n")
            answers.flush()


def answer_with_error(text: str, requests: TextIO, answers: TextIO) -> bool:
    """Answers the first request with what keeps this program from serving any. False: no request came."""
    if not requests.readline():
        return False
    answers.write(json.dumps({"error": text}, ensure_ascii=False) + "\n")
    answers.flush()
    return True
