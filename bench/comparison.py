"""Runs both sides of a comparison in turn, each measurement a process of its own, and reports them."""
import json
import math
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OURS = "percheron"
MEASUREMENT_SECONDS_MAX = 1800

# What makes PyTorch fastest on a CPU, so that its best is what we compare with: threads that do not spin beside the
# next one's work, and an allocator that keeps freed memory, in huge pages, instead of faulting it in anew every step.
# The compiler's own pool of processes would stay beside the measurement.
PYTORCH_ENVIRONMENT = {
    "OMP_WAIT_POLICY": "passive",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "1000000000000",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}


@dataclass
class Series:
    """One program's runs of a case, all rounds together."""

    name: str
    command: list[str]
    rates: list[float] = field(default_factory=list)  # tokens a second, one a run
    lines: list[dict[str, Any]] = field(default_factory=list)  # as the program printed them, one a round
    failure: str = ""

    def best(self) -> float:
        return max(self.rates, default=math.nan)

    def median(self) -> float:
        return statistics.median(self.rates) if self.rates else math.nan


@dataclass
class Case:
    """What is compared: ours, and PyTorch's variants. Without variants, ours is only reported."""

    kind: str
    dtype: str
    label: str
    ours: Series
    variants: list[Series]

    def best_variant(self) -> Series | None:
        return max((v for v in self.variants if v.rates), key=Series.best, default=None)

    def ratio(self) -> float:
        best = self.best_variant()
        return self.ours.best() / best.best() if best and self.ours.rates else math.nan


def environment(name: str, threads: int) -> dict[str, str]:
    """Ours runs as a user would start it; PyTorch in the environment that makes it fastest."""
    plain = {key: value for key, value in os.environ.items() if key not in PYTORCH_ENVIRONMENT}
    return plain if name == OURS else {**plain, **PYTORCH_ENVIRONMENT, "OMP_NUM_THREADS": str(threads)}


def run(series: Series, threads: int) -> None:
    """One measurement, added to the series; a failure is kept and ends the series."""
    try:
        process = subprocess.run(
            series.command,
            cwd=ROOT,
            env=environment(series.name, threads),
            capture_output=True,
            text=True,
            timeout=MEASUREMENT_SECONDS_MAX,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        series.failure = str(error)
        return
    if process.returncode != 0:
        last = process.stderr.strip().splitlines()[-1:] or ["no message"]
        series.failure = f"ended with {process.returncode}: {last[0]}"
        return
    line = json.loads(process.stdout.splitlines()[-1])
    series.lines.append(line)
    series.rates += [line["tokens"] / seconds for seconds in line["wall_seconds"]]


def measure(case: Case, rounds: int, threads: int) -> None:
    """Ours and the variants in turn, `rounds` times."""
    for number in range(1, rounds + 1):
        for series in [case.ours, *case.variants]:
            if series.failure:
                continue
            run(series, threads)
            outcome = series.failure or f"best so far {series.best():,.0f} tokens/s"
            what = f"round {number}/{rounds}  {case.kind} {case.dtype} {case.label}"
            print(f"{what}  {series.name}: {outcome}", file=sys.stderr, flush=True)


def geometric_means(cases: list[Case]) -> dict[str, float]:
    """The mean ratio over the forward's shapes, by dtype."""
    means = {}
    for dtype in sorted({case.dtype for case in cases}):
        ratios = [c.ratio() for c in cases if c.kind == "forward" and c.dtype == dtype and c.variants]
        if ratios and not any(map(math.isnan, ratios)):
            means[dtype] = statistics.geometric_mean(ratios)
    return means


def number(value: float, digits: int = 0) -> str:
    return "-" if math.isnan(value) else f"{value:,.{digits}f}"


def row(cells: tuple[str, ...], width: int) -> str:
    """A line of the table: what, five numbers, and a name if there is one."""
    numbers = "".join(cell.rjust(columns) for cell, columns in zip(cells[1:6], (11, 10, 14, 10, 8)))
    return f"{cells[0]:{width}}{numbers}  {''.join(cells[6:])}".rstrip()


def case_cells(case: Case) -> tuple[str, ...]:
    line = case.ours.lines[-1] if case.ours.lines else {}
    note = "" if line.get("products", case.dtype) == case.dtype else " (ours: products in f32)"
    best = case.best_variant()
    theirs = (number(best.best()), number(best.median())) if best else ("-", "-")
    ours = (number(case.ours.best()), number(case.ours.median()))
    what = f"{case.kind} {case.dtype} {case.label}{note}"
    return (what, *ours, *theirs, number(case.ratio(), 2), best.name if best else "")


def table(cases: list[Case]) -> str:
    """For people: a line for each case, the means, and what failed."""
    rows = [("real tokens/s", "ours best", "median", "PyTorch best", "median", "ratio", "PyTorch's best variant")]
    rows += map(case_cells, cases)
    for dtype, mean in geometric_means(cases).items():
        rows.append((f"forward {dtype}, geometric mean of the shapes", "", "", "", "", number(mean, 2)))
    width = max(len(cells[0]) for cells in rows)
    lines = [row(cells, width) for cells in rows]
    for case in cases:
        for series in (case.ours, *case.variants):
            if series.failure:
                lines.append(f"failed: {case.kind} {case.dtype} {case.label}, {series.name}: {series.failure}")
    return "\n".join(lines)


def report(cases: list[Case], settings: dict[str, Any]) -> dict[str, Any]:
    """For programs: the settings, and all that was measured."""

    def of(series: Series) -> dict[str, Any]:
        return {
            "name": series.name,
            "best": series.best() if series.rates else None,
            "median": series.median() if series.rates else None,
            "failure": series.failure or None,
            "rounds": series.lines,
        }

    return {
        "settings": settings,
        "geometric_mean_of_forward_ratios": geometric_means(cases),
        "cases": [
            {
                "case": case.kind,
                "dtype": case.dtype,
                "label": case.label,
                "ours": of(case.ours),
                "pytorch": [of(variant) for variant in case.variants],
                "best_variant": best.name if (best := case.best_variant()) else None,
                "ratio": None if math.isnan(case.ratio()) else case.ratio(),
            }
            for case in cases
        ],
    }
