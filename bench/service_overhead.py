#!/usr/bin/env python3
"""The same run by `percheron train` and by the service of one machine, in turn: what processes and frames cost.

    bench/service_overhead.py [--config deploy/demo/eagle3.yaml] [--steps 40] [--rounds 5] [section.key=value ...]

The rows of the configuration must be there (`make demo` prepares its own). Both sides have one target and one trainer on
CPU devices of one core each. Compared is the time from the first step's line in metrics.jsonl to the last one's, so that
neither side's start counts; what a user waits for beside it is printed too. Prints JSON and, last, the ratio of the
medians less one, in percent.
"""
from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PLAIN = ["placement.targets=[cpu:0]", "placement.trainers=[cpu:1]", "placement.threads=1", "train.log_every_steps=1",
         "evaluate.every_steps=0", "evaluate.at_steps=[]", "data.held_out=[]", "checkpoint.every_steps=0",
         "features.cache_memory_bytes_max=0", "features.cache_disk_bytes_max=0"]
POLL_S = 0.05
OVER = ("done", "failed", "stopped")


def step_seconds(output: Path) -> float:
    """Seconds from the first step to the last, for each step between."""
    times = [line["time"] for text in (output / "metrics.jsonl").read_text().splitlines()
             if (line := json.loads(text))["kind"] == "step"]
    if len(times) < 2:
        sys.exit(f"error: {output} has {len(times)} steps; give --steps 2 or more")
    return (times[-1] - times[0]) / (len(times) - 1)


class Bench:
    def __init__(self, options: argparse.Namespace, work: Path) -> None:
        self.options, self.work = options, work
        self.state = work / "node"
        self.settings = [*PLAIN, f"train.steps={options.steps}", *options.settings]

    def program(self, *words: str) -> str:
        done = subprocess.run([self.options.program, *words], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"error: percheron {' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout

    def train(self, output: Path) -> None:
        self.program("train", "-c", self.options.config, *self.settings, f"output.directory={output}")

    def serve(self, output: Path) -> None:
        name = output.name
        self.program("submit", "-c", self.options.config, "--name", name, "--state", str(self.state), *self.settings,
                     f"output.directory={output}")
        while True:
            run = json.loads(self.program("status", name, "--json", "--state", str(self.state)))["runs"][0]
            if run["state"] in OVER:
                break
            time.sleep(POLL_S * 4)
        if run["state"] != "done":
            sys.exit(f"error: the run is {run['state']}: {run.get('message')}")

    def measure(self) -> dict[str, dict[str, list[float]]]:
        results: dict[str, dict[str, list[float]]] = {side: {"step_s": [], "wall_s": []} for side in ("train", "service")}
        for number in range(self.options.rounds):
            # In turn first, so that a machine that slows down slows both.
            sides = [("train", self.train), ("service", self.serve)]
            for side, run in sides if number % 2 == 0 else reversed(sides):
                output = self.work / f"{side}-{number}"
                begin = time.monotonic()
                run(output)
                results[side]["wall_s"].append(time.monotonic() - begin)
                results[side]["step_s"].append(step_seconds(output))
                print(f"{side:8} {1000 * results[side]['step_s'][-1]:8.1f} ms a step, "
                      f"{results[side]['wall_s'][-1]:6.1f} s in all", flush=True)
        return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/release/bin/percheron")
    parser.add_argument("--config", default="deploy/demo/eagle3.yaml")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("settings", nargs="*", help="settings of the run for both sides: section.key=value")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="service-overhead-") as directory:
        bench = Bench(options, Path(directory))
        bench.state.mkdir()
        with (Path(directory) / "node.log").open("wb") as log:
            daemon = subprocess.Popen([options.program, "node", "--name", "bench", "--state", str(bench.state)], stdout=log,
                                      stderr=log)
        try:
            while subprocess.run([options.program, "status", "--state", str(bench.state)], capture_output=True,
                                 check=False).returncode != 0 and daemon.poll() is None:
                time.sleep(POLL_S)
            results = bench.measure()
        finally:
            daemon.terminate()
            daemon.wait()
    print(json.dumps(results))
    train, service = (statistics.median(results[side]["step_s"]) for side in ("train", "service"))
    print(f"the service takes {100 * (service / train - 1):+.1f} % of a step's time more "
          f"({1000 * train:.1f} ms and {1000 * service:.1f} ms, medians of {options.rounds})")


if __name__ == "__main__":
    main()
