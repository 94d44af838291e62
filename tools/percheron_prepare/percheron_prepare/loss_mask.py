"""Token ids and loss masks of chats.

Supervised are the assistant's answers and the token that ends each, nothing else: what a model writes after the
generation prompt. A token is supervised when it begins inside such a text. Where answers lie is told by the
template's `{% generation %}` blocks; without them, by rendering the chat up to each answer with the generation prompt
and past it, which must agree. A mask that cannot be proven is refused (MaskUnproven), never guessed.
"""
from __future__ import annotations

import enum
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .chat_template import ChatTemplate, Message, Rendered, Span
from .template_facts import PROBE, TemplateFacts
from .text_tokenizer import TextTokenizer
from .thoughts import with_other_content
from .token_boundaries import TokenBoundaries


# What a thinking model's template writes for an answer without a thought; the generation prompt may open it.
EMPTY_THOUGHT = re.compile(r"\s*(<think>\s*)?</think>\n{0,2}")


class MaskUnproven(Exception):
    """Where the answer lies in the rendered chat cannot be proven. The first argument is a short reason."""


class Rows(enum.Enum):
    """How a chat becomes rows."""

    AUTO = "auto"  # one row where that is what serving renders, else one per answer
    CONVERSATION = "conversation"
    TURN = "turn"


class Thinking(enum.Enum):
    """What happens to the thoughts of answers."""

    SUPERVISE = "supervise"  # where the template renders them
    CONTEXT = "context"  # rendered, with mask 0
    DROP = "drop"  # taken out of the chat beforehand


@dataclass(frozen=True)
class Row:
    """Ids with a mask of the same length. `message` is the answer's index for the row of one turn."""

    ids: list[int]
    mask: list[int]
    message: int | None = None


@dataclass(frozen=True)
class Turn:
    """One answer as serving sees it: the prompt, what must be written after it, and its supervised ranges."""

    message: int
    prompt: Rendered
    completion: Rendered
    spans: tuple[Span, ...]  # within completion.text
    mode: Mapping[str, Any]


class ChatEncoder:
    """Makes rows of chats for one model."""

    def __init__(self, template: ChatTemplate, tokenizer: TextTokenizer, facts: TemplateFacts,
                 variables: Mapping[str, Any] | None = None) -> None:
        self._template = template
        self._tokenizer = tokenizer
        self._facts = facts
        self._variables = dict(variables or {})
        self._boundaries = TokenBoundaries(tokenizer)

    def render(self, messages: Sequence[Message], tools: list[Any] | None, generation_prompt: bool = False,
               mode: Mapping[str, Any] | None = None) -> Rendered:
        """The rendered chat. Raises TemplateRefused."""
        return self._template.render(messages, tools=tools, generation_prompt=generation_prompt,
                                     variables={**self._variables, **(mode or {})})

    def rows(self, messages: Sequence[Message], tools: list[Any] | None = None, rows: Rows = Rows.AUTO,
             complete: bool = True, thinking: Thinking = Thinking.SUPERVISE) -> list[Row]:
        """The chat's rows. `complete` False: the last answer was cut, so its end-of-turn token is left out."""
        if rows is Rows.CONVERSATION:
            return [self.conversation_row(messages, tools, complete, thinking)]
        if rows is Rows.AUTO and (whole := self._whole_row(messages, tools, complete, thinking)) is not None:
            return [whole]
        return list(self._turn_rows(messages, tools, complete, thinking))

    def _whole_row(self, messages: Sequence[Message], tools: list[Any] | None, complete: bool,
                   thinking: Thinking) -> Row | None:
        """The whole chat as one row where it begins, for every answer, with what serving renders; else None. Turns are
        looked at one after the other: together they are as large as the square of a long chat."""
        served = self._served_row(messages, tools, complete, thinking)
        if served is not None:
            return served
        try:
            whole = self.conversation_row(messages, tools, complete, thinking)
        except MaskUnproven:
            return None
        return whole if all(begins_with(whole, row) for row in self._turn_rows(messages, tools, complete, thinking)) else None

    def _turn_rows(self, messages: Sequence[Message], tools: list[Any] | None, complete: bool,
                   thinking: Thinking) -> Iterator[Row]:
        for turn in self.turns(messages, tools, thinking):
            yield self.turn_row(turn, complete or turn.message + 1 < len(messages))

    def _served_row(self, messages: Sequence[Message], tools: list[Any] | None, complete: bool,
                    thinking: Thinking) -> Row | None:
        """The whole chat as one row where that is provably what serving renders, without encoding every turn by itself;
        None where it takes a closer look."""
        whole = self.render(messages, tools)
        if whole.literal_marks:
            return None
        try:
            spans = spans_of_turns(self.turns(messages, tools, thinking, whole), whole)
            if not spans or self._template.has_generation_blocks and self._tagged_spans(messages, whole) != spans:
                return None
        except MaskUnproven:
            return None
        text = whole.text
        if not complete:
            text, spans = self._cut(messages, text, spans)
        return self._row_of_pieces(text, spans)

    def _row_of_pieces(self, text: str, spans: Sequence[Span]) -> Row | None:
        """The row of a text that provably encodes as the pieces do that both ends of every span cut it into; None for
        another text."""
        boundaries = self._boundaries
        for start, end in spans:
            if not boundaries.before_word(text, start):
                return None
            if end < len(text) and not boundaries.behind_token(text, end, self._facts.end_of_turn):
                return None
        ids = self._tokenizer.encode_ids(text)
        places = boundaries.token_places(text, ids, [place for span in spans for place in span])
        if places is None:
            return None
        mask = [0] * len(ids)
        for first, last in zip(places[::2], places[1::2]):
            mask[first:last] = [1] * (last - first)
        return Row(ids, mask)

    def prompt(self, messages: Sequence[Message], tools: list[Any] | None = None) -> list[int]:
        """The ids that a server feeds for `messages`, generation prompt included."""
        rendered = self.render(messages, tools, generation_prompt=True)
        return self._tokenizer.encode(rendered.text, rendered.literal_marks).ids

    def conversation_row(self, messages: Sequence[Message], tools: list[Any] | None = None,
                         complete: bool = True, thinking: Thinking = Thinking.SUPERVISE) -> Row:
        """The whole chat as one row."""
        whole = self.render(messages, tools)
        if self._template.has_generation_blocks and thinking is not Thinking.CONTEXT:
            spans = self._tagged_spans(messages, whole)
        else:
            spans = self._prefix_spans(messages, tools, whole, thinking)
        text = whole.text
        if not complete:
            text, spans = self._cut(messages, text, spans)
        encoded = self._tokenizer.encode(text, whole.literal_marks)
        return Row(encoded.ids, mask_of(encoded.starts, spans))

    def _cut(self, messages: Sequence[Message], text: str, spans: tuple[Span, ...]) -> tuple[str, tuple[Span, ...]]:
        """Text and spans of a chat whose last answer was cut: nothing after it, and no end-of-turn token."""
        if not spans or messages[-1]["role"] != "assistant":
            return text, spans
        start, end = spans[-1]
        cut = end - len(self._facts.end_of_turn) if text.endswith(self._facts.end_of_turn, start, end) else end
        return text[:cut], spans[:-1] + ((start, cut),)

    def turns(self, messages: Sequence[Message], tools: list[Any] | None = None, thinking: Thinking = Thinking.SUPERVISE,
              whole: Rendered | None = None) -> Iterator[Turn]:
        """Every answer that has a prompt, with its history rendered as at its own time. `whole`: all messages, rendered,
        where the caller has them."""
        for i, message in enumerate(messages):
            if message["role"] == "assistant" and i > 0:
                yield self.turn(messages, i, tools, thinking, whole if i + 1 == len(messages) else None)

    def turn(self, messages: Sequence[Message], index: int, tools: list[Any] | None = None,
             thinking: Thinking = Thinking.SUPERVISE, whole: Rendered | None = None) -> Turn:
        """The answer at `index`; `whole`: the messages up to and with it, rendered. Raises MaskUnproven or
        TemplateRefused."""
        whole = whole or self.render(messages[: index + 1], tools)
        prompt, mode = self._prompt_of(messages[:index], tools, whole)
        if self._template.has_generation_blocks:
            spans = self._new_spans(messages[:index], tools, whole, prompt)
        else:
            spans = (self._untagged_span(messages[: index + 1], tools, whole, prompt),)
        continues = whole.text.startswith(prompt.text)
        start, end = len(prompt.text) if continues else spans[0][0], spans[-1][1]
        marks = whole.literal_marks and frozenset(m - start for m in whole.literal_marks if start <= m < end)
        completion = Rendered(whole.text[start:end], literal_marks=marks)
        require_tool_calls(messages[index], completion.text)
        unsupervised_end = empty_thought_end(whole.text, start)
        if thinking is Thinking.CONTEXT:
            unsupervised_end = max(unsupervised_end, self._thought_end(messages[: index + 1], tools, whole))
        spans = tuple((max(a, unsupervised_end), b) for a, b in spans if b > unsupervised_end)
        return Turn(index, prompt, completion, tuple((a - start, b - start) for a, b in spans), mode)

    def _thought_end(self, messages: Sequence[Message], tools: list[Any] | None, whole: Rendered) -> int:
        """Where in the rendered chat the last answer's thought ends: found by rendering it with another content."""
        probe = with_other_content(messages[-1], PROBE)
        if probe is None:
            return 0
        text = self.render([*messages[:-1], probe], tools).text
        at = text.rfind(PROBE)
        if at < 0 or text[:at] != whole.text[:at]:
            raise MaskUnproven("thought_not_found", "the template does not write the thought before the answer's text")
        return at

    def turn_row(self, turn: Turn, complete: bool = True) -> Row:
        """Prompt and completion as one row. They meet as in serving: no token spans both."""
        text, ending = turn.completion.text, self._facts.end_of_turn
        if not complete and ending and text.endswith(ending):
            text = text[: -len(ending)]
        prompt = self._tokenizer.encode(turn.prompt.text, turn.prompt.literal_marks)
        ids, starts = self._completion_ids(turn, text, prompt.ids)
        return Row(prompt.ids + ids, [0] * len(prompt.ids) + mask_of(starts, turn.spans), turn.message)

    def _completion_ids(self, turn: Turn, text: str, prompt_ids: list[int]) -> tuple[list[int], list[int]]:
        """The completion's ids and where each begins in it."""
        length, n = len(turn.prompt.text), len(prompt_ids)
        if not self._tokenizer.adds_prefix:
            apart = self._tokenizer.encode(text, turn.completion.literal_marks)
            return apart.ids, apart.starts
        # SentencePiece writes a blank before any text encoded apart, so it is encoded behind its prompt.
        marks = turn.prompt.literal_marks | {m + length for m in turn.completion.literal_marks}
        joined = self._tokenizer.encode(turn.prompt.text + text, marks)
        if joined.ids[:n] != prompt_ids or (n < len(joined.starts) and joined.starts[n] < length):
            raise MaskUnproven("answer_merges_with_prompt", "a token would span the prompt's end and the answer")
        return joined.ids[n:], [start - length for start in joined.starts[n:]]

    def _prompt_of(self, history: Sequence[Message], tools: list[Any] | None,
                   whole: Rendered) -> tuple[Rendered, Mapping[str, Any]]:
        """The prompt in the mode that fits the answer best: the longest that the rendered answer continues."""
        best: tuple[Rendered, Mapping[str, Any]] | None = None
        first: tuple[Rendered, Mapping[str, Any]] | None = None
        for mode in self._facts.modes:
            prompt = self.render(history, tools, generation_prompt=True, mode=mode)
            first = first or (prompt, mode)
            if whole.text.startswith(prompt.text) and (best is None or len(prompt.text) > len(best[0].text)):
                best = prompt, mode
        assert first is not None
        return best or first

    def _tagged_spans(self, messages: Sequence[Message], whole: Rendered) -> tuple[Span, ...]:
        """The template's generation blocks, without headers and with exactly the end-of-turn token."""
        answers = sum(message["role"] == "assistant" for message in messages)
        if len(whole.generation_spans) < answers:
            raise MaskUnproven("answer_untagged", f"{len(whole.generation_spans)} generation blocks, {answers} answers")
        return self._fit_spans(whole.text, whole.generation_spans)

    def _new_spans(self, history: Sequence[Message], tools: list[Any] | None, whole: Rendered,
                   prompt: Rendered) -> tuple[Span, ...]:
        """The generation blocks of the last message: those that the history does not have."""
        if whole.text.startswith(prompt.text):
            before = sum(end < len(prompt.text) for _, end in whole.generation_spans)
        else:
            before = len(self.render(history, tools).generation_spans) if any_answer(history) else 0
        spans = self._fit_spans(whole.text, whole.generation_spans[before:])
        if not spans:
            raise MaskUnproven("answer_untagged", "the template has no generation block around this answer")
        if not whole.text.startswith(prompt.text):
            return spans
        # What follows the prompt is the model's to write: a blank that the template puts before its block, too.
        length, start = len(prompt.text), spans[0][0]
        if start < length or whole.text[length:start].isspace():
            spans = ((length, spans[0][1]), *spans[1:])
        return tuple(span for span in spans if length <= span[0] < span[1])

    def _fit_spans(self, text: str, blocks: Sequence[Span]) -> tuple[Span, ...]:
        fitted = (self._fit_span(text, block) for block in blocks)
        return tuple((start, end) for start, end in fitted if start < end)

    def _fit_span(self, text: str, span: Span) -> Span:
        """Takes a generation prompt off the front; cuts or extends the end to the end-of-turn token."""
        start, end = span
        header = next((p for p in self._facts.generation_prompts if text.startswith(p, start)), "")
        start = min(start + len(header), end)
        tail, ending = self._facts.tail, self._facts.end_of_turn
        for length in range(len(tail), len(ending), -1):
            if text.endswith(tail[:length], start, end):
                return start, end - length + len(ending)
        if ending and not text.endswith(ending, start, end) and text.startswith(ending, end):
            return start, end + len(ending)
        return start, end

    def _prefix_spans(self, messages: Sequence[Message], tools: list[Any] | None, whole: Rendered,
                      thinking: Thinking) -> tuple[Span, ...]:
        """Answers in the whole chat, where the chat up to each of them is rendered the same as in the whole."""
        if messages[0]["role"] == "assistant":
            raise MaskUnproven("starts_with_assistant", "an answer without a prompt cannot be located")
        return spans_of_turns(self.turns(messages, tools, thinking), whole)

    def _untagged_span(self, messages: Sequence[Message], tools: list[Any] | None, whole: Rendered,
                       prompt: Rendered) -> Span:
        """The last answer's range in a template without generation blocks."""
        if self._facts.why_unusable:
            raise MaskUnproven("end_of_turn_unknown", self._facts.why_unusable)
        if whole.text.startswith(prompt.text):
            start = len(prompt.text)
        else:
            start = self._start_by_probe(messages, tools, whole, prompt)
        return start, self._end_of_answer(whole.text, start)

    def _start_by_probe(self, messages: Sequence[Message], tools: list[Any] | None, whole: Rendered,
                        prompt: Rendered) -> int:
        """Where the answer begins, from a second rendering with another answer: for templates that rewrite history."""
        probe = self.render([*messages[:-1], {**messages[-1], "content": PROBE}], tools).text
        start = common_prefix(probe, whole.text)
        lead = self._facts.lead
        headed = any(probe[: start - len(lead)].endswith(p) and prompt.text.endswith(p)
                     for p in self._facts.generation_prompts or ("",))
        if not probe.startswith(PROBE, start) or not probe[:start].endswith(lead) or not headed:
            raise MaskUnproven("answer_not_found", "the rendered chat does not continue the generation prompt")
        return start - len(lead)

    def _end_of_answer(self, text: str, start: int) -> int:
        """The end of the last answer's end-of-turn token."""
        tail, ending = self._facts.tail, self._facts.end_of_turn
        if text.endswith(tail) and len(text) - len(tail) >= start:
            return len(text) - len(tail) + len(ending)
        encoded = self._tokenizer.encode(text[start:])
        stops = [end for number, end in zip(encoded.ids, encoded.ends) if number in self._facts.stop_ids]
        if not stops:
            raise MaskUnproven("end_of_turn_unknown", f"the answer ends with neither {tail!r} nor a stop token")
        return start + stops[-1]


def spans_of_turns(turns: Iterable[Turn], whole: Rendered) -> tuple[Span, ...]:
    """The turns' supervised ranges in the whole chat. Raises MaskUnproven where it does not begin with every turn."""
    spans: list[Span] = []
    for turn in turns:
        length = len(turn.prompt.text)
        if not whole.text.startswith(turn.prompt.text) or not whole.text.startswith(turn.completion.text, length):
            raise MaskUnproven("history_is_rewritten", f"answer {turn.message} looks different once the chat goes on")
        spans.extend((length + start, length + end) for start, end in turn.spans)
    return tuple(spans)


def empty_thought_end(text: str, start: int) -> int:
    """Where the empty thought ends that a template writes at `start`, itself or its end only; `start` without one. No
    model writes it: it says that there is no thought."""
    stub = EMPTY_THOUGHT.match(text, start)
    return stub.end() if stub else start


def mask_of(starts: Sequence[int], spans: Sequence[Span]) -> list[int]:
    """1 for every token that begins inside a span. Spans are sorted and apart."""
    mask = bytearray(len(starts))
    for start, end in spans:
        first, last = bisect_left(starts, start), bisect_left(starts, end)
        mask[first:last] = b"\1" * (last - first)
    return list(mask)


def begins_with(whole: Row, row: Row) -> bool:
    """Whether the whole chat's row begins with a turn's row and supervises what that does and its predecessors do."""
    n = len(row.ids)
    answer = next((i for i, supervised in enumerate(row.mask) if supervised), n)
    return whole.ids[:n] == row.ids and whole.mask[answer:n] == row.mask[answer:]


def require_tool_calls(message: Message, answer: str) -> None:
    """Refuses an answer whose tool calls the template left out: its text is not what the model wrote."""
    for call in message.get("tool_calls") or ():
        name = (call.get("function") or call).get("name")
        if isinstance(name, str) and name not in answer:
            raise MaskUnproven("tool_calls_not_rendered", f"the template leaves out the call of {name!r}")


def any_answer(messages: Sequence[Message]) -> bool:
    return any(m["role"] == "assistant" for m in messages)


def common_prefix(left: str, right: str) -> int:
    """The length of the longest common prefix."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[:middle] == right[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
