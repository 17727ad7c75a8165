"""Compare Tuplewire with its peers, in ratios of one run; see README.md in this folder.

Exit status: 0 if every message arrived once, regardless of timings; 1 if a message was lost or duplicated.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from agent import BenchError
from asked import ASK, measure_asked
from links import Latencies, Links, Trial
from looked import LOOKED, measure_looked
from offered import OFFERED, measure_offered
from profiling import profiled
from report import (
    LATENCIES,
    LATENCY_RATE,
    ROWS,
    Cell,
    LatencyRow,
    Line,
    Row,
    latency_lines,
    progress,
    table,
    throughput_lines,
)
from scrape import SCRAPE, measure_scrape
from spark_rows import ROUNDS as SPARK_ROUNDS
from spark_rows import SPARK_ROWS, measure_spark
from team_rows import TEAM_ROWS, measure_team
from workload import MESSAGE_BYTES

ROUNDS = 5
LATENCY_ROUNDS = 3
CHECKED_MESSAGES = 20_000


def _matches(name: str, only: str | None) -> bool:
    return only is None or name == only or name.startswith(f"{only}/")


def measure_throughput(links: Links, rows: Sequence[Row], seconds: float) -> list[Line]:
    """Run every cell once per round, for ROUNDS rounds; `seconds` is the total time."""
    cells = list(dict.fromkeys(cell for row in rows for cell in (row.cell, *(a.cell for a in row.against))))
    for cell in cells:
        progress(f"check: {CHECKED_MESSAGES:,} numbered messages over {cell.link}, frames of {cell.frame}")
        links[cell.link].check(cell.frame, CHECKED_MESSAGES if cell.frame > 1 else CHECKED_MESSAGES // 10)
    each = seconds / ROUNDS / len(cells)
    rounds: list[dict[Cell, Trial]] = []
    for number in range(1, ROUNDS + 1):
        rounds.append({})
        for position, cell in enumerate(cells, 1):
            done = f"round {number} of {ROUNDS}, {position} of {len(cells)}"
            progress(f"{done}: {cell.link}, frames of {cell.frame}")
            rounds[-1][cell] = links[cell.link].trial(cell.frame, each, cell.look)
    return throughput_lines(rows, rounds)


def measure_latency(links: Links, rows: Sequence[LatencyRow], seconds: float) -> list[Line]:
    """Send at a fixed rate over every link of these rows, in turns; `seconds` is the total time."""
    names = list(dict.fromkeys((name, row.stop_seconds) for row in rows for name in row.links))
    each = max(seconds / LATENCY_ROUNDS / len(names), 0.5)
    rounds: list[dict[tuple[str, float], Latencies]] = []
    for number in range(1, LATENCY_ROUNDS + 1):
        rounds.append({})
        for name, stop_seconds in names:
            progress(f"{LATENCY_RATE} messages/s, round {number} of {LATENCY_ROUNDS}: {name}")
            # A trial with a stop is long enough to include the time after the stop.
            trial_seconds = each if not stop_seconds else max(each, 4 * stop_seconds)
            rounds[-1][name, stop_seconds] = links[name].paced(LATENCY_RATE, trial_seconds, stop_seconds)
    lines = []
    for row in rows:
        own = [{name: by_name[name, row.stop_seconds] for name in row.links} for by_name in rounds]
        lines += latency_lines(row, own)
    return lines


def _arguments() -> argparse.Namespace:
    rows = [*(row.name for row in ROWS), *(row.name for row in LATENCIES)]
    names = [*rows, OFFERED, LOOKED, *TEAM_ROWS, ASK, SCRAPE, *SPARK_ROWS]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seconds", type=float, default=180.0, help="time to measure, without Spark's rows (default: 180)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--only", metavar="ROW", help=f"a row, or all that begin with it: {', '.join(names)}")
    parser.add_argument(
        "--profile", metavar="ROW", help="run one row, without its peers, and print a profile of each process"
    )
    arguments = parser.parse_args()
    for wanted in (arguments.only, arguments.profile):
        if not any(_matches(name, wanted) for name in names):
            parser.error(f"no row {wanted!r}; there are: {', '.join(names)}")
    return arguments


def _measure(only: str | None, seconds: float) -> list[Line]:
    rows = [row for row in ROWS if _matches(row.name, only)]
    latencies = [row for row in LATENCIES if _matches(row.name, only)]
    offered, looked = _matches(OFFERED, only), _matches(LOOKED, only)
    weights = {
        "rows": 6 * bool(rows),
        "latencies": 4 * bool(latencies),
        "offered": 4 * offered,
        "looked": 4 * looked,
    }
    each = seconds / max(1, sum(weights.values()))
    lines: list[Line] = []
    with Links() as links:
        if rows:
            lines += measure_throughput(links, rows, each * weights["rows"])
        if latencies:
            lines += measure_latency(links, latencies, each * weights["latencies"])
        if offered:
            lines += measure_offered(links, each * weights["offered"], progress)
        if looked:
            lines += measure_looked(links, each * weights["looked"], progress)
        if team := [name for name in TEAM_ROWS if _matches(name, only)]:
            lines += measure_team(links, team, progress)
        for link in links.started():
            link.still()
    if _matches(ASK, only):
        lines += measure_asked(progress)
    if _matches(SCRAPE, only):
        lines += measure_scrape(progress)
    if spark := [name for name in SPARK_ROWS if _matches(name, only)]:
        lines += measure_spark(spark, progress)
    progress("")
    return lines


def main() -> int:
    """Run the measurements of the command line."""
    arguments = _arguments()
    started = time.monotonic()
    try:
        if arguments.profile:
            print(profiled(arguments.profile, arguments.seconds))
            return 0
        lines = _measure(arguments.only, arguments.seconds)
    except BenchError as error:
        progress("")
        print(f"bench: {error}", file=sys.stderr)
        return 1
    machine: dict[str, Any] = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "seconds": round(time.monotonic() - started, 1),
    }
    if arguments.json:
        print(json.dumps({**machine, "lines": [asdict(line) for line in lines]}, indent=1))
    else:
        print(table(lines))
        print(
            f"\n{MESSAGE_BYTES}-byte messages, medians of {ROUNDS} rounds ({SPARK_ROUNDS} with Spark), "
            f"{machine['seconds']:.0f} s in all. Compare the ratios; the rates belong to this machine and "
            "moment.\nNothing was lost or doubled, and what was numbered came in order."
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
