#!/usr/bin/env python3
"""Breaks real processes, links and disks under a run of the service, and looks whether the run ends as it should.

    .venv/bin/python tests/e2e/faults.py --program build/release/bin/percheron --files build/release/bin/tiny_files

Daemons live in network namespaces joined by a bridge, so it needs root; exit code 77 where that can't be. Every scenario
ends with the run done and each step once in the surviving history; with one trainer the parameters are bit for bit those
of `percheron train`, with two they are near those of the same run undisturbed. Prints a line for each scenario: what was seen after how many seconds, when
the next step was there, and the verdict. --rounds repeats the list, each time at other moments; --seed repeats those.
"""
from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import thread_stop  # noqa: E402
from cluster import Daemon, Failed, Run, ip, namespaces_work, wait  # noqa: E402
from fault_clock import clock_jumps, clock_jumps_of_two  # noqa: E402
from fault_pairs import PAIRS  # noqa: E402
from fault_storm import deaths  # noqa: E402
from fault_world import Skipped, World, one_machine  # noqa: E402

SKIPPED = 77
DETECT_S = 3.0 + 0.5 + 0.5  # silence, the time since the last sign of life, ticks and this script's own polls
RECOVER_S = 10.0  # from the fault to the next step
# Enough for a run that stands still while the fault lasts, and whose end is waited for.
SHORT_RUN = "train.epochs=20"


# --- one machine ---------------------------------------------------------------------------------------------------


def hit(world: World, what: str, number: signal.Signals, *settings: str) -> None:
    daemon, run = one_machine(world, *settings)
    world.hit(daemon, run, what, number)
    world.check_end(run)


def stop_daemon(world: World) -> None:
    daemon, run = one_machine(world)
    os.kill(daemon.pid, signal.SIGSTOP)
    time.sleep(world.rng.uniform(4, 8))
    begin = time.monotonic()
    os.kill(daemon.pid, signal.SIGCONT)
    world.recovered_from(run, begin, None)
    world.check_end(run)
    if daemon.said("has been silent"):
        raise Failed("the daemon blames others for its own silence")


def kill_daemon(world: World) -> None:
    daemon, run = one_machine(world, SHORT_RUN)
    children = [daemon.child(what) for what in ("worker tiny/cpu:0", "worker tiny/cpu:1", "supervisor tiny")]
    begin = time.monotonic()
    daemon.kill()
    wait("its processes end", lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))
    daemon.start()
    world.recovered_from(run, begin, None)
    world.check_end(run)


def stop_thread(world: World, what: str, thread: str, text: str, *settings: str) -> None:
    """One thread of a process is held, while the others go on: a deadlock, or a device that does not answer."""
    daemon, run = one_machine(world, SHORT_RUN, *settings)
    since = daemon.log.stat().st_size
    pid = daemon.child(what)
    if pid is None:
        raise Failed(f"no process {what}")
    begin = time.monotonic()
    with thread_stop.held(pid, thread):
        world.recovered_from(run, begin, lambda: daemon.said(f"{what} has {text}", since))
    world.check_end(run)


def full_disk(world: World) -> None:
    output = world.directory / "tiny"
    output.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(output)], check=True)
    filler = output / "filler"
    try:
        daemon, run = one_machine(world)
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(b"\0" * 4096)
        log = daemon.state / "logs" / "tiny" / "supervisor.log"
        begin = time.monotonic()
        wait("a checkpoint fails", lambda: b"was not written, the one before stays valid" in log.read_bytes())
        world.result.detected_s = time.monotonic() - begin
        daemon.ask("pause", "tiny")
        filler.unlink()
        daemon.ask("resume", "tiny")
        wait("the run ends", lambda: daemon.run("tiny").get("state") in ("done", "failed"))
        last = daemon.run("tiny")
        if last["state"] != "done":
            raise Failed(f"the run is {last['state']}: {last.get('message')}")
        # Lines of metrics.jsonl that found no room are lost, and said so; steps are not.
        if last["step"] != last["steps_total"] or run.masters() != world.undisturbed().masters():
            raise Failed("the parameters are not those of an undisturbed run")
    finally:
        for daemon in world.daemons:
            daemon.kill()
        subprocess.run(["umount", "-l", str(output)], check=False)


def many_restarts(world: World) -> None:
    """A worker dies again and again; more often than its limit allows within its window it must not be."""
    daemon, run = one_machine(world)
    for _ in range(4):
        daemon.send(world.rng.choice(["worker tiny/cpu:0", "worker tiny/cpu:1"]), signal.SIGKILL)
        run.wait_next()
        time.sleep(world.rng.uniform(0, 0.5))
        wait("both are there", lambda: daemon.child("worker tiny/cpu:0") and daemon.child("worker tiny/cpu:1"))
    world.check_end(run)


def pause(world: World) -> None:
    """How long a pause takes, beside a question that waits for nothing, and a step."""
    daemon, run = one_machine(world)
    waits = []
    for _ in range(5):
        run.wait_next()
        begin = time.monotonic()
        daemon.ask("status", "tiny")
        asked = time.monotonic()
        if daemon.ask("pause", "tiny") is None:
            raise Failed("a pause is not answered")
        waits.append(time.monotonic() - asked - (asked - begin))
        daemon.ask("resume", "tiny")
    begin, first = time.monotonic(), run.step()
    run.wait_step(first + 20)
    step_ms = 1000 * (time.monotonic() - begin) / (run.step() - first)
    pause_ms = 1000 * statistics.median(waits)
    world.result.notes.append(f"a pause took {pause_ms:.0f} ms more than a question, a step {step_ms:.0f} ms")
    world.check_end(run)


# --- two machines --------------------------------------------------------------------------------------------------


def two_machines(world: World, trainers: list[str]) -> tuple[Daemon, Daemon, Run]:
    world.start(["alpha", "beta"])
    # Bits that differ lead further apart with every step: where they may, few steps are compared.
    settings = ["train.epochs=20"] if len(trainers) > 1 else []
    run = world.submit(["alpha/cpu:0", "beta/cpu:0"], trainers, "train.micro_batches_per_step=4", *settings)
    world.begin(run)
    return world.daemons[0], world.daemons[1], run


def lose_beta(world: World, trainers: list[str], lose: Callable[[Daemon], None], heal: Callable[[Daemon], None],
              seconds: float) -> None:
    alpha, beta, run = two_machines(world, trainers)
    since = alpha.log.stat().st_size
    begin = time.monotonic()
    lose(beta)
    world.recovered_from(run, begin, lambda: alpha.said("node beta at", since))
    time.sleep(seconds)
    heal(beta)
    world.check_end(run, same_bits=len(trainers) == 1)


def stop_other_daemon(world: World) -> None:
    lose_beta(world, ["alpha/cpu:1"], lambda beta: os.kill(beta.pid, signal.SIGSTOP),
              lambda beta: os.kill(beta.pid, signal.SIGCONT), world.rng.uniform(0, 3))


def restart_other_daemon(world: World) -> None:
    """Killed and back before its silence is noticed."""
    alpha, beta, run = two_machines(world, ["alpha/cpu:1", "beta/cpu:1"])
    since = alpha.log.stat().st_size
    begin = time.monotonic()
    beta.kill()
    beta.start()
    world.recovered_from(run, begin, lambda: alpha.said("node beta at", since))
    world.check_end(run, same_bits=False)


def kill_first_daemon(world: World) -> None:
    alpha, _, run = two_machines(world, ["alpha/cpu:1"])
    begin = time.monotonic()
    alpha.kill()
    alpha.start()
    world.recovered_from(run, begin, None)
    world.check_end(run)


def cut(world: World, trainers: list[str]) -> None:
    lose_beta(world, trainers, lambda _: world.switch.link("beta", "down"), lambda _: world.switch.link("beta", "up"),
              world.rng.uniform(0, 3))


def one_way(world: World, loser: str) -> None:
    """What one node sends to the other is lost, while the other way works."""
    to = {"alpha": 2, "beta": 1}[loser]
    number = {"alpha": 0, "beta": 1}[loser]

    def route(verb: str) -> None:
        ip("-n", world.daemons[number].namespace, "route", verb, "blackhole", f"10.77.0.{to}/32")

    lose_beta(world, ["alpha/cpu:1"], lambda _: route("add"), lambda _: route("del"), world.rng.uniform(0, 3))


SCENARIOS: dict[str, Callable[[World], None]] = {
    "kill-target": lambda w: hit(w, "worker tiny/cpu:0", signal.SIGKILL, SHORT_RUN),
    "kill-trainer": lambda w: hit(w, "worker tiny/cpu:1", signal.SIGKILL, SHORT_RUN),
    "kill-supervisor": lambda w: hit(w, "supervisor tiny", signal.SIGKILL, SHORT_RUN),
    "kill-daemon": kill_daemon,
    "stop-target": lambda w: hit(w, "worker tiny/cpu:0", signal.SIGSTOP),
    "stop-trainer": lambda w: hit(w, "worker tiny/cpu:1", signal.SIGSTOP, SHORT_RUN),
    "stop-supervisor": lambda w: hit(w, "supervisor tiny", signal.SIGSTOP, SHORT_RUN),
    "stop-daemon": stop_daemon,
    "stuck-reader": lambda w: stop_thread(w, "worker tiny/cpu:1", "", "been silent"),
    "hung-device": lambda w: stop_thread(w, "worker tiny/cpu:1", "cpu:1", "been at ", "cluster.lease_seconds=2"),
    "pause": pause,
    "restarts": many_restarts,
    "ten-deaths": lambda w: deaths(w, 10),
    "hundred-deaths": lambda w: deaths(w, 100),
    "clock-jumps": clock_jumps,
    "clock-jumps-of-two-machines": clock_jumps_of_two,
    "full-disk": full_disk,
    "stop-other-daemon": stop_other_daemon,
    "kill-other-daemon": lambda w: lose_beta(w, ["alpha/cpu:1", "beta/cpu:1"], Daemon.kill, Daemon.start, w.rng.uniform(0, 3)),
    "kill-other-daemon-back-at-once": restart_other_daemon,
    "kill-first-daemon-back-at-once": kill_first_daemon,
    "cut-link-to-targets": lambda w: cut(w, ["alpha/cpu:1"]),
    "cut-link-between-trainers": lambda w: cut(w, ["alpha/cpu:1", "beta/cpu:1"]),
    "lose-one-way-from-first": lambda w: one_way(w, "alpha"),
    "lose-one-way-to-first": lambda w: one_way(w, "beta"),
    **PAIRS,
}
SHORT = ["ten-deaths", "kill-trainer", "kill-only-pair", "stop-target", "hung-device", "cut-link-to-targets",
         "kill-first-daemon-back-at-once"]
# Killed at once, so that nothing is to be found by silence.
BY_SILENCE = ("stop-", "stuck-", "cut-", "lose-")


def run_one(name: str, options: argparse.Namespace, directory: Path, seed: int) -> bool:
    world = World(options, directory, random.Random(seed))
    verdict = "ok"
    try:
        SCENARIOS[name](world)
    except Skipped as why:
        verdict = f"skipped: {why}"
    except (Failed, OSError, subprocess.SubprocessError) as error:
        verdict = f"FAILED (seed {seed}): {error}"
    finally:
        world.close()
    result = world.result
    late = ""
    if name.startswith(BY_SILENCE) and result.detected_s and result.detected_s > DETECT_S:
        late = f"seen after {result.detected_s:.1f} s"
    elif result.recovered_s and result.recovered_s > RECOVER_S:
        late = f"recovered after {result.recovered_s:.1f} s"
    if verdict == "ok" and late:
        verdict = f"ok, late: the machine is busy: {late}" if options.patient else f"FAILED: {late}"
    print(f"{name:34} {seconds(result.detected_s)} {seconds(result.recovered_s)}  "
          f"{'; '.join([verdict, *result.notes])}", flush=True)
    if not verdict.startswith("FAILED") and not options.keep:
        shutil.rmtree(directory, ignore_errors=True)
    return not verdict.startswith("FAILED")


def seconds(value: float | None) -> str:
    return "       -" if value is None else f"{value:6.2f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True, help="the percheron program")
    parser.add_argument("--files", required=True, help="the program tiny_files")
    parser.add_argument("--work", help="directory for everything; default: a temporary one")
    parser.add_argument("--scenario", action="append", choices=[*SCENARIOS], help="only this; may be repeated")
    parser.add_argument("--short", action="store_true", help="a few of them")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--patient", action="store_true", help="what comes late is no failure: the machine is busy")
    parser.add_argument("--keep", action="store_true", help="keep the files of what went well, too")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # Namespaces and daemons are cleared away.
    if why := namespaces_work():
        print(f"skipped: {why}")
        return SKIPPED
    work = Path(options.work or tempfile.mkdtemp(prefix="faults-"))
    seed = options.seed if options.seed is not None else random.randrange(1 << 30)
    print(f"seed {seed}, files in {work}")
    print(f"{'scenario':34} {'detected':>8} {'recovered':>9} result")
    names = options.scenario or (SHORT if options.short else [*SCENARIOS])
    well = True
    for number in range(options.rounds):
        for name in names:
            well = run_one(name, options, work / f"{number}-{name}", seed + number) and well
    if well and options.work is None:
        shutil.rmtree(work, ignore_errors=True)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
