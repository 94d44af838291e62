"""What a template does around every answer, found by rendering small chats: generation prompts and turn ends."""
from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .chat_template import ChatTemplate, TemplateRefused
from .text_tokenizer import TextTokenizer

# Answers that no template changes and no text contains.
PROBE = "\U0010ffe0probe\U0010ffe0"

# Variables by which templates choose between thinking and not (Qwen3; DeepSeek V3.1).
MODE_VARIABLES: tuple[dict[str, Any], ...] = (
    {}, {"enable_thinking": False}, {"enable_thinking": True}, {"thinking": False}, {"thinking": True})


@dataclass(frozen=True)
class TemplateFacts:
    """Texts that surround an answer. `why_unusable` is set when the end of a turn could not be found."""

    # What the template writes after the last answer of a chat, and its first part, which ends the turn.
    tail: str = ""
    end_of_turn: str = ""
    # Between the generation prompt and the answer's own text (Mistral writes a space there).
    lead: str = ""
    # Longest first; the thinking modes of a template may differ in them.
    generation_prompts: tuple[str, ...] = ()
    # The modes that change a rendering; the first is the template's default.
    modes: tuple[dict[str, Any], ...] = ({},)
    stop_ids: frozenset[int] = frozenset()
    why_unusable: str = ""


def stop_ids_of(tokenizer: TextTokenizer, generation: Mapping[str, Any], config: Mapping[str, Any]) -> frozenset[int]:
    """The ids at which a server stops, from generation_config.json or config.json."""
    declared = generation.get("eos_token_id", config.get("eos_token_id"))
    numbers = declared if isinstance(declared, list) else [declared]
    return frozenset(n for n in numbers if isinstance(n, int) and n < max(tokenizer.vocab_size, 1))


def find_facts(template: ChatTemplate, tokenizer: TextTokenizer, stop_ids: frozenset[int],
               variables: Mapping[str, Any]) -> TemplateFacts:
    """Renders one question with and without an answer."""
    question = [{"role": "user", "content": "x"}]
    answered = question + [{"role": "assistant", "content": PROBE}]
    try:
        bare = template.render(question, variables=variables).text
        whole = template.render(answered, variables=variables).text
    except TemplateRefused as error:
        return TemplateFacts(why_unusable=f"the template refuses a question with an answer: {error}")
    modes, prompts = find_modes(template, question, variables)
    head, found, tail = whole.rpartition(PROBE)
    if not found or PROBE in head:
        return TemplateFacts(modes=modes, why_unusable="the template does not write an answer once, as it is")
    fitting = [p for p in prompts if head.startswith(p)]
    lead = head[len(max(fitting, key=len)):] if fitting else ""
    generation_prompts = sorted({added_text(bare, p, tokenizer) for p in prompts} - {""}, key=len, reverse=True)
    end = end_of_turn(os.path.commonprefix([tail, inner_tail(template, answered, variables)]), tokenizer, stop_ids) or \
        end_of_turn(tail, tokenizer, stop_ids)
    return TemplateFacts(tail=tail, end_of_turn=end, lead=lead, generation_prompts=tuple(generation_prompts),
                         modes=modes, stop_ids=stop_ids,
                         why_unusable="" if end else f"no end-of-turn token follows an answer, only {tail!r}")


def inner_tail(template: ChatTemplate, answered: list[dict[str, Any]], variables: Mapping[str, Any]) -> str:
    """What follows an answer when the chat goes on. What ends the chat and no turn, such as Phi-3's <|endoftext|>, is not
    in it."""
    try:
        text = template.render([*answered, {"role": "user", "content": "x"}], variables=variables).text
    except TemplateRefused:
        return ""
    return text.rpartition(PROBE)[2]


def find_modes(template: ChatTemplate, question: list[dict[str, Any]],
               variables: Mapping[str, Any]) -> tuple[tuple[dict[str, Any], ...], list[str]]:
    """The modes whose generation prompts differ, and the prompts. A mode that the caller fixed is not varied."""
    modes: list[dict[str, Any]] = []
    prompts: list[str] = []
    for mode in MODE_VARIABLES:
        if mode.keys() & variables.keys():
            continue
        try:
            text = template.render(question, generation_prompt=True, variables={**variables, **mode}).text
        except TemplateRefused:
            continue
        if text not in prompts:
            modes.append(mode)
            prompts.append(text)
    return tuple(modes) or ({},), prompts


def added_text(bare: str, prompted: str, tokenizer: TextTokenizer) -> str:
    """What `prompted` adds to `bare`, from the first token that differs, as some templates close a bare chat."""
    left, right = tokenizer.encode(bare), tokenizer.encode(prompted)
    same = 0
    while same < min(len(left.ids), len(right.ids)) and left.ids[same] == right.ids[same]:
        same += 1
    return prompted[right.starts[same]:] if same < len(right.ids) else ""


def end_of_turn(tail: str, tokenizer: TextTokenizer, stop_ids: frozenset[int]) -> str:
    """The part of `tail` up to and with the token that ends the turn: a declared stop token, else the first special."""
    encoded = tokenizer.encode(tail)
    for wanted in (stop_ids, tokenizer.special_ids):
        for number, start, end in zip(encoded.ids, encoded.starts, encoded.ends):
            if number in wanted:
                # A token that swallows white space after it must not take that into the answer.
                return tail[:start] + tail[start:end].rstrip()
    return ""
