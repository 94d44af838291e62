"""Thoughts of answers: given apart (`reasoning_content`, `thinking`) or at the front of the answer's own text."""
from __future__ import annotations

import re

from .chat_template import Message

INLINE = re.compile(r"\s*<think>.*?</think>\s*", re.DOTALL)
ENTRIES = ("reasoning_content", "thinking")


def without_thought(message: Message) -> Message:
    """The answer without its thought."""
    kept: Message = {name: value for name, value in message.items() if name not in ENTRIES}
    inline = INLINE.match(kept["content"])
    return {**kept, "content": kept["content"][inline.end():]} if inline else kept


def with_other_content(message: Message, content: str) -> Message | None:
    """The answer with the same thought and another text behind it; None for one without a thought."""
    inline = INLINE.match(message["content"])
    if inline:
        return {**message, "content": inline[0] + content}
    if any(isinstance(message.get(name), str) and message[name].strip() for name in ENTRIES):
        return {**message, "content": content}
    return None
