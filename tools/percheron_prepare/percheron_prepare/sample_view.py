"""Shows samples with their supervised tokens marked, in a terminal and as a page of HTML."""
from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from .failure import reported
from .findings import Report
from .report_text import report_lines

GREEN, PLAIN = "\x1b[30;42m", "\x1b[0m"
OPEN, CLOSE = "[[", "]]"  # where there are no colours
TOKENS_SHOWN_MAX = 4000

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 60em; padding: 0 1em }
body { color: #222; background: #fff }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: #f6f6f6; padding: 1em; border-radius: 4px }
mark { background: #b7e4c0; color: inherit } pre span:hover, mark span:hover { outline: 1px solid #555 }
h2 { font-size: 1em; margin: 2em 0 .3em } small { color: #666; font-weight: normal }
@media (prefers-color-scheme: dark) { body { background: #181818; color: #ddd } pre { background: #242424 }
  mark { background: #1f5d33 } small { color: #999 } }
"""


@dataclass(frozen=True)
class ShownSample:
    """`pieces`: one text per token; they join to the sample's text."""

    name: str
    ids: Sequence[int]
    mask: Sequence[int]
    pieces: Sequence[str]

    @property
    def title(self) -> str:
        return f"{self.name}: {len(self.ids)} tokens, {sum(self.mask)} supervised"


def terminal_lines(samples: Iterable[ShownSample], coloured: bool) -> Iterable[str]:
    """Supervised text is green, or in double brackets."""
    begin, end = (GREEN, PLAIN) if coloured else (OPEN, CLOSE)
    for sample in samples:
        yield f"-- {sample.title}"
        shown = list(zip(sample.pieces, sample.mask))[:TOKENS_SHOWN_MAX]
        parts = []
        for supervised, run in groupby(shown, key=lambda piece: piece[1]):
            text = printable("".join(piece for piece, _ in run))
            # A colour ends with its line, so that a scrolled terminal stays readable.
            parts.append("\n".join(begin + line + end for line in text.split("\n")) if supervised else text)
        yield "".join(parts)
        if len(sample.pieces) > TOKENS_SHOWN_MAX:
            yield f"... {len(sample.pieces) - TOKENS_SHOWN_MAX} more tokens"


def printable(text: str) -> str:
    """Rows may hold escape sequences; a terminal must not obey them."""
    return "".join(c if c.isprintable() or c == "\n" else "\t" if c == "\t" else "\ufffd" for c in text)


def write_html(path: Path, report: Report, samples: Iterable[ShownSample]) -> None:
    """A page that needs nothing else. Tokens tell their number when pointed at."""
    table = html.escape("\n".join(report_lines(report, coloured=False)))
    with reported("write", path, "choose an --html in a folder that you may write to"), \
            open(path, "w", encoding="utf-8", errors="replace") as out:
        name = html.escape(report.name)
        out.write(f"<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{name}</title>"
                  f"<style>{STYLE}</style></head><body>\n<h1>{name}</h1>\n<pre>{table}</pre>\n"
                  "<p>Supervised tokens are <mark>marked</mark>.</p>\n")
        for sample in samples:
            out.write(f"<h2>{html.escape(sample.name)} <small>{len(sample.ids)} tokens, {sum(sample.mask)} supervised"
                      "</small></h2>\n<pre>")
            tokens = zip(sample.ids, sample.pieces, sample.mask)
            for supervised, run in groupby(list(tokens)[:TOKENS_SHOWN_MAX], key=lambda token: token[2]):
                text = "".join(f"<span title=\"{number}\">{html.escape(piece)}</span>" for number, piece, _ in run)
                out.write(f"<mark>{text}</mark>" if supervised else text)
            out.write("</pre>\n")
            if len(sample.pieces) > TOKENS_SHOWN_MAX:
                out.write(f"<p>{len(sample.pieces) - TOKENS_SHOWN_MAX} more tokens</p>\n")
        out.write("</body></html>\n")
