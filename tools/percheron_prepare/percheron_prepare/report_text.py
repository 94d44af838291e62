"""The doctor's report as one screen of text."""
from __future__ import annotations

from collections.abc import Iterator

from .findings import Finding, Report
from .tally import one_line

RED, YELLOW, GREEN, PLAIN = "\x1b[31m", "\x1b[33m", "\x1b[32m", "\x1b[0m"
FINDINGS_SHOWN_MAX = 12
BAR_WIDTH = 20
WHERE_SHOWN_MAX = 110


def report_lines(report: Report, coloured: bool) -> Iterator[str]:
    rows = "" if report.rows is None else f"{report.rows:,} rows"
    samples = f"{report.samples:,} samples, {report.tokens:,} tokens" if report.unit == "tokens" else ""
    yield f"{report.name}: " + ", ".join(filter(None, [rows, samples]))
    if report.tokens:
        share = report.supervised_tokens / report.tokens
        yield f"  supervised  [{'#' * round(BAR_WIDTH * share):{BAR_WIDTH}}] {100 * share:.1f} % of the tokens"
    lengths = report.quantiles()
    if lengths:
        yield "  length      " + ", ".join(f"{name} {value:,}" for name, value in lengths.items()) + f" {report.unit}"
    total = report.rows if report.rows is not None else report.samples
    for title, findings, colour in (("problems", report.problems, RED), ("notes", report.notes, YELLOW)):
        if findings:
            yield paint(title, colour, coloured)
        for finding in findings[:FINDINGS_SHOWN_MAX]:
            yield from finding_lines(finding, total)
        if len(findings) > FINDINGS_SHOWN_MAX:
            yield f"  ... {len(findings) - FINDINGS_SHOWN_MAX} more kinds; --json lists all"
    if not report.problems:
        yield paint("no problems found", GREEN, coloured)


def finding_lines(finding: Finding, total: int) -> Iterator[str]:
    share = f"{100 * finding.count / total:5.1f} %" if total else ""
    yield f"  {finding.count:>9,} {share}  {finding.check}: {finding.advice}"
    first = one_line(finding.first)
    first = first if len(first) <= WHERE_SHOWN_MAX else first[:WHERE_SHOWN_MAX] + " ..."
    yield f"                     first at {first}"


def paint(text: str, colour: str, coloured: bool) -> str:
    return f"{colour}{text}{PLAIN}" if coloured else text
