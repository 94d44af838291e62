"""A terminal that a test looks at: a program in a pseudo terminal, and what is on its screen.

Knows of xterm what ncurses uses of it: moves, erasing, inserting and deleting, colours. Standard library only.
"""
from __future__ import annotations

import fcntl
import html
import os
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

SEQUENCE = re.compile(
    r"\x1b\[(?P<private>[?>]?)(?P<numbers>[0-9;]*)(?P<final>[@-~])"  # CSI
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC: titles
    r"|\x1b[()][A-Za-z0-9]"  # character sets
    r"|\x1b(?P<single>[=>78MDEc])"
)
# The beginning of a sequence that has not come whole.
UNFINISHED = re.compile(r"\x1b(?:\[[?>]?[0-9;]*|\][^\x07\x1b]*|[()])?$")


@dataclass(frozen=True)
class Look:
    """Of one character."""

    colour: int | None = None  # 0 to 255; None: the terminal's own
    bold: bool = False
    dim: bool = False
    reverse: bool = False


PLAIN = Look()


class Screen:
    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.row = self.column = 0
        self.top, self.bottom = 0, rows - 1
        self.look = PLAIN
        self.alternate = False  # a screen of its own, as full-screen programs use
        self.cursor = True
        self.last = " "
        self.pending = ""
        self.cells = [self.blank() for _ in range(rows)]

    def blank(self) -> list[tuple[str, Look]]:
        return [(" ", PLAIN)] * self.columns

    def lines(self) -> list[str]:
        return ["".join(char for char, _ in row).rstrip() for row in self.cells]

    def text(self) -> str:
        return "\n".join(self.lines())

    def colours(self) -> set[int]:
        return {look.colour for row in self.cells for char, look in row if char != " " and look.colour is not None}

    def resize(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.top, self.bottom = 0, rows - 1
        self.cells = [(row + [(" ", PLAIN)] * columns)[:columns] for row in self.cells[:rows]]
        self.cells += [self.blank() for _ in range(rows - len(self.cells))]
        self.row, self.column = min(self.row, rows - 1), min(self.column, columns - 1)

    def feed(self, data: str) -> None:
        data = self.pending + data
        self.pending = ""
        at = 0
        while at < len(data):
            if data[at] != "\x1b":
                self.put(data[at])
                at += 1
                continue
            match = SEQUENCE.match(data, at)
            if match:
                self.obey(match)
                at = match.end()
            elif UNFINISHED.match(data, at):
                self.pending = data[at:]
                return
            else:
                raise ValueError(f"a terminal sequence that is not known: {data[at:at + 20]!r}")

    def put(self, char: str) -> None:
        if char == "\r":
            self.column = 0
        elif char == "\n":
            self.down()
        elif char == "\b":
            self.column = max(0, self.column - 1)
        elif char == "\t":
            self.column = min(self.columns - 1, self.column // 8 * 8 + 8)
        elif char >= " ":
            if self.column >= self.columns:  # the last column was written to: only now the line is over
                self.column = 0
                self.down()
            self.cells[self.row][self.column] = (char, self.look)
            self.column += 1
            self.last = char

    def down(self) -> None:
        if self.row == self.bottom:
            self.scroll(self.top, 1)
        else:
            self.row = min(self.row + 1, self.rows - 1)

    def scroll(self, first: int, count: int) -> None:
        """Lines from `first` on go up, or down where `count` is negative, within the margins."""
        for _ in range(abs(count)):
            if count > 0:
                del self.cells[first]
                self.cells.insert(self.bottom, self.blank())
            else:
                del self.cells[self.bottom]
                self.cells.insert(first, self.blank())

    def obey(self, match: re.Match[str]) -> None:
        if match["single"] == "M":
            if self.row == self.top:
                self.scroll(self.top, -1)
            else:
                self.row -= 1
        if match["final"] is None:
            return
        numbers = [int(number or 0) for number in match["numbers"].split(";")]
        if match["private"]:
            for number in numbers if match["final"] in "hl" else ():
                self.switch(number, match["final"] == "h")
            return
        self.control(match["final"], numbers, max(1, numbers[0]))

    def switch(self, mode: int, on: bool) -> None:
        if mode == 25:
            self.cursor = on
        elif mode == 1049:
            self.alternate = on
            self.cells = [self.blank() for _ in range(self.rows)]

    def control(self, final: str, numbers: list[int], count: int) -> None:
        row = self.cells[self.row]
        column = min(self.column, self.columns - 1)
        gap = [(" ", PLAIN)] * min(count, self.columns - column)
        if final in "Hf":
            self.row = min(count, self.rows) - 1
            self.column = min(max(1, (numbers + [1])[1]), self.columns) - 1
        elif final == "G":
            self.column = min(count, self.columns) - 1
        elif final == "d":
            self.row = min(count, self.rows) - 1
        elif final == "A":
            self.row = max(0, self.row - count)
        elif final == "B":
            self.row = min(self.rows - 1, self.row + count)
        elif final == "C":
            self.column = min(self.columns - 1, column + count)
        elif final == "D":
            self.column = max(0, column - count)
        elif final == "J":
            self.erase(numbers[0], whole_screen=True)
        elif final == "K":
            self.erase(numbers[0], whole_screen=False)
        elif final == "X":
            row[column : column + len(gap)] = gap
        elif final == "P":
            row[column:] = row[column + len(gap) :] + gap
        elif final == "@":
            row[column:] = (gap + row[column:])[: self.columns - column]
        elif final in "LM":
            self.scroll(self.row, -count if final == "L" else count)
        elif final in "ST":
            self.scroll(self.top, count if final == "S" else -count)
        elif final == "b":
            for _ in range(count):
                self.put(self.last)
        elif final == "r":
            self.top, self.bottom = count - 1, ((numbers + [0])[1] or self.rows) - 1
            self.row = self.column = 0
        elif final == "m":
            self.style(numbers)
        elif final not in "tnchlq":
            raise ValueError(f"a terminal sequence that is not known: CSI {numbers} {final}")

    def erase(self, what: int, whole_screen: bool) -> None:
        row, column = self.cells[self.row], min(self.column, self.columns - 1)
        if what in (0, 2):
            row[column:] = [(" ", PLAIN)] * (self.columns - column)
        if what in (1, 2):
            row[: column + 1] = [(" ", PLAIN)] * (column + 1)
        for i in range(self.rows if whole_screen else 0):
            if (i > self.row and what in (0, 2)) or (i < self.row and what in (1, 2)):
                self.cells[i] = self.blank()

    def style(self, numbers: list[int]) -> None:
        at = 0
        while at < len(numbers):
            number = numbers[at]
            at += 1
            if number == 0:
                self.look = PLAIN
            elif number == 1:
                self.look = replace(self.look, bold=True)
            elif number == 2:
                self.look = replace(self.look, dim=True)
            elif number == 22:
                self.look = replace(self.look, bold=False, dim=False)
            elif number in (7, 27):
                self.look = replace(self.look, reverse=number == 7)
            elif 30 <= number <= 37:
                self.look = replace(self.look, colour=number - 30)
            elif number == 38 and numbers[at : at + 1] == [5]:
                self.look = replace(self.look, colour=numbers[at + 1])
                at += 2
            elif number == 39:
                self.look = replace(self.look, colour=None)


class Terminal:
    """A program in a terminal of its own; ended with the object."""

    def __init__(self, arguments: list[str], columns: int = 80, rows: int = 24, kind: str = "xterm-256color",
                 **environment: str) -> None:
        self.screen = Screen(columns, rows)
        self.raw = ""
        self.master, self.slave = os.openpty()
        self.before = termios.tcgetattr(self.slave)
        self._set_size(columns, rows)
        variables = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            arguments, stdin=self.slave, stdout=self.slave, stderr=self.slave, start_new_session=True,
            env=variables | {"TERM": kind} | environment,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
        os.close(self.slave)

    def _set_size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def resize(self, columns: int, rows: int) -> None:
        self.screen.resize(columns, rows)
        self._set_size(columns, rows)

    def send(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def look(self, seconds: float = 0.1) -> None:
        """Takes what comes within that time."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if select.select([self.master], [], [], left)[0]:
                data = os.read(self.master, 1 << 16).decode()
                self.raw += data
                self.screen.feed(data)

    def wait_for(self, what: str | Callable[[Screen], bool], seconds: float = 60) -> None:
        """Until the screen shows that text, or is as the function wants it."""
        until = time.monotonic() + seconds
        while not (what in self.screen.text() if isinstance(what, str) else what(self.screen)):
            if time.monotonic() > until:
                raise AssertionError(f"waited for {what!r}; the screen is\n{self.screen.text()}")
            self.look()

    def end(self, seconds: float = 30) -> int:
        """Waits for the program's end; its exit code, or minus the signal."""
        until = time.monotonic() + seconds
        while self.process.poll() is None:
            if time.monotonic() > until:
                raise AssertionError(f"the program does not end; the screen is\n{self.screen.text()}")
            self.look()
        self.look()
        return self.process.returncode

    def is_restored(self) -> bool:
        """Whether the terminal is as it was given to the program."""
        return (termios.tcgetattr(self.slave) == self.before and self.screen.cursor and not self.screen.alternate)


COLOURS = {1: "#f47067", 2: "#8ddb8c", 3: "#f0c674", 6: "#76e3ea"}
FOREGROUND, BACKGROUND = "#d4d4d4", "#1e1e1e"
CELL_WIDTH, CELL_HEIGHT, MARGIN = 8.4, 18, 12


def draw(screen: Screen) -> str:
    """The screen as an SVG file that needs no font but a monospaced one."""
    width = screen.columns * CELL_WIDTH + 2 * MARGIN
    height = screen.rows * CELL_HEIGHT + 2 * MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" font-family="ui-monospace, Menlo, Consolas, \'DejaVu Sans Mono\', monospace" '
        f'font-size="14" fill="{FOREGROUND}">',
        f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>',
    ]
    for y, row in enumerate(screen.cells):
        x = 0
        while x < screen.columns:
            look = row[x][1]
            end = x
            while end < screen.columns and row[end][1] == look:
                end += 1
            text = "".join(char for char, _ in row[x:end])
            parts += draw_run(text, look, x, y)
            x = end
    return "\n".join(parts + ["</svg>", ""])


def draw_run(text: str, look: Look, x: int, y: int) -> list[str]:
    parts = []
    left, top = MARGIN + x * CELL_WIDTH, MARGIN + y * CELL_HEIGHT
    colour = FOREGROUND if look.colour is None else COLOURS.get(look.colour, FOREGROUND)
    if look.reverse:
        parts.append(f'<rect x="{left:g}" y="{top:g}" width="{len(text) * CELL_WIDTH:g}" height="{CELL_HEIGHT}" '
                     f'fill="{colour}"/>')
        colour = BACKGROUND
    stripped = text.strip()
    if not stripped:
        return parts
    left += (len(text) - len(text.lstrip())) * CELL_WIDTH
    style = f' fill="{colour}"' if colour != FOREGROUND else ""
    style += ' font-weight="bold"' if look.bold else ""
    style += ' opacity="0.6"' if look.dim else ""
    parts.append(f'<text x="{left:g}" y="{top + CELL_HEIGHT * 0.75:g}" textLength="{len(stripped) * CELL_WIDTH:g}" '
                 f'lengthAdjust="spacingAndGlyphs" xml:space="preserve"{style}>{html.escape(stripped)}</text>')
    return parts
