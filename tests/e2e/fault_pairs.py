"""Deaths in runs whose targets are held by two devices each, in one process, and on nodes that are lost with such a run."""
from __future__ import annotations

import signal
import time
from collections.abc import Callable

from cluster import Daemon, Failed, Run, wait
from fault_world import World

PAIR = ["cpu:0", "cpu:1"]
SETTINGS = ["placement.tensor_parallel=2"]
ACROSS = [*SETTINGS, "cluster.successor_seconds=4", "checkpoint.every_steps=10"]
FEW = 10  # epochs, by which it is found out how many last
RUN_S = 30  # of an undisturbed run: a machine is lost, another goes on, and the first is back and taken in


def on(node: str, devices: list[str]) -> list[str]:
    return [f"{node}/{device}" for device in devices]


def ready(daemon: Daemon) -> dict[str, int]:
    """The processes of the run that work, and how often each was started again."""
    return {f"{worker['node']}/{worker['device']}": worker["restarts"] for worker in daemon.run("tiny").get("workers", [])
            if worker["state"] == "ready"}


def in_pairs(world: World, targets: list[str], trainer: str, *settings: str) -> Run:
    world.plain_targets = PAIR
    run = world.submit(targets, [trainer], *settings)
    world.begin(run)
    return run


def across(world: World, targets: list[str], trainer: str) -> tuple[Daemon, Daemon, Run]:
    """On two machines, with the supervisor on alpha."""
    world.start(["alpha", "beta"])
    before = world.done_before(targets, [trainer], *ACROSS, f"train.epochs={FEW}")
    run = in_pairs(world, targets, trainer, *ACROSS, world.lasting(before, FEW, RUN_S))
    return world.daemons[0], world.daemons[1], run


def hit(world: World, targets: list[str], trainer: str, what: str, number: signal.Signals = signal.SIGKILL) -> None:
    """On one machine: nobody but the victim begins anew."""
    world.start(["alpha"])
    daemon = world.daemons[0]
    run = in_pairs(world, targets, trainer, *SETTINGS)
    processes = len(targets) // 2 + (trainer not in targets)
    if len(before := ready(daemon)) != processes:
        raise Failed(f"the run has {before} for processes and should have {processes}")
    world.hit(daemon, run, f"worker tiny/{what}", number)
    expected = before | {f"alpha/{what}": 1}
    wait(f"all are ready and were started again {expected} times", lambda: ready(daemon) == expected, poll_s=0.1)
    world.check_end(run)


def successor(world: World, targets: list[str], trainer: str) -> None:
    """The machine of the supervisor is lost; beta, which has a pair of the run, goes on with it. Then it is back, and so
    are the pairs on it."""
    alpha, beta, run = across(world, targets, trainer)
    processes = set(ready(alpha))
    since = beta.log.stat().st_size
    begin = time.monotonic()
    alpha.kill()
    world.recovered_from(run, begin, lambda: beta.said("taken over by node beta", since))
    alpha.start()
    wait("alpha's processes are back", lambda: set(ready(beta)) == processes, poll_s=0.1)
    run.wait_next()
    wait("alpha hears that the run is on beta", lambda: alpha.run("tiny").get("node") == "beta")
    world.check_end(run)


def lose_the_only_pair(world: World) -> None:
    """Nobody can go on without the machine: the run waits for it, and says so."""
    alpha, beta, run = across(world, on("alpha", PAIR), "beta/cpu:4")
    alpha.kill()
    wait("beta says for what the run waits",
         lambda: "no target is left without it" in str(beta.run("tiny").get("message")))
    time.sleep(world.rng.uniform(4, 6))  # Longer than successors take.
    begin = time.monotonic()
    alpha.start()
    world.recovered_from(run, begin, None)
    if (node := beta.run("tiny")["node"]) != "alpha":
        raise Failed(f"the run is on node {node}")
    world.check_end(run)


PAIRS: dict[str, Callable[[World], None]] = {
    "kill-pair": lambda w: hit(w, [*PAIR, "cpu:2", "cpu:3"], "cpu:4", "cpu:0+1"),
    "kill-only-pair": lambda w: hit(w, PAIR, "cpu:4", "cpu:0+1"),
    "kill-pair-with-trainer": lambda w: hit(w, PAIR, "cpu:1", "cpu:0+1"),
    "kill-trainer-beside-pair": lambda w: hit(w, PAIR, "cpu:4", "cpu:4"),
    "stop-pair": lambda w: hit(w, [*PAIR, "cpu:2", "cpu:3"], "cpu:4", "cpu:2+3", signal.SIGSTOP),
    "successor-with-pairs": lambda w: successor(w, [*on("alpha", PAIR), *on("beta", PAIR)], "beta/cpu:4"),
    "successor-with-trainer-in-pair": lambda w: successor(w, [*on("alpha", PAIR), *on("beta", PAIR)], "beta/cpu:1"),
    "successor-beside-pair-elsewhere": lambda w: successor(w, on("beta", PAIR), "beta/cpu:4"),
    "lose-only-pair-with-supervisor": lose_the_only_pair,
}
