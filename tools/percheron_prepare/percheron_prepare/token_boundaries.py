"""Whether a text may be cut at a place so that its encoding is that of the two pieces, one after the other.

Added tokens cut a text into segments, and a pre-tokenizer cuts those into words; byte pairs are merged within a word
only. So the encoding splits wherever a word begins, which is looked up in a small window around the place.
"""
from __future__ import annotations

import re

from .text_tokenizer import TextTokenizer

# Characters that are looked at: back to the last added token (the rest of an answer's header), and ahead.
LEFT_CHARACTERS_MAX = 256
RIGHT_CHARACTERS = 32


class TokenBoundaries:
    """Proofs for one tokenizer. They are short, so what they do not prove may still be so."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        raw = tokenizer.raw
        added = list(raw.get_added_tokens_decoder().values())
        # A SentencePiece model has no words, and some tokens take the blanks beside them.
        is_simple = type(raw.model).__name__ == "BPE" and not tokenizer.adds_prefix and added and \
            not any(token.lstrip or token.rstrip or token.single_word for token in added)
        self._words = raw.pre_tokenizer if is_simple else None
        self._changes_text = raw.normalizer is not None
        texts = sorted((token.content for token in added), key=len, reverse=True)
        self._added_texts = frozenset(texts)
        self._added = re.compile("|".join(map(re.escape, texts)))
        self._added_length_max = max(map(len, texts), default=0)
        self._left: dict[str, list[tuple[int, int]]] = {}

    def behind_token(self, text: str, at: int, token: str) -> bool:
        """Whether the place is right behind `token`, an added token, which cuts the text there."""
        return self._words is not None and token in self._added_texts and text.endswith(token, 0, at)

    def before_word(self, text: str, at: int) -> bool:
        """Whether a word or an added token provably begins at the place, and ends or begins one before it, too."""
        if self._words is None:
            return False
        begin = max(0, at - LEFT_CHARACTERS_MAX)
        last = None
        for match in self._added.finditer(text, begin, at + self._added_length_max):
            if match.start() >= at:
                break
            if match.end() > at:
                return False  # in the middle of a token
            last = match
        if last is None and begin:
            return False
        left = text[last.end() if last else 0: at]
        token = self._added.search(text, at, at + RIGHT_CHARACTERS + self._added_length_max)
        end = min(token.start() if token else len(text), at + RIGHT_CHARACTERS, len(text))
        if not left or end == at:
            return True
        is_open = end < len(text) and not (token and token.start() == end)
        return self._splits(left, text[at:end], is_open)

    def _splits(self, left: str, right: str, is_open: bool) -> bool:
        """Whether a word begins between the two. `is_open`: the text goes on behind `right`."""
        if self._changes_text and not (left.isascii() and right.isascii()):
            return False
        before = self._left.get(left)
        if before is None:
            if len(self._left) > 1000:
                self._left.clear()
            before = self._left[left] = self._spans(left)
        joined = self._spans(left + right)
        length = len(before)
        if joined[:length] != before or not before or before[-1][1] != len(left):
            return False
        after = [(start - len(left), end - len(left)) for start, end in joined[length:]]
        alone = self._spans(right)
        if is_open:  # The window's last word may go on.
            after, alone = after[:-1], alone[:-1]
        return bool(after) and after[0][0] == 0 and after == alone

    def _spans(self, text: str) -> list[tuple[int, int]]:
        assert self._words is not None
        return [span for _, span in self._words.pre_tokenize_str(text)]
