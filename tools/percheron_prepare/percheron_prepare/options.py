"""What decides the tokens of a shard besides model and source."""
from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from .loss_mask import Rows, Thinking


class TooLong(enum.Enum):
    """What happens to a row longer than the limit."""

    REFUSE = "refuse"
    TRUNCATE = "truncate"
    SKIP = "skip"


class Markers(enum.Enum):
    """What happens to control-token strings inside messages."""

    KEEP = "keep"  # real control tokens, as servers make of them
    TEXT = "text"
    SKIP = "skip"


class Purpose(enum.Enum):
    TRAINING = "training"
    PROMPTS = "prompts"  # evaluation: prompt with generation prompt, then the answer if there is one


class ConsecutiveUsers(enum.Enum):
    """What happens to a chat with two user turns in a row."""

    KEEP = "keep"  # as the template renders them; a template that refuses them rejects the row
    MERGE = "merge"  # joined with a blank line
    SKIP = "skip"


class SystemPrompts(enum.Enum):
    """What happens to the system prompts of chats."""

    KEEP = "keep"
    DROP = "drop"


class CutAnswers(enum.Enum):
    """What happens to a chat whose last answer was ended by a length limit."""

    KEEP = "keep"  # without its end-of-turn token
    SKIP = "skip"


@dataclass(frozen=True)
class Options:
    """All of it enters `options_hash`."""

    purpose: Purpose = Purpose.TRAINING
    rows: Rows = Rows.AUTO
    thinking: Thinking = Thinking.SUPERVISE
    min_length: int = 1  # tokens
    max_length: int | None = None  # tokens
    too_long: TooLong = TooLong.TRUNCATE
    last_turn_only: bool = False
    consecutive_users: ConsecutiveUsers = ConsecutiveUsers.KEEP
    markers: Markers = Markers.KEEP
    cut_answers: CutAnswers = CutAnswers.KEEP
    system_prompts: SystemPrompts = SystemPrompts.KEEP
    default_system_prompt: str | None = None  # for chats that have none
    held_out_share: float = 0.0  # of the rows, by a hash of their content
    template_variables: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {name: value.value if isinstance(value, enum.Enum) else value for name, value in vars(self).items()}
