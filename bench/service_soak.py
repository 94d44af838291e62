#!/usr/bin/env python3
"""Runs after runs on one daemon, with pauses and deaths, while memory, descriptors and threads of all its processes are
watched: what grows fails.

    bench/service_soak.py --files build/release/bin/tiny_files [--minutes 60] [--kill-every 20]

The daemon lives through all of it, so it is judged over the whole time: the last quarter against the second. A process of
a run is judged over its own life, where that is long enough. Exit code 1 and a line for each thing that has grown.
"""
from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

PERIOD_S = 1.0
SAMPLES_MIN = 24  # of a process that is judged
OVER = ("done", "failed", "stopped")
# What may come beside growth: pools that fill once, and a start or an end that a sample falls into.
RSS_RATIO, RSS_BYTES = 1.15, 8 << 20
COUNT_MAX = 6


@dataclass
class Sample:
    rss: int
    descriptors: int
    threads: int


def descriptors(pid: int) -> int:
    """Those that are not memory of features: these come and go with what is in flight."""
    count = 0
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            count += not os.readlink(entry).startswith("/memfd:")
    return count


def sample(pid: int) -> Sample | None:
    try:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
        return Sample(1024 * int(status["VmRSS"].split()[0]), descriptors(pid), int(status["Threads"]))
    except (OSError, KeyError):
        return None  # It has just ended.


def children(pid: int) -> dict[int, str]:
    found = {}
    for list_of in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            for child in list_of.read_text().split():
                found[int(child)] = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        except OSError:
            continue
    return found


def growth(samples: list[Sample]) -> list[str]:
    """What has grown from the second quarter to the last."""
    quarter = len(samples) // 4
    before, after = samples[quarter : 2 * quarter], samples[3 * quarter :]
    faults = []
    for what in ("rss", "descriptors", "threads"):
        old, new = (statistics.median(getattr(s, what) for s in part) for part in (before, after))
        limit = max(old * RSS_RATIO, old + RSS_BYTES) if what == "rss" else old + COUNT_MAX
        if new > limit:
            faults.append(f"{what} {old:.0f} -> {new:.0f}")
    return faults


class Soak:
    def __init__(self, options: argparse.Namespace, work: Path) -> None:
        self.options, self.work = options, work
        self.state = work / "node"
        self.rng = random.Random(options.seed)
        self.samples: dict[tuple[int, str], list[Sample]] = defaultdict(list)
        self.runs = self.kills = self.pauses = 0

    def program(self, *words: str) -> str:
        done = subprocess.run([self.options.program, *words, "--state", str(self.state)], capture_output=True, text=True,
                              check=False)
        if done.returncode != 0:
            sys.exit(f"error: percheron {' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout

    def submit(self) -> str:
        self.runs += 1
        name = f"soak{self.runs}"
        self.program("submit", "-c", str(self.work / "files" / "run.yaml"), "--name", name,
                     f"output.directory={self.work / name}", "checkpoint.keep=1")
        return name

    def state_of(self, run: str) -> str:
        return json.loads(self.program("status", run, "--json"))["runs"][0]["state"]

    def disturb(self, daemon: int, run: str) -> None:
        """A pause, or the death of a process of the run."""
        if self.rng.random() < 0.5:
            done = subprocess.run([self.options.program, "pause", run, "--state", str(self.state)], capture_output=True,
                                  check=False)
            if done.returncode == 0:  # Else it has just ended.
                self.pauses += 1
                self.program("resume", run)
            return
        workers = [pid for pid, command in children(daemon).items() if command.startswith("percheron ")]
        if workers:
            os.kill(self.rng.choice(workers), signal.SIGKILL)
            self.kills += 1

    def watch(self, daemon: int) -> None:
        begin = time.monotonic()
        next_disturbance = begin + self.options.kill_every
        run = self.submit()
        while time.monotonic() - begin < 60 * self.options.minutes:
            time.sleep(PERIOD_S)
            for pid, command in {daemon: "daemon", **children(daemon)}.items():
                if (now := sample(pid)) is not None:
                    self.samples[pid, command].append(now)
            state = self.state_of(run)
            if state == "failed":
                sys.exit(f"error: run {run} has failed: {self.program('status', run)}")
            if state in OVER:
                run = self.submit()
            elif state == "running" and time.monotonic() > next_disturbance:
                self.disturb(daemon, run)
                next_disturbance = time.monotonic() + self.options.kill_every
        self.program("stop", run)

    def verdict(self) -> bool:
        well = True
        for (pid, command), samples in self.samples.items():
            if len(samples) < SAMPLES_MIN:
                continue
            faults = growth(samples)
            last = samples[-1]
            print(f"{command} ({pid}): {len(samples)} samples, last {last.rss >> 20} MiB, {last.descriptors} descriptors, "
                  f"{last.threads} threads{'; GROWN: ' + ', '.join(faults) if faults else ''}")
            well = well and not faults
        print(f"{self.runs} runs, {self.pauses} pauses, {self.kills} deaths: {'nothing grows' if well else 'GROWTH'}")
        return well


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/release/bin/percheron")
    parser.add_argument("--files", required=True, help="the program tiny_files, which writes what the runs train on")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--epochs", type=int, default=600, help="of a run")
    parser.add_argument("--kill-every", type=float, default=20, help="seconds from one disturbance to the next")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="service-soak-") as directory:
        soak = Soak(options, Path(directory))
        soak.state.mkdir()
        subprocess.run([options.files, str(soak.work / "files"), str(options.epochs)], stdout=subprocess.DEVNULL, check=True)
        with (soak.work / "node.log").open("wb") as log:
            daemon = subprocess.Popen([options.program, "node", "--name", "soak", "--state", str(soak.state)], stdout=log,
                                      stderr=log)
        try:
            while subprocess.run([options.program, "status", "--state", str(soak.state)], capture_output=True,
                                 check=False).returncode != 0 and daemon.poll() is None:
                time.sleep(0.1)
            soak.watch(daemon.pid)
        finally:
            daemon.terminate()
            daemon.wait()
        return 0 if soak.verdict() else 1


if __name__ == "__main__":
    sys.exit(main())
