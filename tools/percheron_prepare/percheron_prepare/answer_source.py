"""Who answers turns: the target itself on this machine's devices, or a server that has it."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from .chat_template import Message
from .conversation import Answer
from .source_row import Rejected

TURNS_MAX = 1 << 20  # of a row


@dataclass(frozen=True)
class Question:
    """One turn to answer. `row` is the row's number in the file."""

    ordinal: int  # of the row; names the answer
    row: int
    turn: int
    history: list[Message]
    tools: list[Any] | None

    @property
    def sample_key(self) -> int:
        """What draws depend on besides the seed and the position: nothing that a restart or a neighbour changes."""
        if self.turn >= TURNS_MAX:
            raise Rejected("too_many_turns", f"more than {TURNS_MAX}")
        return self.row * TURNS_MAX + self.turn


class AnswerSource(Protocol):
    """Answers several questions at once, in any order."""

    @property
    def capacity(self) -> int:
        """Questions that should be open at once to keep it busy."""

    @property
    def identity(self) -> dict[str, Any]:
        """What decides the answers besides the questions: by a name that people read."""

    def ask(self, question: Question) -> None:
        """Opens a question; returns at once. Raises Rejected when it can't be asked."""

    def take(self) -> tuple[int, Answer | Rejected]:
        """Waits for the next answer and the ordinal of its question. Raises Failure when there will be none."""

    def close(self) -> None:
        """Gives open questions up."""
