#!/usr/bin/env python3
"""Prints what a run's report.json says in numbers and words, one line for each part.

    print_report.py runs/demo/report.json
"""
import json
import sys
from pathlib import Path
from typing import Any

LIST_MAX = 8  # longer lists, such as curves, belong to the page


def shown(value: Any) -> str | None:
    """The value in a few characters, or None for what is no number, word or short list of them."""
    if isinstance(value, bool) or value is None:
        return str(value).lower() if value is not None else "-"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, str):
        return value
    if isinstance(value, list) and 0 < len(value) <= LIST_MAX and all(isinstance(v, (int, float, str)) for v in value):
        return " ".join(filter(None, map(shown, value)))
    return None


def lines(report: dict[str, Any], prefix: str = "") -> list[str]:
    """Plain entries first, each part under its own name after them."""
    plain = {key: text for key, value in report.items() if (text := shown(value)) is not None}
    out = [f"{prefix}{key.replace('_', ' '):28}{text}" for key, text in plain.items()]
    for key, value in report.items():
        if isinstance(value, dict) and value:
            out += [f"{prefix}{key.replace('_', ' ')}:", *lines(value, prefix + "  ")]
    return out


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    path = Path(sys.argv[1])
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        sys.exit(f"error: {path}: {error}")
    print("\n".join(lines(report)))


if __name__ == "__main__":
    main()
