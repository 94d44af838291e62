"""A model directory's tokenizer and chat template, ready to encode chats."""
from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .chat_template import WHOLE_FOLDER, ChatTemplate, load_template, read_json
from .failure import Failure
from .loss_mask import ChatEncoder
from .template_facts import TemplateFacts, find_facts, stop_ids_of
from .text_tokenizer import TextTokenizer


@dataclass(frozen=True)
class Model:
    """What preparation needs of a model."""

    path: Path
    tokenizer: TextTokenizer
    template: ChatTemplate
    facts: TemplateFacts
    encoder: ChatEncoder
    # Ids below it are the tokenizer's and have a row in the target's table; rows past it are padding.
    vocab_size: int
    template_hash: str


def load_model(path: Path, variables: Mapping[str, Any] | None = None, now: datetime.datetime | None = None) -> Model:
    """Reads tokenizer.json, tokenizer_config.json, generation_config.json and config.json of a directory.

    Raises Failure.
    """
    if not path.is_dir():
        raise Failure(f"{path} is no folder; a model is the local folder that has its tokenizer.json")
    tokenizer = TextTokenizer(path / "tokenizer.json")
    template = load_template(path, now or datetime.datetime.now())
    config = read_json(path / "config.json")
    config = config.get("text_config", config)
    rows = config.get("vocab_size", tokenizer.vocab_size) if isinstance(config, dict) else None
    if type(rows) is not int or rows < 1:
        raise Failure(f"{path / 'config.json'}: vocab_size must be a whole number above 0; {WHOLE_FOLDER}")
    stops = stop_ids_of(tokenizer, read_json(path / "generation_config.json"), config)
    facts = find_facts(template, tokenizer, stops, variables or {})
    # The special tokens are part of what a template renders.
    identity = json.dumps([template.source, template.special_tokens], sort_keys=True)
    return Model(path, tokenizer, template, facts, ChatEncoder(template, tokenizer, facts, variables),
                 vocab_size=min(tokenizer.vocab_size, rows),
                 template_hash=hashlib.sha256(identity.encode()).hexdigest())
