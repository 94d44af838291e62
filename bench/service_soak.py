#!/usr/bin/env python3
"""Runs after runs on two daemons, with deaths, pauses, drains, other devices and lost machines, while what their processes
hold is counted: what grows fails.

    bench/service_soak.py --files build/release/bin/tiny_files [--minutes 30 | --runs 9]

One run lives through all of it, with a target on each machine. Beside it one run after another begins, is disturbed and
ends. Between two of them the long one is paused, so that nothing is in flight: then descriptors, threads, memory and files
of both daemons and of the long run's processes are counted. A count has grown when each of the last third is above each of
the first third, by more than its allowance. Exit code 1 and a line for each process of which something has grown.

--short leaves out what takes long: drains, and machines that are stopped or lost. --plant LIBRARY preloads what leaks into
the daemons, while runs only begin and end, and fails unless descriptors, threads and memory of the first one are found to grow.
"""
from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

OVER = ("done", "failed", "stopped")
LIMIT_S = 120
COUNTS_MIN = 9  # of a process that is judged
LONG_LIFE = 60  # counts, from which on files are judged, as a node forgets old runs every ten minutes, and no pool fills
FILLING_BYTES = 8 << 20  # what pools and the records of others' runs take in a shorter life
# What may come beside growth, from the first third to the last: pools that fill once, a connection that is made anew.
ALLOWED = {"descriptors": 2, "threads": 2, "memory files": 40, "anonymous bytes": 4 << 20, "files": 10}
STEADY = "steady"
LOST_EVERY = 12  # runs: of each life of the machine that is lost enough is counted


def wait(what: str, holds: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    begin = time.monotonic()
    while not holds():
        if time.monotonic() - begin > limit_s:
            raise TimeoutError(f"{what}: not within {limit_s:.0f} s")
        time.sleep(0.1)


def count(pid: int) -> dict[str, int] | None:
    """What a process holds; none when it has just ended."""
    held = {"descriptors": 0, "memory files": 0}
    try:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                held["memory files" if os.readlink(entry).startswith("/memfd:") else "descriptors"] += 1
        kibibytes = sum(int(status[where].split()[0]) for where in ("RssAnon", "VmSwap"))  # What is paged out is held, too.
        return held | {"threads": int(status["Threads"]), "anonymous bytes": 1024 * kibibytes}
    except (OSError, KeyError):
        return None


def growth(counts: list[dict[str, int]]) -> list[str]:
    """What has grown."""
    third = len(counts) // 3
    grown = []
    for what, allowed in ALLOWED.items():
        if what not in counts[0] or (what == "files" and len(counts) < LONG_LIFE):
            continue
        if what == "anonymous bytes" and len(counts) < LONG_LIFE:
            allowed = FILLING_BYTES
        before, after = max(c[what] for c in counts[:third]), min(c[what] for c in counts[-third:])
        if after - before > allowed:
            grown.append(f"{what} {before} -> {after}")
    return grown


class Node:
    """A `percheron node`."""

    def __init__(self, options: argparse.Namespace, name: str, work: Path, join: Node | None) -> None:
        self.program, self.name, self.plant = options.program, name, options.plant
        self.state, self.log = work / name, work / f"{name}.log"
        self.certificates = work / "certs"
        self.port, self.join = 0, join
        self.lives = 0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = [self.program, "node", "--name", self.name, "--state", str(self.state), "--certs", str(self.certificates),
                 "--listen", f"127.0.0.1:{self.port}", "--keep-runs", "3", "--log-bytes", "64KiB", "--log-files", "3"]
        if self.join is not None:
            words += ["--join", f"127.0.0.1:{self.join.port}"]
        begin = self.log.stat().st_size if self.log.exists() else 0
        environment = os.environ | ({"LD_PRELOAD": self.plant} if self.plant else {})
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=log, env=environment)
        self.lives += 1
        mark = " is ready at 127.0.0.1:"
        wait(f"node {self.name} is ready", lambda: mark in self.log.read_text()[begin:])
        self.port = int(self.log.read_text()[begin:].split(mark)[1].split(":")[0])  # The same one from now on.

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait()
            self.process = None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def children(self) -> dict[int, str]:
        found = {}
        for list_of in Path(f"/proc/{self.pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                for child in list_of.read_text().split():
                    command = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
                    found[int(child)] = command.removeprefix("percheron ")
        return found


class Soak:
    def __init__(self, options: argparse.Namespace, work: Path) -> None:
        self.options, self.work = options, work
        self.rng = random.Random(options.seed)
        self.config = work / "files" / "run.yaml"
        subprocess.run([options.files, str(work / "files"), "10000"], stdout=subprocess.DEVNULL, check=True)
        self.call("certs", "init", str(work / "certs"))
        for name in ("alpha", "beta", "operator"):
            self.call("certs", "issue", str(work / "certs"), name, "--address", "127.0.0.1")
        self.alpha = Node(options, "alpha", work, None)
        self.beta = Node(options, "beta", work, self.alpha)
        self.counts: dict[tuple[str, int], list[dict[str, int]]] = defaultdict(list)
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.tried: set[str] = set()
        self.runs = 0

    # --- what operators do -----------------------------------------------------------------------------------------

    def call(self, *words: str) -> str:
        answer = subprocess.run([self.options.program, *words], capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            raise RuntimeError(f"percheron {' '.join(words)}: {answer.stdout}{answer.stderr}".strip())
        return answer.stdout

    def ask(self, node: Node, *words: str) -> dict:
        return json.loads(self.call(*words, "--json", "--state", str(node.state)))

    def order(self, what: str, *words: str, node: Node | None = None) -> None:
        """May be refused: the run that it is for may have ended, or waits for a worker. But not every time."""
        self.tried.add(what)
        try:
            self.ask(node or self.alpha, *words)
            self.done[what] += 1
        except RuntimeError as error:
            self.refused[str(error)[:160]] += 1

    def insist(self, *words: str) -> None:
        """The run that it is for lives: where it waits for a worker, or a machine is slow, it takes the order later."""
        def taken() -> bool:
            with contextlib.suppress(RuntimeError):
                self.ask(self.alpha, *words)
                return True
            return False

        wait(" ".join(words), taken)

    def status(self, run: str) -> dict:
        """Alpha may not be told yet of what a machine that has just come back was given."""
        for _ in range(50):
            with contextlib.suppress(RuntimeError):
                return self.ask(self.alpha, "status", run)["runs"][0]
            time.sleep(0.2)
        return self.ask(self.alpha, "status", run)["runs"][0]

    def submit(self, node: Node, name: str, targets: str, trainers: str, *settings: str) -> str:
        words = ["submit", "-c", str(self.config), "--name", name, f"output.directory={self.work / 'runs' / name}",
                 f"placement.targets=[{targets}]", f"placement.trainers=[{trainers}]", "cluster.trusted_network=true",
                 "cluster.successor_seconds=2", "checkpoint.keep=1", "checkpoint.every_steps=50",
                 "evaluate.decode_conversations=1", "evaluate.new_tokens_max=8", *settings]

        def taken() -> bool:
            with contextlib.suppress(RuntimeError):
                self.ask(node, *words)
                return True
            return False

        wait(f"{name} is taken", taken, 30)
        return name

    def wait_steps(self, run: str, steps: int = 5) -> None:
        first = self.status(run).get("step", 0)

        def moved() -> bool:
            now = self.status(run)
            if now["state"] == "failed":
                raise RuntimeError(f"run {run} has failed: {now.get('message')}")
            return now.get("step", 0) >= first + steps or now["state"] in OVER

        wait(f"{steps} steps of {run}", moved)

    def signal_process(self, what: str, number: signal.Signals = signal.SIGKILL) -> None:
        for node in (self.alpha, self.beta):
            for pid, command in node.children().items():
                if command == what:
                    os.kill(pid, number)
                    self.done[f"{number.name} to a {what.split()[0]}"] += 1

    # --- what is done to a run ---------------------------------------------------------------------------------------

    def nothing(self, run: str) -> None:
        """It has begun, and is stopped."""

    def to_its_end(self, run: str) -> None:
        wait(f"{run} ends", lambda: self.status(run)["state"] in OVER)

    def deaths(self, run: str) -> None:
        for what in ("worker {}/cpu:0", "worker {}/cpu:1", "supervisor {}"):
            self.signal_process(what.format(run))
            self.wait_steps(run)

    def pauses(self, run: str) -> None:
        for words in (["pause"], ["pause", "--release-devices"]):
            self.order(" ".join(words), words[0], run, *words[1:])
            self.order("resume", "resume", run)
            self.wait_steps(run)
        self.order("snapshot", "snapshot", run)

    def scales(self, run: str) -> None:
        for change in (["--targets", "+alpha/cpu:2"], ["--targets", "+beta/cpu:2"],
                       ["--trainers", "+beta/cpu:3", "--trainers", "-alpha/cpu:1"], ["--targets", "-alpha/cpu:2"]):
            self.order("scale", "scale", run, *change)
        self.wait_steps(run)

    def drains(self, run: str) -> None:
        self.order("scale", "scale", run, "--targets", "+beta/cpu:0")
        self.order("drain", "drain", "beta")
        self.wait_steps(run)
        self.order("drain --undo", "drain", "beta", "--undo")
        wait("beta takes workers", lambda: "true" not in [str(n["drained"]).lower() for n in self.ask(self.alpha, "status")["nodes"]])
        self.order("scale", "scale", STEADY, "--targets", "+beta/cpu:8")

    def looks(self, run: str) -> None:
        there = ["--node", f"127.0.0.1:{self.beta.port}", "--certs", str(self.work / "certs")]
        self.tried.add("looks over TLS")
        for words in (["status"], ["status", run], ["logs", run], ["top", "--once"]):
            try:
                self.call(*words, *there)
                self.done["looks over TLS"] += 1
            except RuntimeError as error:
                self.refused[str(error)[:160]] += 1
            self.order("looks", "status", run, node=self.beta)

    def stopped_machine(self, run: str) -> None:
        os.kill(self.beta.pid, signal.SIGSTOP)
        time.sleep(5)
        os.kill(self.beta.pid, signal.SIGCONT)
        self.done["a machine is stopped for 5 s"] += 1
        self.wait_steps(run)

    def end_unheard(self, run: str) -> None:
        """Beta is not told: it has to find out by itself."""
        os.kill(self.beta.pid, signal.SIGSTOP)
        wait("beta is lost", lambda: not all(n["reachable"] for n in self.ask(self.alpha, "status")["nodes"]))
        self.order("stop", "stop", run)
        os.kill(self.beta.pid, signal.SIGCONT)
        self.done["a run ends while a machine is stopped"] += 1

    def lost_machine(self, run: str) -> None:
        """The run's supervisor is on beta."""
        self.beta.kill()
        wait("a successor runs", lambda: self.status(run)["node"] == "alpha" and self.status(run)["state"] == "running")
        self.done["a successor takes over"] += 1
        self.wait_steps(run)
        self.beta.start()
        self.wait_steps(run, 20)

    def one_run(self) -> None:
        self.runs += 1
        name, two = f"soak{self.runs}", "alpha/cpu:0, beta/cpu:0"
        endless = "train.epochs=10000"
        kinds: list[tuple[Callable[[str], None], Node, str, str, str]] = [
            (self.to_its_end, self.alpha, "alpha/cpu:0", "alpha/cpu:1", "train.epochs=1"),
            (self.deaths, self.alpha, "alpha/cpu:0", "alpha/cpu:1", endless),
            (self.pauses, self.beta, two, "beta/cpu:1", endless),
            (self.scales, self.alpha, "alpha/cpu:0", "alpha/cpu:1", endless),
            (self.looks, self.beta, two, "alpha/cpu:1, beta/cpu:1", endless),
            (self.drains, self.alpha, "alpha/cpu:0", "alpha/cpu:1", endless),
            (self.stopped_machine, self.alpha, two, "alpha/cpu:1", endless),
            (self.end_unheard, self.alpha, two, "alpha/cpu:1", endless),
            (self.lost_machine, self.beta, two, "alpha/cpu:1", endless),
        ]
        if self.options.plant:
            kinds = [(self.nothing, self.alpha, "alpha/cpu:0", "alpha/cpu:1", endless)]
        elif self.options.short:
            kinds = kinds[:5]
        elif self.runs % LOST_EVERY != 0:
            kinds = kinds[:8]
        disturb, node, targets, trainers, setting = kinds[-1 if self.runs % LOST_EVERY == 0 else self.runs % len(kinds)]
        self.submit(node, name, targets, trainers, setting)
        self.wait_steps(name, 1)
        disturb(name)
        if self.status(name)["state"] not in OVER:
            self.order("stop", "stop", name)
        if (last := self.status(name))["state"] == "failed":
            raise RuntimeError(f"run {name} has failed: {last.get('message')}")

    # --- what they hold ----------------------------------------------------------------------------------------------

    def of_steady(self, node: Node) -> dict[int, str]:
        return {pid: what for pid, what in node.children().items() if what.partition(" ")[2].split("/")[0] == STEADY}

    def count_all(self) -> None:
        """With nothing in flight."""
        self.wait_steps(STEADY, 1)
        self.insist("pause", STEADY)
        for node in (self.alpha, self.beta):
            wait(f"{node.name} has no other process", lambda node=node: node.children() == self.of_steady(node))
        seen: dict[tuple[str, int], list[dict[str, int]]] = defaultdict(list)
        for _ in range(3):  # The least of three: a connection may come and go.
            time.sleep(0.1)
            for node in (self.alpha, self.beta):
                files = sum(1 for _ in node.state.rglob("*"))
                for pid, what in {node.pid: f"daemon {node.name}", **self.of_steady(node)}.items():
                    if (now := count(pid)) is not None:
                        seen[what if pid == node.pid else f"{what} on {node.name}", pid].append(
                            now | ({"files": files} if pid == node.pid else {}))
        for key, counts in seen.items():
            self.counts[key].append({what: min(c[what] for c in counts) for what in counts[0]})
        self.insist("resume", STEADY)

    def go(self) -> None:
        self.alpha.start()
        self.beta.start()
        self.submit(self.alpha, STEADY, "alpha/cpu:8, beta/cpu:8", "alpha/cpu:9", "train.micro_batches_per_step=1",
                    "features.bytes_max=4MiB")
        begin = time.monotonic()
        while self.runs < self.options.runs or time.monotonic() - begin < 60 * self.options.minutes:
            self.one_run()
            self.count_all()
        self.steps = self.status(STEADY)["step"]
        self.insist("stop", STEADY)

    def verdict(self) -> bool:
        grown_of: dict[str, list[str]] = {}
        for (what, pid), counts in self.counts.items():
            if len(counts) < COUNTS_MIN:
                continue
            grown = growth(counts)
            middle, last = counts[len(counts) // 3], counts[-1]
            text = ", ".join(f"{name} {middle[name]} -> {last[name]}" for name in last)
            print(f"{what} ({pid}), counted {len(counts)} times, from the first third's end to the end: {text}"
                  f"{'; GROWN: ' + ', '.join(grown) if grown else ''}")
            if grown:
                grown_of[what] = grown
        print(f"{self.runs} runs beside one of {self.steps} steps; "
              + ", ".join(f"{number} x {what}" for what, number in sorted(self.done.items())))
        for text, number in self.refused.items():
            print(f"refused {number} times: {text}")
        if not any(len(counts) >= COUNTS_MIN for counts in self.counts.values()):
            print(f"error: no process was counted {COUNTS_MIN} times: give it more minutes")
            return False
        if never := sorted(self.tried - set(self.done)):
            print(f"error: refused every time: {', '.join(never)}")
            return False
        print("GROWTH" if grown_of else "nothing grows")
        if not self.options.plant:
            return not grown_of
        found = " ".join(grown_of.get("daemon alpha", []))
        missing = [what for what in ("descriptors", "threads", "anonymous bytes") if what not in found]
        if missing:
            print(f"error: planted growth is not found in: {', '.join(missing)}")
        return not missing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/release/bin/percheron")
    parser.add_argument("--files", required=True, help="the program tiny_files, which writes what the runs train on")
    parser.add_argument("--minutes", type=float, help="for which runs follow each other; default: 30")
    parser.add_argument("--runs", type=int, default=0, help="that follow each other, in place of minutes")
    parser.add_argument("--short", action="store_true", help="without drains and without machines that are stopped or lost")
    parser.add_argument("--plant", default="", help="a library that leaks, for the daemons to preload")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", help="an empty directory for everything, which is kept; default: a temporary one")
    options = parser.parse_args()
    if options.minutes is None:
        options.minutes = 0 if options.runs else 30
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # Daemons are ended.
    with contextlib.ExitStack() as stack:
        work = Path(options.work or stack.enter_context(tempfile.TemporaryDirectory(prefix="service-soak-")))
        soak = Soak(options, work)
        try:
            soak.go()
        except (RuntimeError, TimeoutError) as error:
            print(f"error: {error}")
            print(soak.alpha.log.read_text()[-2000:])
            return 1
        finally:
            soak.beta.kill(signal.SIGTERM)
            soak.alpha.kill(signal.SIGTERM)
        return 0 if soak.verdict() else 1


if __name__ == "__main__":
    sys.exit(main())
