#!/usr/bin/env python3
"""Watches real runs of a real daemon with `percheron top`, in a terminal, as a person would.

    tests/e2e/watch_top.py --program build/release/bin/percheron --config RUN.yaml --work DIRECTORY

The run must last longer than a minute. Exit code 0 when every key does what it should and the terminal is always given
back as it was, 1 with what was on the screen otherwise. --draw FILE only draws the screen, of 110 columns, --seconds
after the run's first step.
"""
from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from terminal import Screen, Terminal, draw

QUIT = "q quit"


class Node:
    """A daemon of its own, with its runs."""

    def __init__(self, program: str, work: Path) -> None:
        self.program, self.state = program, str(work / "state")
        shutil.rmtree(self.state, ignore_errors=True)
        self.log = open(work / "node.log", "w")
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        self.process = subprocess.Popen([self.program, "node", "--name", "alpha", "--state", self.state],
                                        stdout=self.log, stderr=self.log)
        for _ in range(600):
            if self.run("status").returncode == 0:
                return self.process
            time.sleep(0.1)
        raise AssertionError("the node does not answer")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([self.program, *arguments, "--state", self.state], text=True, capture_output=True,
                              env=os.environ | environment)

    def submit(self, config: str, name: str) -> None:
        result = self.run("submit", "-c", config, "--name", name, f"output.directory={self.state}/{name}")
        assert result.returncode == 0, result.stderr

    def states(self) -> dict[str, str]:
        return {run["run"]: run["state"] for run in json.loads(self.run("status", "--json").stdout)["runs"]}

    def top(self, *arguments: str, columns: int = 80, rows: int = 24, **environment: str) -> Terminal:
        return Terminal([self.program, "top", *arguments, "--state", self.state, "--interval", "0.5"], columns, rows,
                        **environment)


def expect(condition: object, what: str, screen: Screen | None = None) -> None:
    if not condition:
        raise AssertionError(what + ("" if screen is None else "; the screen is\n" + screen.text()))


def check_screen(node: Node) -> None:
    with node.top() as top:
        top.wait_for("run      first  running")
        top.wait_for(lambda screen: "slowest  the " in screen.text())
        for part in ("target 0", "trainer 1", "alpha/cpu:0", "tokens/s", "mailbox  home 0", "features [", QUIT):
            expect(part in top.screen.text(), f"no {part!r}", top.screen)
        expect(top.screen.colours() >= {2, 6}, "no colours", top.screen)
        expect(not top.screen.cursor and top.screen.alternate, "no screen of its own")
        expect(top.screen.lines()[-1].startswith(QUIT), "no keys on the last line", top.screen)
        steps = set()
        for _ in range(40):
            steps.add(next(line for line in top.screen.lines() if line.startswith("step")))
            top.look(0.25)
        expect(len(steps) > 2, "the steps stand still", top.screen)
        top.send("?")
        top.wait_for("asks first")
        top.send("x")
        top.wait_for(QUIT)
        top.send("q")
        expect(top.end() == 0, "q is no error")
        expect(top.is_restored(), "the terminal is not as it was")


def check_orders(node: Node) -> None:
    with node.top("first") as top:
        top.wait_for("first  running")
        top.send("p")
        top.wait_for("pause first after its step?")
        top.send("n")
        top.wait_for(QUIT)
        expect(node.states()["first"] == "running", "a pause that was not confirmed")
        top.send("p")
        top.wait_for("pause first after its step?")
        top.send("y")
        top.wait_for("run first is paused")
        top.wait_for("run      first  paused")
        expect(node.states()["first"] == "paused", "it is not paused")
        expect("tokens/s" not in top.screen.text(), "a rate of a paused run", top.screen)
        top.send("s")
        top.wait_for("run first has written")
        top.send("r")
        top.wait_for("run      first  running")
        top.send("q")
        expect(top.end() == 0, "q is no error")


def check_sizes(node: Node) -> None:
    with node.top("first") as top:
        top.wait_for(QUIT)
        for columns, rows in ((120, 40), (60, 24), (80, 12), (30, 6), (9, 3), (1, 1), (100, 30)):
            top.resize(columns, rows)
            top.look(1)
            lines = top.screen.lines()
            expect(lines[-1].startswith(QUIT[:columns - 1]), f"no keys at {columns} x {rows}", top.screen)
            expect(("samples/s" in top.screen.text()) == (columns >= 60 and rows >= 12),
                   f"the table at {columns} x {rows}", top.screen)
        top.send("q")
        expect(top.end() == 0 and top.is_restored(), "the terminal is not as it was after all sizes")


def check_several_runs(node: Node) -> None:
    with node.top() as top:
        top.wait_for("> first")
        top.wait_for("waits for alpha/cpu:")
        top.send("\x1bOB")  # down, as it is sent while a program has the keypad
        top.wait_for("run      second  queued")
        top.send("\t")
        top.wait_for("run      first")
        top.send("\x1b[Z")
        top.wait_for("run      second")
        top.send("q")
        expect(top.end() == 0, "q is no error")


def check_lost_node(node: Node) -> None:
    with node.top("first") as top:
        top.wait_for("first  running")
        node.kill()
        top.wait_for("no answer, trying again: ")
        expect("run      first" in top.screen.text(), "what was known is gone", top.screen)
        node.start()
        top.wait_for(lambda screen: "no answer" not in screen.text())
        top.wait_for("run      first  running")
        top.send("q")
        expect(top.end() == 0, "q is no error")


def check_ends(node: Node) -> None:
    for number, code in ((signal.SIGINT, 0), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGHUP, -signal.SIGHUP),
                         (signal.SIGSEGV, -signal.SIGSEGV), (signal.SIGABRT, -signal.SIGABRT)):
        with node.top() as top:
            top.wait_for(QUIT)
            top.signal(number)
            expect(top.end() == code, f"after {number} it ends with {top.process.returncode}")
            expect(top.is_restored(), f"the terminal is not as it was after {number}")


def check_plain(node: Node) -> None:
    with node.top(NO_COLOR="1") as top:
        top.wait_for("first")
        top.look(1)
        expect(not top.screen.colours(), "colours with NO_COLOR", top.screen)
    with node.top(kind="dumb") as top:
        top.wait_for("target 0")
        top.signal(signal.SIGINT)
        top.end()
        expect("\x1b" not in top.raw, "control sequences on a dumb terminal")
    with node.top(kind="no-such-terminal") as top:
        expect(top.end() == 1, "an unknown kind of terminal is an error")
        expect("'no-such-terminal' is not known here" in top.screen.text(), "it is not named", top.screen)
        expect(top.is_restored(), "the terminal is not as it was")
    once = node.run("top", "first")  # no terminal
    expect(once.returncode == 0 and "target 0" in once.stdout and "\x1b" not in once.stdout, once.stdout + once.stderr)
    expect(QUIT not in once.stdout, "keys in a text")
    with node.top("--once") as top:
        expect(top.end() == 0 and "\x1b" not in top.raw and "target 0" in top.screen.text(), "--once", top.screen)
    wrong = node.run("top", "--json")
    expect(wrong.returncode == 1 and "percheron status --json" in wrong.stderr, wrong.stderr)
    wrong = node.run("top", "nothing")
    expect(wrong.returncode == 1 and "there is no run nothing" in wrong.stderr, wrong.stderr)


def check_train(program: str, config: str, work: Path) -> None:
    """A run of `percheron train`, which takes no orders."""
    output = work / "train"
    shutil.rmtree(output, ignore_errors=True)
    with open(work / "train.log", "w+") as log:
        train = subprocess.Popen([program, "train", "-c", config, "--metrics", "0", f"output.directory={output}"],
                                 stdout=log, stderr=log)
        try:
            port = None
            for _ in range(600):
                port = re.search(r"http://127.0.0.1:(\d+)/metrics", (work / "train.log").read_text())
                if port:
                    break
                time.sleep(0.1)
            expect(port, "train says no port: " + (work / "train.log").read_text())
            with Terminal([program, "top", "--metrics", port[1], "--interval", "0.5"]) as top:
                top.wait_for("run      train  running")
                top.wait_for("trainer 1")
                top.send("s")
                top.wait_for("`percheron train` takes no orders")
                train.kill()
                train.wait()
                top.wait_for("no answer, trying again: ")
                top.send("q")
                expect(top.end() == 0 and top.is_restored(), "the terminal is not as it was")
        finally:
            train.kill()
            train.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("--config", required=True)
    parser.add_argument("--work", required=True, type=Path)
    parser.add_argument("--name", default="first", help="of the run")
    parser.add_argument("--draw", type=Path)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--columns", type=int, default=110)
    parser.add_argument("--rows", type=int, default=20)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    node = Node(os.path.abspath(arguments.program), arguments.work)
    try:
        node.submit(arguments.config, arguments.name)
        if arguments.draw:
            with node.top(columns=arguments.columns, rows=arguments.rows) as top:
                top.wait_for("drafter  loss", 600)
                top.look(arguments.seconds)
                arguments.draw.write_text(draw(top.screen))
                print(top.screen.text())
            return 0
        for check in (check_screen, check_orders, check_sizes, check_ends, check_plain, check_lost_node):
            check(node)
            print(f"{check.__name__}: good", flush=True)
        node.submit(arguments.config, "second")
        check_several_runs(node)
        print("check_several_runs: good")
        node.kill()
        check_train(node.program, arguments.config, arguments.work)
        print("check_train: good")
    except AssertionError as error:
        print(f"error: {error}")
        return 1
    finally:
        node.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())
