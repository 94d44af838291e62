"""Clocks of the day that jump under daemons, supervisors and workers: by libfaketime, which leaves the clock that only
counts alone, as a correction of the time does."""
from __future__ import annotations

import json
import signal
import time
from pathlib import Path

from cluster import Daemon, Failed, Run, wait
from fault_world import Skipped, World

JUMPS = {"+1h": 3600, "-1h": -3600, "+10y": 10 * 365 * 86400}  # as libfaketime spells them, and seconds
CACHED_S = 1  # for which libfaketime does not look; it counts whole seconds
SEEN_S = 2.5
RECOVER_S = 20  # from a death, on a busy machine: a wait of hours would show
ETA_MAX_S = 3600
RUN_S = 25  # of an undisturbed run: three jumps, and what is looked at after each


def library() -> str:
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if not found:
        raise Skipped("libfaketime is not here (Debian package faketime)")
    return str(found[0])


class FakeTime:
    """The time of day of all processes of some daemons."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "time"
        self.environment = {"LD_PRELOAD": library(), "FAKETIME_TIMESTAMP_FILE": str(self.file),
                            "FAKETIME_CACHE_DURATION": str(CACHED_S), "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        self.jump("+0")

    def jump(self, to: str) -> None:
        self.file.write_text(to + "\n")
        time.sleep(SEEN_S)


def last_time(run: Run) -> float:
    """When the last step was written, by the clock of the run's supervisor."""
    lines = (run.output / "metrics.jsonl").read_text().splitlines()
    return [entry for entry in map(json.loads, lines[-20:-1]) if entry["kind"] == "step"][-1]["time"]


def check_sane(daemon: Daemon, run: Run, seconds: float) -> None:
    """After a jump by `seconds`, which must have come through."""
    off = last_time(run) - time.time()
    if abs(off - seconds) > 60 + 0.01 * abs(seconds):
        raise Failed(f"the clock is off by {off:.0f} s and should be by {seconds:.0f}")
    status = daemon.run("tiny")
    if status["state"] != "running" or not 0 <= status["eta_seconds"] < ETA_MAX_S:
        raise Failed(f"the run is {status['state']}, {status['eta_seconds']} s from its end")
    if not 0 <= status["activity_seconds"] < 600:
        raise Failed(f"its actors have worked for {status['activity_seconds']} s")


def jump_and_kill(world: World, clock: FakeTime, daemon: Daemon, run: Run) -> None:
    for (jump, seconds), victim in zip(JUMPS.items(), ("worker tiny/cpu:0", "worker tiny/cpu:1", "supervisor tiny")):
        before = restarts(daemon)
        clock.jump(jump)
        run.wait_step(run.step() + 5)
        check_sane(daemon, run, seconds)
        if restarts(daemon) != before:
            raise Failed(f"after {jump} a process was started again that nobody had killed")
        if daemon.ask("pause", "tiny") is None or daemon.ask("resume", "tiny") is None:
            raise Failed("a pause is not answered")
        begin = time.monotonic()
        pid = daemon.send(victim, signal.SIGKILL)
        wait(f"{victim} is back", lambda pid=pid, victim=victim: daemon.child(victim) not in (pid, None), RECOVER_S)
        wait("all are ready", lambda: {w["state"] for w in daemon.run("tiny").get("workers", [])} == {"ready"}, RECOVER_S)
        run.wait_next()
        world.result.notes.append(f"{jump}: {time.monotonic() - begin:.1f} s for the death of a {victim.split()[0]}")


def restarts(daemon: Daemon) -> list[int]:
    return [worker["restarts"] for worker in daemon.run("tiny")["workers"]]


def check_said(daemon: Daemon) -> None:
    for text in ("silent", "forgotten", "does not rotate", "can't be reached"):
        if daemon.said(text):
            raise Failed(f"{daemon.name} said '{text}'")


def clock_jumps(world: World) -> None:
    clock = FakeTime(world.directory)
    world.start(["alpha"], clock.environment, "--log-bytes", "4KiB", "--log-files", "500")
    daemon = world.daemons[0]
    before = world.done_before(["cpu:0"], ["cpu:1"], "train.epochs=10")
    run = world.submit(["cpu:0"], ["cpu:1"], world.lasting(before, 10, RUN_S))
    world.begin(run)
    jump_and_kill(world, clock, daemon, run)
    clock.jump("+0")
    check_said(daemon)
    world.check_end(run)
    if daemon.run(before.name).get("state") != "done":
        raise Failed("a run that had ended before is forgotten")


def tries(daemon: Daemon, other: Daemon) -> list[str]:
    """What it says of those to connect another node that is lost."""
    lines = daemon.log.read_text().split("has been silent")[-1].splitlines()[1:]
    return [line for line in lines if other.address in line and "has joined" not in line]


def clock_jumps_of_two(world: World) -> None:
    """Links go on through all jumps. Certificates are good for a year: ten years later nobody new is let in, and that is
    said; once the clock is right, a node that was cut off comes back by itself."""
    clock = FakeTime(world.directory)
    world.start(["alpha", "beta"], clock.environment)
    alpha, beta = world.daemons
    targets, settings = ["alpha/cpu:0", "beta/cpu:0"], ["train.micro_batches_per_step=4"]
    before = world.done_before(targets, ["alpha/cpu:1"], *settings, "train.epochs=10")
    run = world.submit(targets, ["alpha/cpu:1"], *settings, world.lasting(before, 10, 3 * RUN_S))
    world.begin(run)
    jump_and_kill(world, clock, alpha, run)
    check_said(alpha)
    world.switch.link("beta", "down")
    wait("beta is lost", lambda: alpha.said("has been silent"))
    wait("it can't be connected", lambda: tries(alpha, beta))
    world.switch.link("beta", "up")
    wait("it is refused now", lambda: any("expired" in line for line in tries(alpha, beta)))
    run.wait_next()  # By alpha's own target.
    clock.jump("+0")
    wait("beta's target is back", lambda: [w["state"] for w in alpha.run("tiny").get("workers", [])] == 3 * ["ready"])
    world.check_end(run)
