"""What a target wrote, token by token, as a message that its own template renders to the same text again.

Thoughts become `reasoning_content`, as servers give them, so that later turns are asked as a server would ask them:
with or without, as the template says.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .chat_template import Message, TemplateRefused
from .conversation import Answer
from .model import Model
from .source_row import Rejected

THOUGHT_OPEN, THOUGHT_CLOSE = "<think>", "</think>"


def written_answer(model: Model, history: Sequence[Message], tools: list[Any] | None, prompt: str,
                   ids: Sequence[int], stopped: bool) -> Answer:
    """The answer to `prompt`, which `history` is rendered to. `ids`: with the stop token where `stopped`.

    Notes what the template, or the tokenizer, would not give back as it was. Raises Rejected for a thought that a limit
    cut: no template renders one.
    """
    decode = model.tokenizer.raw.decode
    said = list(ids[:-1] if stopped else ids)
    text = decode(said, skip_special_tokens=False)
    if not stopped:
        # Half a character, and white space that templates strip.
        text = text.rstrip("\ufffd").rstrip()
    is_thinking = prompt.rstrip().endswith(THOUGHT_OPEN) or text.lstrip().startswith(THOUGHT_OPEN)
    if is_thinking and not stopped and THOUGHT_CLOSE not in text:
        raise Rejected("cut_inside_thought", f"after {len(ids)} tokens the answer had not begun; allow more of them")
    plain: Message = {"role": "assistant", "content": text}
    candidates = [plain]
    if is_thinking and THOUGHT_CLOSE in text:
        thought, _, rest = text.partition(THOUGHT_CLOSE)
        thought = thought.strip().removeprefix(THOUGHT_OPEN).strip("\n")
        candidates.insert(0, {"role": "assistant", "content": rest.lstrip("\n"), "reasoning_content": thought})
    ending = decode([ids[-1]], skip_special_tokens=False) if stopped else ""
    # Decoders of some tokenizers leave out the blank with which templates let the answer begin.
    spellings = dict.fromkeys((text, model.facts.lead + text))
    fitting = ((message, spelled) for message in candidates for spelled in spellings
               if is_rendered(model, [*history, message], tools, prompt + spelled + ending))
    message, spelled = next(fitting, (candidates[0], None))
    notes = []
    if spelled is None:
        notes.append("answers_rendered_otherwise")
    elif stopped and encoded_behind(model, prompt, spelled) != said:
        notes.append("answers_tokenized_otherwise")
    if not text:
        notes.append("answers_empty")
    return Answer(message, len(ids), is_cut=not stopped, notes=tuple(notes))


def is_rendered(model: Model, messages: Sequence[Message], tools: list[Any] | None, wanted: str) -> bool:
    """Whether the chat's rendering begins with `wanted`."""
    try:
        return model.encoder.render(messages, tools).text.startswith(wanted)
    except TemplateRefused:
        return False


def encoded_behind(model: Model, prompt: str, text: str) -> list[int]:
    """The ids of an answer as `prepare` makes them: apart from the prompt, unless that would add a blank."""
    encode = model.tokenizer.encode_ids
    return encode(prompt + text)[len(encode(prompt)):] if model.tokenizer.adds_prefix else encode(text)
