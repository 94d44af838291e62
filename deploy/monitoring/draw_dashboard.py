#!/usr/bin/env python3
"""Draws the panels of dashboard.json as one SVG, from what a Prometheus server has scraped.

    deploy/monitoring/draw_dashboard.py --prometheus http://127.0.0.1:9090 --minutes 10 --out monitoring.svg

For where Grafana is not: in a terminal session, in a report, in a test. Needs Python alone. Panels without data say so.
"""
from __future__ import annotations

import argparse
import json
import math
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

DASHBOARD = Path(__file__).with_name("dashboard.json")
COLOURS = ("#2563eb", "#d9480f", "#2b8a3e", "#9c36b5", "#0b7285", "#c2255c", "#5f3dc4", "#846358")
UNIT_PX, ROW_PX, GAP_PX = 50, 26, 8  # of Grafana's grid: 24 units wide
POINTS = 120
LEGEND_ROWS_MAX = 3
STYLE = """
text { font-family: system-ui, "DejaVu Sans", sans-serif; font-size: 11px; fill: #5b6478; }
.page { fill: #ffffff; } .card { fill: #f6f8fb; stroke: #dfe3ea; } .title { font-size: 13px; font-weight: 600; fill: #1d2433; }
.value { font-size: 22px; font-weight: 600; fill: #1d2433; } .grid { stroke: #dfe3ea; }
@media (prefers-color-scheme: dark) { text { fill: #9aa4b8; } .page { fill: #12161f; } .card { fill: #1a2030; stroke: #2c3444; }
.title, .value { fill: #e6e9f0; } .grid { stroke: #2c3444; } }
"""

Points = list[tuple[float, float]]
NamedPoints = list[tuple[str, Points]]


def expression(target: dict[str, Any], rate_interval: str, run: str = ".*") -> str:
    """A target's query with the dashboard's variables filled in."""
    return str(target["expr"]).replace("$__rate_interval", rate_interval).replace("$run", run)


def ask(server: str, path: str, **parameters: str) -> Any:
    """The data of an answer of Prometheus' HTTP API. Raises ValueError with its words when it refuses."""
    url = f"{server.rstrip('/')}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return json.load(answer)["data"]
    except urllib.error.HTTPError as error:
        raise ValueError(f"{url}: {error.read().decode(errors='replace').strip()}") from error


def shown_name(legend: str, labels: dict[str, str]) -> str:
    """`legend` with {{label}} replaced, as Grafana does it."""
    return re.sub(r"{{\s*(\w+)\s*}}", lambda match: labels.get(match[1], ""), legend).strip()


def curves(server: str, panel: dict[str, Any], begin: float, end: float, rate_interval: str) -> NamedPoints:
    """The panel's series, each with its finite points."""
    step = max(1.0, (end - begin) / POINTS)
    found: NamedPoints = []
    for target in panel["targets"]:
        data = ask(server, "query_range", query=expression(target, rate_interval), start=f"{begin:.3f}", end=f"{end:.3f}",
                   step=f"{step:.3f}")
        for series in data["result"]:
            points = [(float(at), float(value)) for at, value in series["values"] if math.isfinite(float(value))]
            if points:
                found.append((shown_name(target["legendFormat"], series["metric"]), points))
    return found


def amount(value: float, unit: str) -> str:
    """`value` as a person reads it."""
    if unit == "percentunit":
        return f"{100 * value:.0f} %"
    if unit == "bytes":
        for name in ("B", "KiB", "MiB", "GiB"):
            if abs(value) < 1024:
                return f"{value:.3g} {name}"
            value /= 1024
        return f"{value:.3g} TiB"
    if unit == "s":
        if value and abs(value) < 1:
            return f"{1000 * value:.3g} ms"
        return f"{value:.3g} s" if abs(value) < 120 else f"{value / 60:.3g} min"
    if unit == "watt":
        return f"{value:.3g} W"
    if value and abs(value) < 0.001:
        return f"{value:.1e}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def nice_ticks(low: float, high: float, unit: str) -> list[float]:
    """About four round numbers from `low` to `high`."""
    if high <= low:
        high = low + (abs(low) or 1)
    raw = (high - low) / 4
    if unit == "bytes":
        step = 2.0 ** math.ceil(math.log2(raw))
    else:
        magnitude = 10.0 ** math.floor(math.log10(raw))
        step = next(factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude >= raw)
    first = math.floor(low / step)
    return [step * (first + i) for i in range(math.ceil(high / step) - first + 1)]


def stacked(series: NamedPoints) -> list[tuple[str, Points, Points]]:
    """Each series' upper and lower edge when they stand on each other."""
    below: dict[float, float] = {}
    layers = []
    for name, points in series:
        lower = [(at, below.get(at, 0.0)) for at, _ in points]
        upper = [(at, below.get(at, 0.0) + value) for at, value in points]
        below.update(upper)
        layers.append((name, upper, lower))
    return layers


def text(x: float, y: float, words: str, style: str = "", anchor: str = "start") -> str:
    return f"<text x='{x:.0f}' y='{y:.0f}' text-anchor='{anchor}'{style and f' class={style!r}'}>{escape(words)}</text>"


def shortened(words: str, pixels: float, pixels_each: float) -> str:
    most = max(1, int(pixels / pixels_each))
    return words if len(words) <= most else words[: most - 1] + "…"


def draw_value(panel: dict[str, Any], series: NamedPoints, width: float, height: float) -> str:
    unit = panel["fieldConfig"]["defaults"].get("unit", "short")
    if panel["options"].get("textMode") == "name":
        latest = max(points[-1][0] for _, points in series)
        words = ", ".join(dict.fromkeys(name for name, points in series if points[-1][0] == latest))
    else:
        words = ", ".join(amount(points[-1][1], unit) for _, points in series)
    size = 22 if len(words) * 14 < width - 20 else 12
    words = shortened(words, width - 24, size * 0.65)
    return f"<text class='value' style='font-size:{size}px' x='12' y='{height / 2 + 18:.0f}'>{escape(words)}</text>"


def legend(names: Sequence[str], width: float, bottom: float) -> tuple[str, float]:
    """A key for each series in rows that end at `bottom`, and where they begin."""
    rows: list[list[str]] = [[]]
    x = 0.0
    for name in names:
        needed = 24 + 6.2 * len(name)
        if x and x + needed > width - 24:
            rows.append([])
            x = 0.0
        x += needed
        rows[-1].append(name)
    left_out = sum(len(row) for row in rows[LEGEND_ROWS_MAX:])
    rows = rows[:LEGEND_ROWS_MAX]
    out, number = "", 0
    top = bottom - 14 * len(rows)
    for i, row in enumerate(rows):
        x, y = 12.0, top + 14 * i + 10
        for name in row:
            colour = COLOURS[number % len(COLOURS)]
            out += f"<rect x='{x:.0f}' y='{y - 6:.0f}' width='12' height='3' fill='{colour}'/>" + text(x + 16, y, name)
            x += 24 + 6.2 * len(name)
            number += 1
        if left_out and i == len(rows) - 1:
            out += text(x, y, f"and {left_out} more")
    return out, top


def draw_curves(panel: dict[str, Any], series: NamedPoints, width: float, height: float, begin: float, end: float) -> str:
    defaults = panel["fieldConfig"]["defaults"]
    unit = defaults.get("unit", "short")
    is_stacked = defaults.get("custom", {}).get("stacking", {}).get("mode") == "normal"
    layers = stacked(series) if is_stacked else [(name, points, []) for name, points in series]
    values = [value for _, upper, _ in layers for _, value in upper]
    low, high = min(values), max(values)
    if "min" in defaults:
        low = min(low, float(defaults["min"]))
    if unit == "percentunit":
        high = max(high, 0.1)
    ticks = nice_ticks(low, high, unit)
    low, high = ticks[0], ticks[-1]
    keys, plot_bottom = legend([name for name, _ in series], width, height - 6)
    left, right, top, bottom = 58.0, width - 12.0, 30.0, plot_bottom - 20

    def place(at: float, value: float) -> str:
        x = left + (at - begin) / (end - begin) * (right - left)
        return f"{x:.1f},{bottom - (value - low) / (high - low) * (bottom - top):.1f}"

    out = ""
    for tick in ticks:
        y = bottom - (tick - low) / (high - low) * (bottom - top)
        out += f"<line class='grid' x1='{left:.0f}' x2='{right:.0f}' y1='{y:.1f}' y2='{y:.1f}'/>"
        out += text(left - 5, y + 4, amount(tick, unit), anchor="end")
    out += text(left, bottom + 14, "0 s") + text(right, bottom + 14, amount(end - begin, "s"), anchor="end")
    for i, (_, upper, lower) in enumerate(layers):
        colour = COLOURS[i % len(COLOURS)]
        if lower:
            edge = " ".join(place(*point) for point in upper + lower[::-1])
            out += f"<polygon points='{edge}' fill='{colour}' fill-opacity='0.35'/>"
        line = " ".join(place(*point) for point in upper)
        out += f"<polyline points='{line}' fill='none' stroke='{colour}' stroke-width='1.5'/>"
    return out + keys


def draw(server: str, dashboard: dict[str, Any], begin: float, end: float, rate_interval: str, leave_out_empty: bool) -> str:
    """The dashboard as an SVG file, its panels where Grafana has them."""
    cards, lowest = "", 0.0
    x_next, y_next, row_height = 0, 0, 0  # in Grafana's grid
    for panel in dashboard["panels"]:
        series = curves(server, panel, begin, end, rate_interval)
        if leave_out_empty and not series:
            continue
        # Without the empty ones the others close up, in Grafana's order.
        if x_next + panel["gridPos"]["w"] > 24:
            x_next, y_next = 0, y_next + row_height
        row_height = panel["gridPos"]["h"]
        x, y = GAP_PX + x_next * UNIT_PX, GAP_PX + y_next * ROW_PX
        width, height = panel["gridPos"]["w"] * UNIT_PX - GAP_PX, row_height * ROW_PX - GAP_PX
        x_next += panel["gridPos"]["w"]
        body = text(12, 20, shortened(panel["title"], width - 16, 7.2), "title")
        if not series:
            body += text(12, height / 2 + 8, "no data")
        elif panel["type"] == "stat":
            body += draw_value(panel, series, width, height)
        else:
            body += draw_curves(panel, series, width, height, begin, end)
        cards += f"<g transform='translate({x},{y})'><rect class='card' width='{width}' height='{height}' rx='6'/>{body}</g>\n"
        lowest = max(lowest, y + height + GAP_PX)
    width = 24 * UNIT_PX + GAP_PX
    size = f"width='{width}' height='{lowest:.0f}'"
    return (f"<svg xmlns='http://www.w3.org/2000/svg' {size} viewBox='0 0 {width} {lowest:.0f}'>\n"
            f"<style>{STYLE}</style>\n<rect class='page' {size}/>\n{cards}</svg>\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prometheus", default="http://127.0.0.1:9090", help="the server that scrapes Percheron")
    parser.add_argument("--minutes", type=float, default=60, help="until now (default: 60)")
    parser.add_argument("--rate-interval", default="1m", help="what rates are taken over; at least four scrapes (default: 1m)")
    parser.add_argument("--leave-out-empty", action="store_true", help="draw no panels without data")
    parser.add_argument("--out", type=Path, required=True, help="the SVG file")
    options = parser.parse_args()
    end = time.time()
    try:
        picture = draw(options.prometheus, json.loads(DASHBOARD.read_text()), end - 60 * options.minutes, end,
                       options.rate_interval, options.leave_out_empty)
    except (OSError, ValueError) as error:
        print(f"error: {options.prometheus} can't be asked: {error}", file=sys.stderr)
        return 1
    options.out.write_text(picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
