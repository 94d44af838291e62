"""Daemons and one run on them, which must end as it would have undisturbed: for faults.py and its scenarios."""
from __future__ import annotations

import argparse
import json
import math
import random
import signal
import struct
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cluster import Daemon, Failed, Run, Switch, wait

EPOCHS = 60
BRIEF = ["train.log_every_steps=1", "evaluate.decode_conversations=1", "evaluate.new_tokens_max=8"]  # Else its report takes longest.
END_S, END_POLL_S = 600, 0.3  # for a run to end; each fault has a limit of its own
# Of the parameters' norm, where who computes what depends on time, and the order of sums on that: 20 epochs of it make
# some 4e-7, 60 epochs 1e-3, as the optimizer divides by moments that are small.
NEAR = 1e-5


class Skipped(Exception):
    """What a scenario needs is not here."""


@dataclass
class Result:
    detected_s: float | None = None
    recovered_s: float | None = None
    notes: list[str] = field(default_factory=list)


class World:
    """Daemons, and one run on them."""

    def __init__(self, options: argparse.Namespace, directory: Path, rng: random.Random) -> None:
        self.options, self.directory, self.rng = options, directory, rng
        directory.mkdir(parents=True)
        files = directory / "files"
        subprocess.run([options.files, str(files), str(EPOCHS)], stdout=subprocess.DEVNULL, check=True)
        self.config = files / "run.yaml"
        self.daemons: list[Daemon] = []
        self.settings: list[str] = []
        self.placement: tuple[list[str], list[str]] = ([], [])
        self.plain_targets = ["cpu:0"]  # of the same run by `percheron train`
        self.result = Result()
        self.switch = Switch()

    def close(self) -> None:
        for daemon in self.daemons:
            daemon.kill()
        self.switch.close()

    def start(self, names: list[str], environment: dict[str, str] | None = None, *options: str) -> None:
        certificates = self.directory / "certs"
        self._program("certs", "init", str(certificates))
        for number, name in enumerate([*names, "operator"], 1):
            self._program("certs", "issue", str(certificates), name, "--address", f"10.77.0.{number}")
        for number, name in enumerate(names, 1):
            daemon = Daemon(self.options.program, name, number, self.directory, certificates, self.switch, number > 1)
            daemon.environment, daemon.options = environment or {}, list(options)
            daemon.start()
            self.daemons.append(daemon)

    def submit(self, targets: list[str], trainers: list[str], *settings: str) -> Run:
        """The run that is to be disturbed."""
        self.settings = [*BRIEF, *settings]
        self.placement = (targets, trainers)
        return self.submit_as("tiny")

    def submit_as(self, name: str) -> Run:
        """The same under another name, with an output of its own."""
        targets, trainers = self.placement
        output = self.directory / name
        words = ["submit", "-c", str(self.config), "--name", name, f"placement.targets=[{', '.join(targets)}]",
                 f"placement.trainers=[{', '.join(trainers)}]", "cluster.collective_interface=net0",
                 "cluster.trusted_network=true", f"output.directory={output}", *self.settings]
        wait("the run is taken", lambda: self.daemons[0].ask(*words) is not None, 20)
        return Run(name, output)

    def done_before(self, targets: list[str], trainers: list[str], *settings: str) -> Run:
        """Another run, which is over."""
        self.settings, self.placement = [*BRIEF, *settings], (targets, trainers)
        run = self.submit_as("before")
        self.wait_end(run)
        return run

    def lasting(self, before: Run, epochs: int, seconds: float) -> str:
        """The setting by which a run like `before`, which had so many epochs, goes on for about so long."""
        return f"train.epochs={max(epochs, int(epochs * seconds / before.seconds()))}"

    def begin(self, run: Run) -> None:
        """Waits for a moment between two steps of the run's first part."""
        run.wait_step(self.rng.randrange(5, 40))

    def undisturbed_by_the_service(self) -> Run:
        """The same run on the same machines, after the other one."""
        run = self.submit_as("undisturbed")
        self.wait_end(run)
        return run

    def undisturbed(self) -> Run:
        """The same run by `percheron train`."""
        output = self.directory / "undisturbed"
        if not output.exists():
            self._program("train", "-c", str(self.config), *self.settings, f"output.directory={output}",
                          f"placement.targets=[{', '.join(self.plain_targets)}]", "placement.trainers=[cpu:9]")
        return Run("undisturbed", output)

    def _program(self, *words: str) -> None:
        done = subprocess.run([self.options.program, *words], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Failed(f"percheron {' '.join(words)}: {done.stdout}{done.stderr}")

    def hit(self, daemon: Daemon, run: Run, what: str, number: signal.Signals) -> None:
        """Sends a signal to a process of the run, of which it must recover."""
        since = daemon.log.stat().st_size
        begin = time.monotonic()
        pid = daemon.send(what, number)
        if number == signal.SIGSTOP:
            sign = lambda: daemon.said(f"{what} has been silent", since)  # noqa: E731
        else:
            sign = lambda: daemon.said("ended: signal 9", since)  # noqa: E731
        self.recovered_from(run, begin, sign)
        if Path(f"/proc/{pid}").exists():
            raise Failed(f"{what}, process {pid}, is there still")

    def recovered_from(self, run: Run, begin: float, sign: Callable[[], bool] | None) -> None:
        """Measures from `begin` on: until `sign` is seen, and until the next step after it."""
        if sign is not None:
            wait("the loss is seen", sign)
            self.result.detected_s = time.monotonic() - begin
        run.wait_next()
        self.result.recovered_s = time.monotonic() - begin

    def wait_end(self, run: Run) -> dict:
        """Its last status, once it is done."""
        first = self.daemons[0]
        wait("the run ends", lambda: first.run(run.name).get("state") in ("done", "failed", "stopped"), END_S, END_POLL_S)
        last = first.run(run.name)
        if last["state"] != "done":
            raise Failed(f"the run is {last['state']}: {last.get('message')}")
        return last

    def check_end(self, run: Run, *, same_bits: bool = True) -> None:
        last = self.wait_end(run)
        if fault := run.history_fault():
            raise Failed(f"metrics.jsonl: {fault}")
        if run.step() != last["steps_total"] or run.steps_seen[0] != 1:
            raise Failed(f"steps {run.steps_seen[0]} to {run.step()} of {last['steps_total']} are in metrics.jsonl")
        plain = self.undisturbed() if same_bits else self.undisturbed_by_the_service()
        if same_bits and run.masters() != plain.masters():
            raise Failed("the parameters are not those of an undisturbed run")
        if (ledger := run.ledger()) != plain.ledger():
            raise Failed(f"the ledger is {ledger}, that of an undisturbed run {plain.ledger()}")
        if same_bits:
            return
        far = distance(run.masters(), plain.masters())
        self.result.notes.append(f"{far:.1e} from the undisturbed run")
        if far > NEAR:
            raise Failed(f"the parameters are {far:.2e} of their norm away from an undisturbed run's")


def numbers(safetensors: bytes) -> list[float]:
    """All f32 of a file, in the order of its tensors' names."""
    (size,) = struct.unpack_from("<Q", safetensors)
    header = json.loads(safetensors[8 : 8 + size])
    values: list[float] = []
    for name in sorted(header):
        if name == "__metadata__" or header[name]["dtype"] != "F32":
            continue
        first, last = header[name]["data_offsets"]
        values += struct.unpack_from(f"<{(last - first) // 4}f", safetensors, 8 + size + first)
    return values


def distance(a: bytes, b: bytes) -> float:
    one, other = numbers(a), numbers(b)
    if len(one) != len(other):
        return math.inf
    return math.dist(one, other) / math.hypot(*other)


def one_machine(world: World, *settings: str) -> tuple[Daemon, Run]:
    world.start(["alpha"])
    run = world.submit(["cpu:0"], ["cpu:1"], *settings)
    world.begin(run)
    return world.daemons[0], run
