"""Processes of one run that die again and again, as on machines that go bad."""
from __future__ import annotations

import signal
import time

from cluster import Daemon, Failed, wait
from fault_world import World

PROVEN_S = 5.5  # of work after which a death does not count against a process; the service asks for 5
DEATH_S = 1.2  # of an undisturbed run, that a death and what follows it are given
FEW = 12  # deaths, of which no process has as many as give it up


class Lives:
    """Which workers of the run have lived long enough to die."""

    def __init__(self, daemons: list[Daemon], work_s: float) -> None:
        self.work_s = work_s
        self.daemons = {daemon.name: daemon for daemon in daemons}
        self._since: dict[tuple[str, str, int], tuple[float, int]] = {}  # a life -> when it began to work, and the step
        self._best = 0  # the highest step: what is done again is no progress

    def proven(self) -> list[tuple[Daemon, str]]:
        status = next(iter(self.daemons.values())).run("tiny")
        self._best = max(self._best, status.get("step", 0))
        now = time.monotonic()
        found = []
        for worker in status.get("workers", []):
            life = (worker["node"], worker["device"], self.daemons[worker["node"]].child(f"worker tiny/{worker['device']}") or 0)
            if worker["state"] != "ready" or life[2] == 0:
                continue
            since, step = self._since.setdefault(life, (now, self._best))
            if now - since > self.work_s and self._best > step:
                found.append((self.daemons[worker["node"]], f"worker tiny/{worker['device']}"))
        return found


SETTINGS = ["train.micro_batches_per_step=4", "checkpoint.every_steps=10"]


def deaths(world: World, number: int) -> None:
    """With one trainer, so that the bits are those of an undisturbed run. Each victim has worked and got on since it was
    started: none may be given up, however often it dies, nor be waited for longer than the first time."""
    world.start(["alpha", "beta"])
    alpha, beta = world.daemons
    targets, trainers = ["alpha/cpu:0", "alpha/cpu:2", "beta/cpu:0"], ["alpha/cpu:1"]
    before = world.done_before(targets, trainers, *SETTINGS, f"train.epochs={FEW}")
    # It does little between two deaths, and has to outlast all of them.
    run = world.submit(targets, trainers, *SETTINGS, world.lasting(before, FEW, number * DEATH_S))
    world.begin(run)
    lives = Lives(world.daemons, PROVEN_S if number > FEW else 0)
    killed: dict[str, int] = {}
    begin = time.monotonic()
    for count in range(1, number + 1):
        if count % max(5, number // 4) == 0:
            what, victim = "daemon", world.rng.choice([alpha, beta])
            victim.kill()
            victim.start()
        elif count % max(4, number // 3) == 0:
            what = "supervisor"
            alpha.send("supervisor tiny", signal.SIGKILL)
        else:
            what = "worker"
            wait("a worker lives", lambda: lives.proven() or not_done(alpha))
            daemon, process = world.rng.choice(lives.proven() or [(alpha, "worker tiny/cpu:0")])
            daemon.send(process, signal.SIGKILL)
        killed[what] = killed.get(what, 0) + 1
        run.wait_next()
    took = time.monotonic() - begin
    world.result.notes.append(", ".join(f"{n} x {what}" for what, n in killed.items()) + f" in {took:.0f} s")
    if number > FEW and (waited := [line for line in worker_waits(alpha) if line > 0.5]):
        raise Failed(f"a worker that had lived was waited for {max(waited)} s")
    world.check_end(run)


def not_done(daemon: Daemon) -> bool:
    state = daemon.run("tiny").get("state")
    if state in ("done", "failed", "stopped"):
        raise Failed(f"the run is {state} before all deaths")
    return False


def worker_waits(daemon: Daemon) -> list[float]:
    """For which workers were waited for, as the supervisor's log says."""
    mark = "is started again in "
    log = (daemon.state / "logs" / "tiny" / "supervisor.log").read_text()
    return [float(line.split(mark)[1].split(" s")[0]) for line in log.splitlines() if mark in line]
