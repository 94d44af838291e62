"""Values of options on the command line, checked where they are read."""
from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from typing import Any, NoReturn

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong with the command line in one line, as the program's other commands do; not the whole usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}; {self.prog} --help lists the options\n")


def values(kind: Any) -> list[str]:
    """The words for the members of an enumeration."""
    return [member.value for member in kind]


def json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"a JSON object is expected: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("a JSON object is expected")
    return value


def positive(text: str) -> int:
    if not text.isdecimal() or (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number above 0, not {text!r}")
    return value


def bytes_of(text: str) -> int:
    """A number of bytes, with K, M, G or T for powers of 1024."""
    match = re.fullmatch(r"([0-9]+)([KMGT]?)(i?B)?", text)
    if not match or not int(match[1]):
        raise argparse.ArgumentTypeError(f"must be a size above 0 such as 512M or 2G, not {text!r}")
    return int(match[1]) * UNITS[match[2]]


def share_of(text: str) -> float:
    """A share below 1, or percent."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"must be a share from 0 to below 1, such as 0.05, not {text!r}")
    return value


def limit_of(text: str) -> Callable[[int], int]:
    """A number of rows, or percent of them: a function of how many there are."""
    if text.endswith("%"):
        share = share_of(text)
        return lambda rows: int(share * rows)
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a number of rows, or percent such as 1%, not {text!r}")
    return lambda rows: int(text)


def add_template_variables(command: argparse.ArgumentParser) -> None:
    command.add_argument("--template-variables", type=json_object, default={}, metavar="JSON",
                         help="variables for the chat template, e.g. '{\"enable_thinking\": false}' (default: none)")
