"""A tokenizer.json with what masks need: where each token begins, and control-token strings as plain text."""
from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Tokenizer

from .failure import Failure, reported

# Texts are short and processes many: the library's own threads would only compete with them.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@dataclass(frozen=True)
class Encoded:
    """Token ids with the half-open character range of the text that each was made from."""

    ids: list[int]
    starts: list[int]
    ends: list[int]


def load(file: Path, content: bytes) -> Tokenizer:
    """The library's tokenizer. Raises Failure when `content` is none."""
    try:
        # Post-processors move offsets (a byte-level one trims spaces) and add tokens; neither is wanted here.
        settings = {**json.loads(content), "post_processor": None, "truncation": None, "padding": None}
        tokenizer = Tokenizer.from_str(json.dumps(settings))
    except Exception as error:  # The library raises nothing narrower.
        raise Failure(f"{file} is no tokenizer that can be read: {error}; copy the file again, or update the "
                      "`tokenizers` package") from error
    if not tokenizer.get_vocab_size(with_added_tokens=True):
        raise Failure(f"{file} has no tokens; copy the file again")
    return tokenizer


def any_of(texts: list[str]) -> str:
    """A pattern for any of the texts, the first that fits. It begins with what they have in common, which is looked for
    faster than alternatives."""
    common = os.path.commonprefix(texts)
    return re.escape(common) + "(?:" + "|".join(re.escape(text[len(common):]) for text in texts) + ")"


class TextTokenizer:
    """Encodes without adding special tokens: the chat template writes them."""

    def __init__(self, file: Path) -> None:
        with reported("read", file, "a model's folder must have the tokenizer.json of Hugging Face's tokenizers"):
            content = file.read_bytes()
        self.file_hash = hashlib.sha256(content).hexdigest()
        self._tokenizer = load(file, content)
        self._plain: Tokenizer | None = None
        self._special = {token.content: (number, token)
                         for number, token in self._tokenizer.get_added_tokens_decoder().items() if token.special}
        ordered = sorted(self._special, key=len, reverse=True)
        self._special_pattern = re.compile(any_of(ordered)) if ordered else None
        self.special_ids = frozenset(number for number, _ in self._special.values())
        self.vocab_size = max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        self.adds_prefix = self._adds_prefix()

    @property
    def raw(self) -> Tokenizer:
        """The library's own object, for decoding."""
        return self._tokenizer

    def id_of(self, token: str) -> int | None:
        return self._tokenizer.token_to_id(token)

    def has_special(self, text: str) -> bool:
        """Whether `text` contains the string of a special token."""
        return bool(self._special_pattern and self._special_pattern.search(text))

    def mark_specials(self, text: str, mark: str) -> str:
        """`text` with `mark` before each special-token string in it."""
        return self._special_pattern.sub(lambda match: mark + match[0], text) if self._special_pattern else text

    def encode(self, text: str, literal_marks: Collection[int] = ()) -> Encoded:
        """Encodes `text`; special-token strings that begin at a position in `literal_marks` become plain text."""
        if literal_marks:
            return self._encode_marked(text, literal_marks)
        made = self._tokenizer.encode(text, add_special_tokens=False)
        starts, ends = zip(*made.offsets) if len(made) else ((), ())
        return Encoded(made.ids, list(starts), list(ends))

    def encode_ids(self, text: str) -> list[int]:
        """The ids alone, which takes a quarter less time."""
        return self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids

    def _encode_marked(self, text: str, literal_marks: Collection[int]) -> Encoded:
        """Cuts the text at its special tokens and encodes the marked ones, each apart, as transformers does."""
        out = Encoded([], [], [])
        at = 0
        assert self._special_pattern is not None
        for match in self._special_pattern.finditer(text):
            if match.start() < at:
                continue
            if match.start() in literal_marks:
                self._append_plain(out, text, at, match.start())
                self._append_plain(out, text, match.start(), match.end())
                at = match.end()
                continue
            number, token = self._special[match[0]]
            start, end = self._stripped_range(text, at, match, token)
            self._append_plain(out, text, at, start)
            out.ids.append(number)
            out.starts.append(start)
            out.ends.append(end)
            at = end
        self._append_plain(out, text, at, len(text))
        return out

    @staticmethod
    def _stripped_range(text: str, at: int, match: re.Match[str], token: AddedToken) -> tuple[int, int]:
        """The range that a special token takes, with the white space that it swallows."""
        start, end = match.span()
        while token.lstrip and start > at and text[start - 1].isspace():
            start -= 1
        while token.rstrip and end < len(text) and text[end].isspace():
            end += 1
        return start, end

    def _append_plain(self, out: Encoded, text: str, start: int, end: int) -> None:
        if start == end:
            return
        if self._plain is None:
            self._plain = Tokenizer.from_str(self._tokenizer.to_str())
            self._plain.encode_special_tokens = True
        made = self._plain.encode(text[start:end], add_special_tokens=False)
        out.ids.extend(made.ids)
        out.starts.extend(start + first for first, _ in made.offsets)
        out.ends.extend(start + last for _, last in made.offsets)

    def _adds_prefix(self) -> bool:
        """Whether text encoded apart gets a leading blank of its own, as SentencePiece models do."""
        apart = self._tokenizer.encode("x", add_special_tokens=False).tokens
        return bool(apart) and apart[0].startswith(("\u2581", "\u0120"))
