"""Renders a model's own chat template as its server does, and records what the template says about itself.

Marks are single private characters that templates pass through unchanged. They tell, in the rendered text, where
`{% generation %}` blocks and control-token strings of message contents lie; `render` removes them again.
"""
from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .failure import Failure, read_text

Message = dict[str, Any]
Span = tuple[int, int]

# The remedy for a file that is damaged.
WHOLE_FOLDER = "copy the model's folder again, whole"

# From Unicode's last private plane, which text does not use; `rows` refuses content that has them.
GENERATION_OPEN, GENERATION_CLOSE, LITERAL_MARK = "\U0010fff0", "\U0010fff1", "\U0010fff2"
MARK_PATTERN = re.compile(f"[{GENERATION_OPEN}{GENERATION_CLOSE}{LITERAL_MARK}]")


class TemplateRefused(Exception):
    """The template raised on these messages."""


class TemplateMissing(Failure):
    """The model directory has no usable chat template."""


@dataclass(frozen=True)
class Rendered:
    """A rendered chat. Spans are half-open character ranges of `text`."""

    text: str
    generation_spans: tuple[Span, ...] = ()
    # Positions of characters before which a control-token string of a message content was marked as plain text.
    literal_marks: frozenset[int] = frozenset()


class GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}`: what the assistant itself writes."""

    tags = {"generation"}

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    @staticmethod
    def _mark(caller: Callable[[], str]) -> str:
        return GENERATION_OPEN + caller() + GENERATION_CLOSE


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with a short way to entries of messages and to `loop`, which templates read all the time."""

    DICT_NAMES = frozenset(dir(dict))
    LOOP_NAMES = frozenset(name for name in dir(LoopContext) if not name.startswith("_"))

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is dict and attribute in obj and attribute not in self.DICT_NAMES:
            return obj[attribute]
        if type(obj) is LoopContext and attribute in self.LOOP_NAMES:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)


def raise_exception(message: str) -> None:
    """What templates call to refuse messages."""
    raise jinja2.TemplateError(message)


def to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None,
            separators: tuple[str, str] | None = None, sort_keys: bool = False) -> str:
    """Jinja's own `tojson` escapes HTML and sorts keys; chat templates expect neither."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class ChatTemplate:
    """A compiled chat template with the special tokens it may name."""

    def __init__(self, source: str, special_tokens: Mapping[str, Any], now: datetime.datetime) -> None:
        """`now` answers `strftime_now`, so that one run renders all rows alike."""
        environment = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols])
        environment.filters["tojson"] = to_json
        environment.globals["raise_exception"] = raise_exception
        environment.globals["strftime_now"] = now.strftime
        self.source = source
        self.now = now
        self.uses_clock = "strftime_now" in source
        self.has_generation_blocks = bool(re.search(r"\{%[-+]?\s*generation\b", source))
        self.special_tokens = dict(special_tokens)
        try:
            self._template = environment.from_string(source)
            self._template.globals = dict(self._template.globals)  # A chain of maps is slow to copy at each rendering.
        except jinja2.TemplateSyntaxError as error:
            raise TemplateMissing(f"chat template, line {error.lineno}: {error.message}") from error

    def render(self, messages: Sequence[Message], *, tools: list[Any] | None = None, generation_prompt: bool = False,
               variables: Mapping[str, Any] | None = None) -> Rendered:
        """Renders `messages`. Raises TemplateRefused when the template, for whatever reason, cannot."""
        values = {**self.special_tokens, "tools": tools, "documents": None, **(variables or {})}
        try:
            raw = self._template.render(messages=list(messages), add_generation_prompt=generation_prompt, **values)
        except Exception as error:  # Templates fail in any way Python code can; one row must not end the run.
            raise TemplateRefused(str(error) or type(error).__name__) from error
        return remove_marks(raw)


def remove_marks(raw: str) -> Rendered:
    """Turns the marks in a raw rendering into positions. Nested generation blocks count as one; empty ones stay."""
    if raw.isascii() or not MARK_PATTERN.search(raw):
        return Rendered(raw)
    out: list[str] = []
    spans: list[Span] = []
    literal: set[int] = set()
    depth = start = length = at = 0
    for match in MARK_PATTERN.finditer(raw):
        out.append(raw[at:match.start()])
        length += match.start() - at
        at = match.end()
        if match[0] == GENERATION_OPEN:
            start, depth = (length if depth == 0 else start), depth + 1
        elif match[0] == GENERATION_CLOSE:
            depth -= 1
            if depth == 0:
                spans.append((start, length))
        else:
            literal.add(length)
    out.append(raw[at:])
    return Rendered("".join(out), tuple(spans), frozenset(literal))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object, or an empty one when the file is missing."""
    if not path.exists():
        return {}
    try:
        value = json.loads(read_text(path, WHOLE_FOLDER))
    except (ValueError, RecursionError) as error:
        raise Failure(f"{path} is no JSON: {error}; {WHOLE_FOLDER}") from error
    if not isinstance(value, dict):
        raise Failure(f"{path} is not a JSON object; {WHOLE_FOLDER}")
    return value


def special_tokens_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The `*_token` entries of tokenizer_config.json as plain strings."""
    tokens: dict[str, Any] = {}
    for name, value in config.items():
        if name.endswith("_token") and isinstance(value, Mapping):
            value = value.get("content")
        if name.endswith("_token") and isinstance(value, str):
            tokens[name] = value
    return tokens


def template_source(model: Path, config: Mapping[str, Any], name: str = "default") -> str:
    """The template's text: chat_template.jinja goes before tokenizer_config.json, as in transformers."""
    file = model / "chat_template.jinja"
    if file.exists():
        return read_text(file, WHOLE_FOLDER)
    source = config.get("chat_template")
    if isinstance(source, list):
        named: dict[str, str] = {entry["name"]: entry["template"] for entry in source if is_named_template(entry)}
        if name not in named:
            raise TemplateMissing(f"{model}: no chat template named {name!r}; there are {sorted(named)}")
        return named[name]
    if not isinstance(source, str):
        raise TemplateMissing(f"{model} has no chat template, neither chat_template.jinja nor chat_template in "
                              "tokenizer_config.json; give a model that was trained to chat, or add the file")
    return source


def is_named_template(entry: Any) -> bool:
    return isinstance(entry, Mapping) and isinstance(entry.get("name"), str) and isinstance(entry.get("template"), str)


def load_template(model: Path, now: datetime.datetime, name: str = "default") -> ChatTemplate:
    """The chat template of a Hugging Face model directory."""
    config = read_json(model / "tokenizer_config.json")
    source = template_source(model, config, name)
    try:
        return ChatTemplate(source, special_tokens_of(config), now)
    except TemplateMissing as error:
        raise TemplateMissing(f"{model}: {error}; {WHOLE_FOLDER}") from error
