"""Whether a text may be cut at a place so that its encoding is that of the two pieces, one after the other.

Added tokens cut a text into segments, and a pre-tokenizer cuts those into words; byte pairs are merged within a word
only. So the encoding splits wherever a word begins, which is looked up in a small window around the place.
"""
from __future__ import annotations

import re

from .text_tokenizer import TextTokenizer, any_of

# Characters that are looked at: back to the last added token (the rest of an answer's header), and ahead.
LEFT_CHARACTERS_MAX = 256
RIGHT_CHARACTERS = 24
SHORT_CHARACTERS = 10
# What is remembered of the text before a place.
HEADER_CHARACTERS = 32
HEADERS_MAX = 1000


class TokenBoundaries:
    """Proofs for one tokenizer. They are short, so what they do not prove may still be so."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        raw = tokenizer.raw
        self._tokenizer = tokenizer
        decoder = raw.get_added_tokens_decoder()
        self._added_ids = frozenset(decoder)
        self._id_of = {token.content: number for number, token in decoder.items()}
        self._counts: dict[str, int] = {}
        added = list(decoder.values())
        # A SentencePiece model has no words, and some tokens take the blanks beside them.
        is_simple = type(raw.model).__name__ == "BPE" and not tokenizer.adds_prefix and added and \
            not any(token.lstrip or token.rstrip or token.single_word for token in added)
        self._words = raw.pre_tokenizer if is_simple else None
        self._changes_text = raw.normalizer is not None
        # Whether added tokens are found in the text as it is, before anything is changed in it.
        self._cut_first = not self._changes_text or not any(token.normalized for token in added)
        texts = sorted((token.content for token in added), key=len, reverse=True)
        self._added_texts = frozenset(texts)
        self._added = re.compile(any_of(texts))
        # Beginnings of tokens: what ends with one may become a token with what follows.
        self._beginnings = {text[:length] for text in texts for length in range(1, len(text))}
        if any(self._begins_token(text[1:]) for text in texts):
            self._words = None  # Tokens that overlap.
        self._added_length_max = max(map(len, texts), default=0)
        self._left: dict[str, list[tuple[int, int]]] = {}
        self._headers: dict[str, str] = {}
        self._known: dict[tuple[str, str], bool] = {}

    def behind_token(self, text: str, at: int, token: str) -> bool:
        """Whether the place is right behind `token`, an added token, which cuts the text there."""
        return self._words is not None and token in self._added_texts and text.endswith(token, 0, at)

    def before_word(self, text: str, at: int) -> bool:
        """Whether a word or an added token provably begins at the place, and ends or begins one before it, too."""
        if self._words is None:
            return False
        left = self._left_of(text, at)
        if left is None:
            return False
        window = left, text[at: at + RIGHT_CHARACTERS + self._added_length_max]
        known = self._known.get(beginning := (left, text[at: at + SHORT_CHARACTERS]))
        if known is None:
            known = self._splits_at_window(left, window[1], is_end=at + len(window[1]) == len(text))
            few = beginning[1]
            if known and not self._added.search(few) and not self._begins_token(few) and self._splits(left, few, True):
                # Few characters tell, whatever follows, and many answers begin with the same ones.
                if len(self._known) > HEADERS_MAX:
                    self._known.clear()
                self._known[beginning] = True
        return known or self._cut_first and self._splits_segment(text, at, left)

    def _splits_segment(self, text: str, at: int, left: str) -> bool:
        """Whether the text between two added tokens splits at the place, told by encoding all of it. For the few places
        that the window cannot tell: what is on both sides of them may be one word."""
        token = self._added.search(text, at)
        right = text[at: token.start() if token else len(text)]
        encode = self._tokenizer.encode_ids
        return bool(left and right) and encode(left + right) == encode(left) + encode(right)

    def _splits_at_window(self, left: str, window: str, is_end: bool) -> bool:
        """`is_end`: the text ends with the window."""
        token = self._added.search(window)
        end = min(token.start() if token else len(window), RIGHT_CHARACTERS)
        if not left or end == 0 and window:
            return True
        is_open = not (is_end and end == len(window)) and not (token and token.start() == end)
        return self._splits(left, window[:end], is_open)

    def token_places(self, text: str, ids: list[int], places: list[int]) -> list[int] | None:
        """Where in `ids`, of `text`, the characters at `places`, which ascend, begin. Each place must be proven: behind
        an added token, before a word, or the text's end. None where the added tokens in text and ids differ."""
        texts = list(self._added.finditer(text))
        numbers = places_in(ids, [self._id_of[match[0]] for match in texts], self._added_ids)
        if numbers is None:
            return None
        out = []
        at = before = 0
        for place in places:
            if place == len(text):
                out.append(len(ids))
                continue
            while at < len(texts) and texts[at].end() <= place:
                before = texts[at].end()
                at += 1
            first = numbers[at - 1] + 1 if at else 0
            out.append(first + self._count(text[before:place]))
        return out

    def _count(self, text: str) -> int:
        """Tokens of the rest of a header."""
        count = self._counts.get(text)
        if count is None:
            if len(self._counts) > HEADERS_MAX:
                self._counts.clear()
            count = self._counts[text] = len(self._tokenizer.encode_ids(text)) if text else 0
        return count

    def _left_of(self, text: str, at: int) -> str | None:
        """The text between the last added token and the place; None where that is not found, or ends behind it."""
        header = text[max(0, at - HEADER_CHARACTERS): at]
        known = self._headers.get(header)
        if known is not None:
            return known
        begin = max(0, at - LEFT_CHARACTERS_MAX)
        last = None
        for match in self._added.finditer(text, begin, at + self._added_length_max):
            if match.start() >= at:
                break
            if match.end() > at:
                return None  # in the middle of a token
            last = match
        if last is None and begin:
            return None
        left = text[last.end() if last else 0: at]
        # The same header comes before every answer. It tells all if it holds the whole token, and no beginning of one.
        if last and at - last.start() <= HEADER_CHARACTERS and not self._begins_token(left):
            if len(self._headers) > HEADERS_MAX:
                self._headers.clear()
            self._headers[header] = left
        return left

    def _begins_token(self, text: str) -> bool:
        """Whether an added token may begin in `text` and end behind it."""
        return any(text[at:] in self._beginnings for at in range(len(text)))

    def _splits(self, left: str, right: str, is_open: bool) -> bool:
        """Whether a word begins between the two. `is_open`: the text goes on behind `right`."""
        if self._changes_text and not (left.isascii() and right.isascii()):
            return False
        before = self._left.get(left)
        if before is None:
            if len(self._left) > HEADERS_MAX:
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


def places_in(ids: list[int], wanted: list[int], special: frozenset[int]) -> list[int] | None:
    """Where those of `ids` stand that are special, if they are exactly `wanted`, in this order; else None. Without a loop
    over all ids of Python's own."""
    if special.intersection(ids) != set(wanted) or any(ids.count(i) != wanted.count(i) for i in set(wanted)):
        return None
    places, at = [], 0
    for number in wanted:
        try:
            at = ids.index(number, at)
        except ValueError:
            return None
        places.append(at)
        at += 1
    return places
