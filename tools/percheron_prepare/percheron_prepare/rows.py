"""Recognises the spellings of rows that data sets use: each becomes a chat, text, token ids or a prompt.

A chat is `messages` or `conversations`, a list of {role, content} or {from, value}, with optional `tools` and `system`.
Preformatted text is `text`. Ready ids are `input_ids` with `loss_mask`. Evaluation prompts are `prompt` or `turns`. A
row that cannot be used raises Rejected.
"""
from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from .chat_template import MARK_PATTERN, Message
from .source_row import Rejected, replace_surrogates, row_id

ROLES = {"human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "assistant": "assistant",
         "model": "assistant", "system": "system", "developer": "developer", "tool": "tool", "observation": "tool"}

# Message entries that templates read besides role and content.
KEPT_ENTRIES = ("name", "tool_calls", "tool_call_id", "reasoning_content", "thinking")
THOUGHT_ENTRIES = ("reasoning_content", "thinking", "reasoning")

# Parts of a content that are text.
TEXT_PARTS = (None, "text", "input_text", "output_text")
# What a server says of an answer that was ended by a length limit.
LENGTH_REASONS = ("length", "max_tokens")


@dataclass(frozen=True)
class Chat:
    """A chat. `complete` False: generation stopped at a length limit, so the last answer has no natural end."""

    id: str
    messages: list[Message]
    tools: list[Any] | None
    complete: bool


@dataclass(frozen=True)
class TextRow:
    """A chat that was rendered elsewhere."""

    id: str
    text: str


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


Parsed = Chat | TextRow | TokenRow | Prompt


def content_hash(parsed: Parsed) -> int:
    """64 bits of a hash of what the row says, whatever its spelling, its name and its place."""
    said = {name: value for name, value in vars(parsed).items() if name != "id"}
    text = json.dumps(said, sort_keys=True, separators=(",", ":"), default=str)
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:8], "big")


def parse_row(row: dict[str, Any], number: int) -> Parsed:
    """Recognises the row's spelling. `number`: its place in the file."""
    name = row_id(row, number)
    if (key := chat_key(row)) is not None:
        return parse_chat(row, name, key)
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
        if not isinstance(row["text"], str) or not row["text"]:
            raise Rejected("bad_text", "`text` must be text that is not empty")
        if MARK_PATTERN.search(row["text"]):
            raise Rejected("private_characters", "text uses U+10FFF0..U+10FFF2")
        return TextRow(name, row["text"])
    raise Rejected("unknown_shape", f"keys {sorted(row)[:8]}; expected messages, conversations, text, input_ids, "
                   "or prompts: prompt, turns")


def chat_key(row: dict[str, Any]) -> str | None:
    """The entry that holds the chat; one that is null, as beside another spelling's, only where there is no other."""
    keys = [key for key in ("messages", "conversations") if key in row]
    return next((key for key in keys if row[key] is not None), keys[0] if keys else None)


def ignored_keys(row: dict[str, Any], parsed: Parsed) -> set[str]:
    """The row's entries that nothing was made of."""
    match parsed:
        case Chat():
            used = {chat_key(row), "system", "tools", "complete", "finish_reason"}
        case TextRow():
            used = {"text"}
        case TokenRow():
            used = {"input_ids", "loss_mask"}
        case Prompt():
            used = {"prompt" if isinstance(row.get("prompt"), str) else "turns"}
    return {key for key, value in row.items() if value is not None} - used - {"id"}


def parse_chat(row: dict[str, Any], name: str, key: str) -> Chat:
    listed = row[key]
    if not isinstance(listed, list):
        raise Rejected("bad_messages", "not a list")
    if not listed:
        raise Rejected("empty_conversation")
    messages = with_system_prompt(row, [parse_message(entry) for entry in listed])
    if messages[0]["role"] == "assistant":
        raise Rejected("starts_with_assistant", "the first answer has no prompt")
    return Chat(name, messages, parse_tools(row.get("tools")), complete=not is_cut(row, listed[-1]))


def with_system_prompt(row: dict[str, Any], messages: list[Message]) -> list[Message]:
    """The chat's messages behind the system prompt that stands beside them."""
    system = system_prompt_of(row)
    if system and messages[0]["role"] == "system":
        raise Rejected("two_system_prompts", "`system` beside a first message that is the system's")
    return system + messages


def system_prompt_of(row: dict[str, Any]) -> list[Message]:
    """The chat's system prompt where it stands beside the messages."""
    system = row.get("system")
    if system is None or system == "":
        return []
    if not isinstance(system, str):
        raise Rejected("bad_system", "`system` is no text")
    return [parse_message({"role": "system", "content": system})]


def is_cut(row: dict[str, Any], last: Any) -> bool:
    """Whether the last answer was ended by a length limit."""
    if not isinstance(row.get("complete"), bool | None):
        raise Rejected("bad_complete", f"`complete` is {row['complete']!r}, neither true nor false")
    return row.get("complete") is False or any(reason in (row.get("finish_reason"), finish_reason(last))
                                               for reason in LENGTH_REASONS)


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
    key = chat_key(row)
    listed = row[key] if key else None
    if not isinstance(listed, list) or not listed:
        raise Rejected("unknown_shape", "a row needs `prompt`, `turns`, `conversations` or `messages`")
    answers = [i for i, entry in enumerate(listed) if role_of(entry) == "assistant"]
    asked = listed[: answers[-1]] if answers else listed
    if not asked:
        raise Rejected("starts_with_assistant", "the answer has no question before it")
    return system_prompt_of(row) + [parse_message(entry) for entry in asked], parse_tools(row.get("tools"))


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
    role, content = role_of(entry), entry.get("content", entry.get("value"))
    message: Message = {"role": role, "content": parse_content(content)}
    message.update((key, entry[key]) for key in KEPT_ENTRIES if entry.get(key) is not None)
    require_understood(entry)
    if "reasoning_content" not in message and entry.get("reasoning") is not None:
        message["reasoning_content"] = entry["reasoning"]
    if "tool_calls" in message:
        message["tool_calls"] = parse_tool_calls(message["tool_calls"])
    if content is None and role == "assistant" and not message.get("tool_calls"):
        raise Rejected("answer_missing", "an assistant message without content or tool calls")
    if content is None and role not in ("assistant", "tool"):
        raise Rejected("content_missing", f"the {role}'s message has no content")
    if has_marks(message):
        raise Rejected("private_characters", "text uses U+10FFF0..U+10FFF2")
    return message


def require_understood(entry: dict[str, Any]) -> None:
    """Refuses a message whose meaning would be lost without a word."""
    if entry.get("function_call") is not None:
        raise Rejected("function_call", "`function_call`, which no template renders: give `tool_calls`")
    if entry.get("weight") not in (None, 1):
        raise Rejected("unsupported_weight", f"`weight` is {entry['weight']!r}: an answer is supervised whole; leave the "
                       "row out, or --last-turn-only")
    for name in THOUGHT_ENTRIES:
        if not isinstance(entry.get(name), str | None):
            raise Rejected("bad_thought", f"`{name}` is no text")


def has_marks(message: Message) -> bool:
    """Whether any of its texts has a character that renderings are marked with."""
    if len(message) > 2:  # more than role and content
        return bool(MARK_PATTERN.search(json.dumps(message, ensure_ascii=False)))
    return not message["content"].isascii() and bool(MARK_PATTERN.search(message["content"]))


def parse_content(content: Any) -> str:
    """Text, or a list of text parts. Missing content, as beside tool calls, is empty text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(p, dict) and isinstance(p.get("text"), str)
                                         and p.get("type") in TEXT_PARTS for p in content):
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
        value = replace_surrogates(json.loads(text))
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def parse_tools(tools: Any) -> list[Any] | None:
    """A list of tools, given as such or as its JSON text."""
    if isinstance(tools, str):
        try:
            tools = replace_surrogates(json.loads(tools)) if tools.strip() else None
        except (ValueError, RecursionError) as error:
            raise Rejected("bad_tools", f"`tools` is text but no JSON: {error}") from error
    if tools is None or tools == []:
        return None
    if not isinstance(tools, list):
        raise Rejected("bad_tools", f"`tools` is a {type(tools).__name__}, not a list")
    tools = [object_or_text(tool) if isinstance(tool, str) else tool for tool in tools]
    if not all(isinstance(tool, dict) for tool in tools):
        raise Rejected("bad_tools", "`tools` must list objects")
    return tools


def parse_tokens(row: dict[str, Any], name: str) -> TokenRow:
    ids, mask = row["input_ids"], row.get("loss_mask")
    if not isinstance(ids, list) or not isinstance(mask, list) or len(ids) != len(mask) or not ids:
        raise Rejected("bad_token_row", "`input_ids` and `loss_mask` must be lists of one length")
    # Without a loop of Python's own, which would take most of such a row's time.
    if set(map(type, ids)) != {int} or min(ids) < 0 or not set(map(type, mask)) <= {int, bool, float} or \
            not set(mask) <= {0, 1}:
        raise Rejected("bad_token_row", "`input_ids` must be whole numbers, `loss_mask` 0 or 1")
    return TokenRow(name, ids, list(map(int, mask)))
