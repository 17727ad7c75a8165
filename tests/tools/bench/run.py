"""Compare Tuplewire with its peers, in ratios of one run; see README.md in this folder.

Exit status: 0 if every message arrived once, regardless of timings; 1 if a message was lost or duplicated.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial

from agent import BenchError, parser_of
from links import Links
from looked import LOOKED, measure_looked
from report import Line, progress, table
from rolling import ROLLING, measure_rolling
from rows import LATENCIES, OFFERED, REQUESTS, ROWS, measure, measure_offered
from scrape import SCRAPE, measure_scrape
from spark_rows import ROUNDS as SPARK_ROUNDS
from spark_rows import ROWS as SPARK_ROWS
from spark_rows import measure_spark
from teams import TEAM_ROWS, measure_team
from users import cores_lines, users_table
from workload import MESSAGE_BYTES

ROUNDS = 5
LATENCY_ROUNDS = 3

Measure = Callable[[Links, Sequence[str], float], list[Line]]
GROUPS: Sequence[tuple[Sequence[str], int, Measure]] = (
    ([row.name for row in ROWS], 6, partial(measure, ROUNDS, ROWS)),
    ([row.name for row in LATENCIES], 4, partial(measure, LATENCY_ROUNDS, LATENCIES)),
    ([OFFERED], 4, measure_offered),
    ([LOOKED], 4, measure_looked),
    (TEAM_ROWS, 0, measure_team),
    ([row.name for row in REQUESTS], 0, partial(measure, ROUNDS, REQUESTS)),
    ([SCRAPE], 0, measure_scrape),
    ([ROLLING], 0, measure_rolling),
    ([row.name for row in SPARK_ROWS], 0, measure_spark),
)
"""Rows, with their share of the time, and the function that measures them. Each group has its own links."""
NAMES = [name for names, _, _ in GROUPS for name in names]


def _matches(name: str, only: Sequence[str]) -> bool:
    return not only or any(name == each or name.startswith(f"{each}/") for each in only)


def _arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument(
        "--seconds", type=float, default=180.0, help="time to measure, without Spark's rows (default: 180)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument(
        "--only",
        metavar="ROW",
        action="append",
        default=[],
        help=f"a row, or all that begin with it; may be repeated: {', '.join(NAMES)}",
    )
    arguments = parser.parse_args()
    if not any(_matches(name, arguments.only) for name in NAMES):
        parser.error(f"no row {arguments.only[0]!r}; there are: {', '.join(NAMES)}")
    return arguments


def _measure(only: Sequence[str], seconds: float) -> list[Line]:
    wanted = [
        (matching, weight, measured)
        for names, weight, measured in GROUPS
        if (matching := [name for name in names if _matches(name, only)])
    ]
    each = seconds / max(1, sum(weight for _, weight, _ in wanted))
    lines: list[Line] = []
    for names, weight, measured in wanted:
        with Links() as links:
            lines += measured(links, names, each * weight)
            links.still()
    progress("")
    return lines


def main() -> int:
    """Run the measurements of the command line."""
    arguments = _arguments()
    started = time.monotonic()
    try:
        lines = _measure(arguments.only, arguments.seconds)
    except BenchError as error:
        progress("")
        print(f"bench: {error}", file=sys.stderr)
        return 1
    seconds = time.monotonic() - started
    if arguments.json:
        print(json.dumps({"lines": [asdict(line) for line in lines]}, indent=1))
    else:
        print(table(lines))
        print(
            f"\nPython {platform.python_version()}, {MESSAGE_BYTES}-byte messages, medians of {ROUNDS} "
            f"rounds ({SPARK_ROUNDS} with Spark), {seconds:.0f} s in all. Compare the ratios; the rates "
            "belong to this machine and moment.\nNothing was lost or doubled, and what was numbered came in "
            "order."
        )
        if not arguments.only:
            print(f"\n{users_table(lines)}\n", *cores_lines(), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
