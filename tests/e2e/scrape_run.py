#!/usr/bin/env python3
"""Lets a real Prometheus scrape a real run and asks every question of the dashboard and of the alert rules.

    .venv/bin/python tests/e2e/scrape_run.py --program build/release/bin/percheron --config RUN.yaml --work DIRECTORY

The run must last longer than --seconds; it is ended by SIGTERM. Exit code 0 when everything answers, 1 with one line for
each thing that does not, 77 where there is no Prometheus (tools/setup/test_programs.sh fetches one). --draw FILE also draws
the dashboard, with the panels that have data.
"""
from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "deploy" / "monitoring"
sys.path.insert(0, str(MONITORING))

from draw_dashboard import ask, draw, expression  # noqa: E402

SKIPPED = 77
SCRAPE_S = 1
RATE_INTERVAL = "8s"
# What a run without a GPU driver has no data for.
KNOWN_EMPTY = ("percheron_gpu_",)
SELECTOR = re.compile(r"(?:percheron_\w+|\bup)(?:\{[^}]*\})?")


def prometheus_programs() -> tuple[str, str] | None:
    path = os.pathsep.join([os.environ.get("PATH", ""), str(ROOT / "build" / "prometheus")])
    server, tool = shutil.which("prometheus", path=path), shutil.which("promtool", path=path)
    return (server, tool) if server and tool else None


def fetch(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def wait_until(what: str, seconds: float, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if holds():
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise TimeoutError(f"{what}: not within {seconds:.0f} s")


def counters(page: str) -> dict[str, float]:
    """Every counter of a page, with the counts of histograms."""
    lines = (line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in lines if re.match(r"\w+(_total|_count|_sum|_bucket)\b", name)}


class Run:
    """The program, training with its metrics on a free port."""

    def __init__(self, program: str, config: str, log: Path) -> None:
        self.log = log
        with log.open("w") as out:
            self.process = subprocess.Popen([program, "train", "-c", config, "--metrics", "127.0.0.1:0"], stdout=out,
                                            stderr=subprocess.STDOUT, cwd=ROOT)
        wait_until("the address of the metrics", 60, lambda: self.address() is not None or self.process.poll() is not None)
        address = self.address()
        if address is None:
            raise RuntimeError(f"the run ended: {log.read_text()[-500:]}")
        self.base = f"http://{address}"

    def address(self) -> str | None:
        found = re.search(r"metrics: http://(\S+)/metrics", self.log.read_text())
        return found[1] if found else None

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


class Prometheus:
    """A server of its own that scrapes one run with the repository's rules."""

    def __init__(self, program: str, run: Run, work: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        config = (MONITORING / "prometheus.yml").read_text()
        config = re.sub(r"_interval: \w+", f"_interval: {SCRAPE_S}s", config)
        config = config.replace("127.0.0.1:9464", run.base.removeprefix("http://"))
        config = config.replace("alerts.yml", str(MONITORING / "alerts.yml"))
        (work / "prometheus.yml").write_text(config)
        with (work / "prometheus.log").open("w") as out:
            command = [program, f"--config.file={work / 'prometheus.yml'}", f"--web.listen-address={address}",
                       f"--storage.tsdb.path={work / 'tsdb'}"]
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        self.url = f"http://{address}"
        wait_until("Prometheus", 60, lambda: fetch(f"{self.url}/-/ready")[0] == 200)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=60)


def page_problems(run: Run, promtool: str) -> list[str]:
    problems = []
    _, page = fetch(f"{run.base}/metrics")
    checked = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, text=True)
    if checked.returncode != 0:
        problems.append(f"promtool check metrics: {checked.stdout}{checked.stderr}")
    for path in ("healthz", "readyz"):
        code, _ = fetch(f"{run.base}/{path}")
        if code != 200:
            problems.append(f"/{path} answers {code}")
    before = counters(page)
    after = counters(fetch(f"{run.base}/metrics")[1])
    problems += [f"{name} fell from {value} to {after.get(name)}" for name, value in before.items()
                 if after.get(name, -1) < value]
    seconds = []
    for _ in range(50):
        begin = time.perf_counter()
        fetch(f"{run.base}/metrics")
        seconds.append(time.perf_counter() - begin)
    print(f"a scrape: {len(page)} bytes, {page.count(chr(10))} lines, median {1000 * statistics.median(seconds):.2f} ms")
    return problems


def answer_problems(server: str) -> list[str]:
    """Questions of the dashboard and of the rules that have no answer."""
    def is_empty(query: str) -> bool:
        return not ask(server, "query", query=query)["result"]

    problems, asked = [], 0
    for panel in json.loads((MONITORING / "dashboard.json").read_text())["panels"]:
        for target in panel["targets"]:
            query = expression(target, RATE_INTERVAL)
            asked += 1
            if is_empty(query) and not any(name in query for name in KNOWN_EMPTY):
                problems.append(f"panel '{panel['title']}' has no data: {query}")
    rules = [rule for group in ask(server, "rules")["groups"] for rule in group["rules"]]
    if not rules:
        problems.append("no alert rule was loaded")
    for rule in rules:
        if rule["health"] != "ok":
            problems.append(f"rule {rule['name']} is {rule['health']}: {rule.get('lastError')}")
        if rule["state"] == "firing":
            problems.append(f"{rule['name']} fires on a healthy run: {rule['alerts']}")
        # A rule is silent when healthy; what it looks at must be there all the same.
        for selector in SELECTOR.findall(rule["query"]):
            asked += 1
            if is_empty(selector):
                problems.append(f"rule {rule['name']} looks at what is not there: {selector}")
    print(f"{asked} questions to Prometheus, {len(rules)} rules")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True, help="percheron")
    parser.add_argument("--config", required=True, help="of a run that lasts longer than --seconds")
    parser.add_argument("--work", type=Path, required=True, help="a directory for Prometheus' files and the logs")
    parser.add_argument("--seconds", type=float, default=12, help="to scrape for (default: 12)")
    parser.add_argument("--draw", type=Path, help="an SVG file for the dashboard")
    options = parser.parse_args()
    programs = prometheus_programs()
    if programs is None:
        print("skipped: no prometheus and promtool; tools/setup/test_programs.sh fetches them into build/test-programs")
        return SKIPPED
    shutil.rmtree(options.work, ignore_errors=True)
    options.work.mkdir(parents=True)
    run = Run(options.program, options.config, options.work / "run.log")
    server = None
    try:
        wait_until("the run", 60, lambda: 'state="training"} 1' in fetch(f"{run.base}/metrics")[1])
        server = Prometheus(programs[0], run, options.work)
        begin = time.time()
        time.sleep(options.seconds)
        problems = page_problems(run, programs[1]) + answer_problems(server.url)
        if options.draw:
            dashboard = json.loads((MONITORING / "dashboard.json").read_text())
            options.draw.write_text(draw(server.url, dashboard, begin + 4 * SCRAPE_S, time.time(), RATE_INTERVAL,
                                         leave_out_empty=True))
    finally:
        if server is not None:
            server.stop()
        exit_code = run.stop() if run.process.poll() is None else run.process.returncode
    if exit_code != 0:
        problems.append(f"the run ended with {exit_code}: {run.log.read_text()[-500:]}")
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
