"""A row whose answers are made anew, one turn after the other, in the row's own spelling.

Every turn is asked with the new answers before it. Two answers in a row become one. A question that nobody has answered
is answered, and so are `prompt` and each of `turns`. An answer that a limit cut, or that calls a tool, ends the chat:
what would follow it has lost its sense.
"""
from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from .chat_template import Message
from .rows import chat_key, parse_message, parse_tools, role_of, with_system_prompt
from .source_row import Rejected

# Entries of an answer that prompts and rows have.
ANSWER_ENTRIES = ("reasoning_content", "tool_calls")


@dataclass(frozen=True)
class Answer:
    """What was written for one turn. `message`: role, content, perhaps reasoning_content and tool_calls."""

    message: Message
    tokens: int
    is_cut: bool = False  # a limit ended it
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Turn:
    """Messages as the row spells them, and the spelling of their answer: its role's entry and name, its text's."""

    questions: list[dict[str, Any]]
    role_key: str
    role: str
    text_key: str


class Conversation:
    """`history`: what the next answer is asked with, as templates expect it. `notes`: what became of the row."""

    def __init__(self, row: dict[str, Any]) -> None:
        """Raises Rejected when the row has no answers that could be made anew."""
        self.notes: Counter[str] = Counter()
        self.tokens = 0
        self.answers = 0
        self.is_done = False
        self._row = row
        self._key, listed = listed_messages(row)
        self._turns = self._split(listed)
        self.tools = parse_tools(row.get("tools"))
        self._questions = [[parse_message(entry) for entry in turn.questions] for turn in self._turns]
        self._spelled: list[dict[str, Any]] = []
        self._is_cut = False
        self.history: list[Message] = with_system_prompt(row, self._questions[0])

    def take(self, answer: Answer) -> None:
        """Puts the answer in its place and asks the next turn, if there is one."""
        turn = self._turns[self.answers]
        said = {name: answer.message[name] for name in ANSWER_ENTRIES if answer.message.get(name)}
        self._spelled += [*turn.questions,
                          {turn.role_key: turn.role, turn.text_key: answer.message["content"], **said}]
        self.history.append(answer.message)
        self.tokens += answer.tokens
        self.answers += 1
        self.notes.update(answer.notes)
        calls = bool(answer.message.get("tool_calls"))
        if answer.is_cut:
            self._is_cut = True
            self.notes["answers_cut_at_length"] += 1
        if answer.is_cut or calls:
            self._end("a_cut_answer" if answer.is_cut else "a_tool_call")
        elif self.answers == len(self._turns):
            self.is_done = True
        else:
            self.history += self._questions[self.answers]

    def end_early(self, why: Rejected) -> None:
        """Leaves this turn and those after it out. Raises `why` when no turn would be left."""
        if not self.answers:
            raise why
        self._end(why.reason)

    def result(self) -> dict[str, Any]:
        """The row with its new answers; `complete` says whether the last one has its natural end."""
        row = {name: value for name, value in self._row.items() if name not in ("complete", "finish_reason")}
        return {**row, self._key: self._spelled, "complete": not self._is_cut}

    def _end(self, why: str) -> None:
        self.is_done = True
        left_out = len(self._turns) - self.answers
        if left_out:
            self.notes[f"chats_ended_by_{why}"] += 1
            self.notes["turns_left_out"] += left_out

    def _split(self, listed: list[Any]) -> list[Turn]:
        turns: list[Turn] = []
        questions: list[dict[str, Any]] = []
        for entry in listed:
            role = role_of(entry)
            if role == "tool" or entry.get("tool_calls"):
                raise Rejected("tool_calls", "what tools return belongs to the old answers' calls; the target's own "
                               "calls would get other results")
            if role != "assistant":
                questions.append(entry)
            elif questions:
                turns.append(Turn(questions, *spelling_of(entry)))
                questions = []
            elif turns:
                self.notes["answers_in_a_row_joined"] += 1
            else:
                raise Rejected("starts_with_assistant", "the first answer has no prompt")
        if questions:
            self.notes["answers_added"] += 1
            turns.append(Turn(questions, *spelling_of(questions[-1])))
        return turns


def listed_messages(row: dict[str, Any]) -> tuple[str, list[Any]]:
    """Where the row has its messages, or is to have them, and the messages."""
    if (key := chat_key(row)) is not None:
        if not isinstance(row[key], list):
            raise Rejected("bad_messages", "not a list")
        if not row[key]:
            raise Rejected("empty_conversation")
        return key, row[key]
    if "input_ids" in row:
        raise Rejected("token_row", "token ids do not tell whose turn it is; give `messages`")
    if isinstance(row.get("prompt"), str) or "turns" in row:
        turns = [row["prompt"]] if isinstance(row.get("prompt"), str) else row["turns"]
        if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
            raise Rejected("bad_turns", "`turns` must be a list of texts")
        # An answer between two questions keeps them apart; its text is never read.
        listed = [entry for turn in turns for entry in ({"role": "user", "content": turn},
                                                        {"role": "assistant", "content": ""})]
        return "messages", listed
    if "text" in row:
        raise Rejected("text_row", "a rendered chat does not tell its messages for sure; give `messages`")
    raise Rejected("unknown_shape", f"keys {sorted(row)[:8]}; expected messages, conversations, prompt or turns")


def spelling_of(entry: dict[str, Any]) -> tuple[str, str, str]:
    """How the answer is spelled that stands in the place of, or behind, this entry."""
    role_key = "role" if "role" in entry else "from"
    text_key = "value" if "value" in entry and "content" not in entry else "content"
    if role_of(entry) == "assistant":
        return role_key, entry[role_key], text_key
    return role_key, "assistant" if role_key == "role" else "gpt", text_key
