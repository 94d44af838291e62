"""The text of every single token of a row."""
from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream


def token_pieces(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """One text per id, joining to the whole. A character stands at the id that completes it; bytes that never become
    one are shown as U+FFFD at the last id."""
    stream = DecodeStream(skip_special_tokens=False)
    pieces = [stream.step(tokenizer, number) or "" for number in ids]
    held = 0
    while held < len(pieces) and pieces[-1 - held] == "":
        held += 1
    if held:
        pieces[-1] = tokenizer.decode(list(ids[len(ids) - held:]), skip_special_tokens=False)
    return pieces
