"""Timing of repeated work, in the form that the comparison reads."""
import time
from collections.abc import Callable
from dataclasses import dataclass, field

RUNS_MIN = 3


@dataclass
class Timings:
    """What each run took. Processor time counts all threads."""

    wall_seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)


def time_runs(work: Callable[[], object], seconds: float, runs_min: int = RUNS_MIN) -> Timings:
    """Runs `work`, warmed up by the caller, until `seconds` have passed and at least `runs_min` times."""
    timings = Timings()
    begin = time.perf_counter()
    while len(timings.wall_seconds) < runs_min or time.perf_counter() - begin < seconds:
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        timings.wall_seconds.append(time.perf_counter() - wall)
        timings.cpu_seconds.append(time.process_time() - cpu)
    return timings
