"""Reads JSONL rows in the spellings that data sets use, and turns each into a chat, token ids or a prompt.

A chat is `messages` or `conversations`, a list of {role, content} or {from, value}, with optional `tools`. Ready ids
are `input_ids` with `loss_mask`. Evaluation prompts are `prompt` or `turns`. A row that cannot be used raises Rejected.
"""
from __future__ import annotations

import enum
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from .chat_template import MARK_PATTERN, Message
from .failure import reported

LINE_BYTES_MAX = 256 << 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

ROLES = {"human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "assistant": "assistant",
         "model": "assistant", "system": "system", "developer": "developer", "tool": "tool", "observation": "tool"}

# Message entries that templates read besides role and content.
KEPT_ENTRIES = ("name", "tool_calls", "tool_call_id", "reasoning_content", "thinking")


class Rejected(Exception):
    """A row that is left out: a short reason that is counted, and a detail for the side file."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


class ConsecutiveUsers(enum.Enum):
    """What happens to a chat with two user turns in a row."""

    KEEP = "keep"  # as the template renders them; a template that refuses them rejects the row
    MERGE = "merge"  # joined with a blank line
    SKIP = "skip"


@dataclass(frozen=True)
class Line:
    """One non-blank line of a file."""

    number: int
    byte_offset: int
    content: bytes
    ends_with_newline: bool


@dataclass(frozen=True)
class Chat:
    """A chat. `complete` False: generation stopped at a length limit, so the last answer has no natural end."""

    id: str
    messages: list[Message]
    tools: list[Any] | None
    complete: bool


@dataclass(frozen=True)
class TokenRow:
    """A row that was tokenized elsewhere."""

    id: str
    ids: list[int]
    mask: list[int]


@dataclass(frozen=True)
class Prompt:
    """Questions without answers."""

    id: str
    turns: list[str]


def read_lines(path: Path) -> Iterator[Line]:
    """The non-blank lines, without byte-order mark and line ends. A line over LINE_BYTES_MAX comes empty."""
    with reported("read", path, "give a JSONL file that can be read"), open(path, "rb") as file:
        offset, number = 0, 0
        while raw := file.readline(LINE_BYTES_MAX):
            number += 1
            start, offset = offset, offset + len(raw)
            ends = raw.endswith(b"\n")
            if not ends and len(raw) == LINE_BYTES_MAX:
                offset += skip_line(file)
                yield Line(number, start, b"", ends_with_newline=True)
                continue
            if number == 1:
                raw = raw.removeprefix(BYTE_ORDER_MARK)
            if raw.strip():
                yield Line(number, start, raw.rstrip(b"\r\n"), ends)


def skip_line(file: BinaryIO) -> int:
    """Reads to the line's end and returns how many bytes that took."""
    skipped = 0
    while rest := file.readline(LINE_BYTES_MAX):
        skipped += len(rest)
        if rest.endswith(b"\n"):
            break
    return skipped


def parse_line(line: Line) -> tuple[dict[str, Any], bool]:
    """The row's JSON object, and whether lone surrogates in it were replaced."""
    if not line.content:
        raise Rejected("line_too_long", f"more than {LINE_BYTES_MAX} bytes")
    try:
        text = line.content.decode("utf-8")
        value = json.loads(text)
    except UnicodeDecodeError as error:
        raise Rejected("bad_utf8", f"byte {line.byte_offset + error.start}") from error
    except (ValueError, RecursionError) as error:
        reason = "bad_json" if line.ends_with_newline else "cut_last_line"
        raise Rejected(reason, f"{error}, line begins at byte {line.byte_offset}") from error
    if not isinstance(value, dict):
        raise Rejected("not_an_object", f"a JSON {type(value).__name__}")
    if "\\ud" not in text and "\\uD" not in text:
        return value, False
    repaired = replace_surrogates(value)
    return repaired, repaired != value


def replace_surrogates(value: Any) -> Any:
    """The value with every lone surrogate, which no UTF-8 text can have, replaced by U+FFFD."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [replace_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {replace_surrogates(key): replace_surrogates(item) for key, item in value.items()}
    return value


def row_id(row: dict[str, Any], line_number: int) -> str:
    """The row's id as text; rows without one are named by their line."""
    value = row.get("id")
    if value is None or isinstance(value, (dict, list)):
        return f"line-{line_number}"
    return str(value)


def parse_row(row: dict[str, Any], line_number: int, users: ConsecutiveUsers) -> Chat | TokenRow | Prompt:
    """Recognises the row's spelling."""
    name = row_id(row, line_number)
    if "messages" in row or "conversations" in row:
        return parse_chat(row, name, users)
    if "input_ids" in row:
        return parse_tokens(row, name)
    if "turns" in row or isinstance(row.get("prompt"), str):
        turns = [row["prompt"]] if isinstance(row.get("prompt"), str) else row["turns"]
        if not isinstance(turns, list) or not turns or not all(isinstance(t, str) for t in turns):
            raise Rejected("bad_turns", "`turns` must be a list of texts")
        if any(MARK_PATTERN.search(turn) for turn in turns):
            raise Rejected("private_characters", "text uses U+10FFF0..U+10FFF2")
        return Prompt(name, turns)
    if "text" in row:
        raise Rejected("preformatted_text", "`text` does not say what the assistant wrote; give `messages`")
    raise Rejected("unknown_shape", f"keys {sorted(row)[:8]}; expected messages, conversations, input_ids, "
                   "or prompts: prompt, turns")


def parse_chat(row: dict[str, Any], name: str, users: ConsecutiveUsers) -> Chat:
    listed = row["messages"] if "messages" in row else row["conversations"]
    if not isinstance(listed, list):
        raise Rejected("bad_messages", "not a list")
    if not listed:
        raise Rejected("empty_conversation")
    messages = apply_users_policy([parse_message(entry) for entry in listed], users)
    if messages[0]["role"] == "assistant":
        raise Rejected("starts_with_assistant", "the first answer has no prompt")
    cut = row.get("complete") is False or "length" in (row.get("finish_reason"), finish_reason(listed[-1]))
    return Chat(name, messages, parse_tools(row.get("tools")), complete=not cut)


def parse_prompt(row: dict[str, Any]) -> tuple[list[Message], list[Any] | None]:
    """What a model is to answer, and the tools it may call: `prompt`, the first of `turns`, or a chat up to its last
    answer (all of it when nobody has answered yet)."""
    if isinstance(row.get("prompt"), str):
        return [parse_message({"role": "user", "content": row["prompt"]})], None
    if "turns" in row:
        turns = row["turns"]
        if not isinstance(turns, list) or not turns or not isinstance(turns[0], str):
            raise Rejected("bad_turns", "`turns` must be a list of texts")
        return [parse_message({"role": "user", "content": turns[0]})], None
    listed = next((row[key] for key in ("conversations", "messages") if key in row), None)
    if not isinstance(listed, list) or not listed:
        raise Rejected("unknown_shape", "a row needs `prompt`, `turns`, `conversations` or `messages`")
    answers = [i for i, entry in enumerate(listed) if role_of(entry) == "assistant"]
    asked = listed[: answers[-1]] if answers else listed
    if not asked:
        raise Rejected("starts_with_assistant", "the answer has no question before it")
    return [parse_message(entry) for entry in asked], parse_tools(row.get("tools"))


def finish_reason(message: Any) -> Any:
    return message.get("finish_reason") if isinstance(message, dict) else None


def role_of(entry: Any) -> str:
    """Whose a message is, in the templates' words."""
    if not isinstance(entry, dict):
        raise Rejected("bad_message", f"a {type(entry).__name__} in the list of messages")
    role = entry.get("role", entry.get("from"))
    if not isinstance(role, str) or role not in ROLES:
        raise Rejected("unknown_role", repr(role))
    return ROLES[role]


def parse_message(entry: Any) -> Message:
    """One message as templates expect it."""
    message: Message = {"role": role_of(entry), "content": parse_content(entry.get("content", entry.get("value")))}
    message.update((key, entry[key]) for key in KEPT_ENTRIES if entry.get(key) is not None)
    if "reasoning_content" not in message and isinstance(entry.get("reasoning"), str):
        message["reasoning_content"] = entry["reasoning"]
    if "tool_calls" in message:
        message["tool_calls"] = parse_tool_calls(message["tool_calls"])
    if message["role"] == "assistant" and entry.get("content", entry.get("value")) is None \
            and not message.get("tool_calls"):
        raise Rejected("answer_missing", "an assistant message without content or tool calls")
    if MARK_PATTERN.search(json.dumps(message, ensure_ascii=False)):
        raise Rejected("private_characters", "text uses U+10FFF0..U+10FFF2")
    return message


def parse_content(content: Any) -> str:
    """Text, or a list of text parts. Missing content, as beside tool calls, is empty text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(p, dict) and isinstance(p.get("text"), str) for p in content):
        return "".join(part["text"] for part in content)
    raise Rejected("unsupported_content", "content is neither text nor a list of text parts")


def parse_tool_calls(calls: Any) -> list[Any]:
    """Tool calls with `arguments` as an object where they are the JSON text of one, as servers pass them on."""
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise Rejected("bad_tool_calls", "not a list of objects")
    out = []
    for call in calls:
        function = call.get("function", {})
        if not isinstance(function, dict):
            raise Rejected("bad_tool_calls", "`function` is not an object")
        if isinstance(function.get("arguments"), str):
            call = {**call, "function": {**function, "arguments": object_or_text(function["arguments"])}}
        out.append(call)
    return out


def object_or_text(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, dict) else text


def parse_tools(tools: Any) -> list[Any] | None:
    """A list of tools, given as such or as its JSON text."""
    if isinstance(tools, str):
        try:
            tools = json.loads(tools) if tools.strip() else None
        except ValueError as error:
            raise Rejected("bad_tools", f"`tools` is text but no JSON: {error}") from error
    if tools is None or tools == []:
        return None
    if not isinstance(tools, list):
        raise Rejected("bad_tools", f"`tools` is a {type(tools).__name__}, not a list")
    return tools


def apply_users_policy(messages: list[Message], policy: ConsecutiveUsers) -> list[Message]:
    """Applies the policy to user turns in a row."""
    out: list[Message] = []
    for message in messages:
        if out and message["role"] == "user" and out[-1]["role"] == "user":
            if policy is ConsecutiveUsers.SKIP:
                raise Rejected("consecutive_users")
            if policy is ConsecutiveUsers.MERGE:
                out[-1] = {**out[-1], "content": out[-1]["content"] + "\n\n" + message["content"]}
                continue
        out.append(message)
    return out


def parse_tokens(row: dict[str, Any], name: str) -> TokenRow:
    ids, mask = row["input_ids"], row.get("loss_mask")
    if not isinstance(ids, list) or not isinstance(mask, list) or len(ids) != len(mask) or not ids:
        raise Rejected("bad_token_row", "`input_ids` and `loss_mask` must be lists of one length")
    if not all(type(i) is int and i >= 0 for i in ids) or not all(m in (0, 1) for m in mask):
        raise Rejected("bad_token_row", "`input_ids` must be whole numbers, `loss_mask` 0 or 1")
    return TokenRow(name, ids, [int(m) for m in mask])
