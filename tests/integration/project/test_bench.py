"""The benchmark programs start; the calls of Python functions for a lone message do not vary as times do."""

from __future__ import annotations

from pathlib import Path

import pytest
from calls import count, summed
from helpers.tools import output_of

LIMITS = {"producer": 49, "worker-0": 100, "worker-1": 82, "consumer": 39}
"""The calls of Tuplewire's functions for each message, about 7 % above the measured ones."""
MOST_TURNS = 7.0
"""Turns of a worker's event loop for each message."""


@pytest.mark.usefixtures("no_fork_server")  # the counter starts with the interpreter
def test_calls_of_a_lone_message() -> None:
    """Each of the four processes stays within its limit. `make bench-calls` lists the functions."""
    sums = {name: summed(calls) for name, calls in count(500).items()}
    assert {name: of["tuplewire"] for name, of in sums.items() if of["tuplewire"] > LIMITS[name]} == {}
    assert max(sums["worker-0"]["turns"], sums["worker-1"]["turns"]) <= MOST_TURNS


BENCH = Path(__file__).parents[2] / "tools" / "bench"
PROGRAMS = [
    str(path) for path in sorted(BENCH.glob("*.py")) if "parser_of(__doc__)" in path.read_text("utf-8")
]
ALL_HELP = """
import contextlib, runpy, sys
programs = sys.argv[1:]
sys.path[0] = programs[0].rpartition("/")[0]
for sys.argv in [[each, "--help"] for each in programs]:
    with contextlib.suppress(SystemExit):
        runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_they_have_help() -> None:
    """`--help` of each program works with the installed packages alone, here in one process."""
    assert output_of(ALL_HELP, *PROGRAMS).count("usage: ") == len(PROGRAMS)
