"""Daemons in network namespaces of their own, joined by a bridge, and what runs on them: for tests of faults."""
from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

POLL_S = 0.02
LIMIT_S = 120
NETWORK = "10.77.0."
PORT = 7600


class Failed(Exception):
    """Something did not come to pass."""


def wait(what: str, holds: Callable[[], object], limit_s: float = LIMIT_S, poll_s: float = POLL_S) -> float:
    """Seconds until `holds` is true. Every question to a daemon starts a program: `poll_s` for what takes its time."""
    begin = time.monotonic()
    while time.monotonic() - begin < limit_s:
        if holds():
            return time.monotonic() - begin
        time.sleep(poll_s)
    raise Failed(f"{what}: not within {limit_s} s")


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"ip {' '.join(words)}: {done.stderr.strip()}")


class Switch:
    """A bridge in a namespace of its own, into which nodes are plugged."""

    def __init__(self) -> None:
        self.namespace = f"faults{os.getpid()}"
        self.namespaces = [self.namespace]
        ip("netns", "add", self.namespace)
        ip("-n", self.namespace, "link", "add", "bridge", "type", "bridge")
        ip("-n", self.namespace, "link", "set", "bridge", "up")

    def plug_in(self, name: str, number: int) -> str:
        """The new namespace of a node."""
        namespace = f"{self.namespace}-{name}"
        ip("netns", "add", namespace)
        self.namespaces.append(namespace)
        ip("-n", self.namespace, "link", "add", name, "type", "veth", "peer", "name", "net0", "netns", namespace)
        ip("-n", self.namespace, "link", "set", name, "master", "bridge", "up")
        ip("-n", namespace, "address", "add", f"{NETWORK}{number}/24", "dev", "net0")
        ip("-n", namespace, "link", "set", "net0", "up")
        ip("-n", namespace, "link", "set", "lo", "up")
        return namespace

    def link(self, name: str, state: str) -> None:
        """`state`: "down" cuts the node off, "up" heals."""
        ip("-n", self.namespace, "link", "set", name, state)

    def close(self) -> None:
        for namespace in reversed(self.namespaces):
            subprocess.run(["ip", "netns", "del", namespace], check=False)


def namespaces_work() -> str:
    """Empty, or why a cluster can't be made here."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        switch = Switch()
    except (OSError, Failed) as error:
        return f"no network namespaces here: {error}"
    try:
        switch.plug_in("probe", 250)
    except Failed as error:
        return f"no network namespaces here: {error}"
    finally:
        switch.close()
    return ""


class Daemon:
    """A `percheron node`."""

    def __init__(self, program: str, name: str, number: int, directory: Path, certificates: Path, switch: Switch,
                 join: bool) -> None:
        self.program, self.name, self.number = program, name, number
        self.state = directory / name
        self.log = directory / f"{name}.log"
        self.address = f"{NETWORK}{number}:{PORT}"
        self.namespace = switch.plug_in(name, number)
        self.environment: dict[str, str] = {}  # of the daemon and of the processes that it starts
        self.options: list[str] = []
        self._words = [program, "node", "--name", name, "--state", str(self.state),
                       "--certs", str(certificates), "--listen", self.address]
        if join:
            self._words += ["--join", f"{NETWORK}1:{PORT}"]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                ["ip", "netns", "exec", self.namespace, "env", *(f"{k}={v}" for k, v in self.environment.items()),
                 *self._words, *self.options], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        wait(f"the daemon {self.name} answers", lambda: self.ask("status") is not None)

    @property
    def pid(self) -> int:
        if self.process is None:
            raise Failed(f"the daemon {self.name} is not there")
        return self.process.pid

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def ask(self, *words: str) -> dict | None:
        """What the daemon answers, as JSON; none when it does not."""
        done = subprocess.run([self.program, *words, "--json", "--state", str(self.state)], capture_output=True, text=True,
                              check=False)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def run(self, name: str) -> dict:
        """The entry of a run in its status."""
        answer = self.ask("status", name)
        return answer["runs"][0] if answer else {}

    def said(self, text: str, since: int = 0) -> bool:
        """Whether `text` stands in the log behind its first `since` bytes."""
        return text.encode() in self.log.read_bytes()[since:]

    def child(self, what: str) -> int | None:
        """The number of its process "worker RUN/cpu:0" or "supervisor RUN"."""
        for children in Path(f"/proc/{self.pid}/task").glob("*/children"):
            try:
                for pid in children.read_text().split():
                    command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
                    if command == f"percheron {what}":
                        return int(pid)
            except OSError:
                continue
        return None

    def send(self, what: str, number: signal.Signals) -> int:
        """Sends a signal to a child and returns the child's number."""
        pid = self.child(what)
        if pid is None:
            raise Failed(f"{self.name} has no process {what}")
        os.kill(pid, number)
        return pid


class Run:
    """A run on a cluster, as its files tell of it."""

    def __init__(self, name: str, output: Path) -> None:
        self.name = name
        self.output = output
        self.steps_seen: list[int] = []
        self._offset = 0

    def step(self) -> int:
        """The newest step in metrics.jsonl; -1 when there is none."""
        path = self.output / "metrics.jsonl"
        if path.exists():
            with path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._offset += len(whole)
            for line in whole.splitlines():
                try:
                    entry = json.loads(line)
                except ValueError:
                    continue  # Cut by a death or a full disk.
                if entry["kind"] == "step":
                    self.steps_seen.append(entry["step"])
        return self.steps_seen[-1] if self.steps_seen else -1

    def wait_step(self, step: int) -> float:
        return wait(f"step {step} of {self.name}", lambda: self.step() >= step)

    def wait_next(self, limit_s: float = LIMIT_S) -> float:
        """Seconds until one more step is written, whatever its number."""
        self.step()
        seen = len(self.steps_seen)
        return wait(f"a further step of {self.name}", lambda: self.step() >= 0 and len(self.steps_seen) > seen, limit_s)

    def history_fault(self) -> str:
        """Empty, or why the steps that survive are not each there once: a later line counts."""
        self.step()
        expected = None
        for step in self.steps_seen:
            if expected is not None and step > expected:
                return f"step {step} follows {expected - 1}"
            expected = step + 1
        return ""

    def seconds(self) -> float:
        """From its first step to its last."""
        lines = [json.loads(line) for line in (self.output / "metrics.jsonl").read_text().splitlines()]
        times = [line["time"] for line in lines if line["kind"] == "step"]
        return times[-1] - times[0]

    def ledger(self) -> str:
        """What of the plan it has trained, with a checksum over the micro-batches."""
        text = (self.output / "latest" / "training_state" / "training_state.textproto").read_text()
        return " ".join(text.split("ledger {")[1].split("}")[0].split())

    def masters(self) -> bytes:
        return (self.output / "latest" / "training_state" / "masters.safetensors").read_bytes()
