"""Preformatted text: finds the chat that it shows, and proves it by rendering that chat again.

What stands around messages is learnt by rendering chats of probes. Text that no chat renders to is rejected: where the
assistant writes in it is not known.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .chat_template import Message, TemplateRefused
from .loss_mask import MaskUnproven, Row
from .model import Model
from .source_row import Rejected
from .template_facts import PROBE

PROBES = [f"{PROBE}{i}{PROBE}" for i in range(5)]


@dataclass(frozen=True)
class Frame:
    """What a template writes around a system prompt, questions and answers."""

    roles: tuple[str, ...]  # before the first answer: ("system", "user") or ("user",)
    begin: str  # before the first message
    after_system: str
    question_to_answer: str
    answer_to_question: str
    tail: str


class TextRows:
    """Makes rows of preformatted text for one model."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._frames = [frame for roles in (("system", "user"), ("user",)) if (frame := self._frame(roles))]

    def row(self, text: str) -> Row:
        """The text's own ids, with its answers supervised. Raises Rejected, MaskUnproven or TemplateRefused."""
        for frame in self._frames:
            for messages in chats_in(text, frame):
                row = self._row_of(text, messages)
                if row is not None:
                    return row
        raise Rejected("text_not_of_this_template", "no chat renders to this text with the model's chat template, so "
                       "where the assistant writes is not known; give `messages`")

    def _row_of(self, text: str, messages: list[Message]) -> Row | None:
        """None when the chat does not render to the text. White space behind the last turn may be missing."""
        encoder = self._model.encoder
        if any(self._model.tokenizer.has_special(message["content"]) for message in messages):
            return None  # Another role's turn, or a forged one: text does not tell them apart.
        try:
            whole = encoder.render(messages, None).text
            if not whole.startswith(text) or whole[len(text):].strip():
                return None
            row = encoder.conversation_row(messages)
        except TemplateRefused:
            return None
        if whole == text:
            return row
        ids = self._model.tokenizer.encode(text).ids
        if row.ids[: len(ids)] != ids or any(row.mask[len(ids):]):
            raise MaskUnproven("text_end_differs", "without the white space at its end the text has other tokens")
        return Row(ids, row.mask[: len(ids)])

    def _frame(self, roles: tuple[str, ...]) -> Frame | None:
        """What stands around two questions and answers; None when the template refuses them or changes texts."""
        order = [*roles, "assistant", "user", "assistant"]
        messages = [{"role": role, "content": probe} for role, probe in zip(order, PROBES)]
        try:
            text = self._model.encoder.render(messages, None).text
        except TemplateRefused:
            return None
        parts = []
        for probe in PROBES[: len(order)]:
            head, found, text = text.partition(probe)
            if not found:
                return None
            parts.append(head)
        system = roles[0] == "system"
        question, again, question_again = parts[1 + system], parts[2 + system], parts[3 + system]
        # What the last answer has besides, an empty thought, belongs to its text.
        if not question_again.startswith(question) or not question or not again:
            return None
        return Frame(roles, parts[0], parts[1] if system else "", question, again, text)


def chats_in(text: str, frame: Frame) -> Iterator[list[Message]]:
    """The chat that a text shows if it was rendered in this frame."""
    if not text.startswith(frame.begin):
        return
    body = text[len(frame.begin):]
    messages: list[Message] = []
    if frame.roles[0] == "system":
        content, found, body = body.partition(frame.after_system)
        if not found:
            return
        messages.append({"role": "system", "content": content})
    tail = frame.tail if body.endswith(frame.tail) else frame.tail.rstrip()
    if not body.endswith(tail):
        return
    body = body[: len(body) - len(tail)]
    while True:
        question, found, body = body.partition(frame.question_to_answer)
        if not found:
            return
        answer, found, rest = body.partition(frame.answer_to_question)
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        if not found:
            yield messages
            return
        body = rest
