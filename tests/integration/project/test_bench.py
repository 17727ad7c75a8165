"""The benchmark programs start; the calls of Python functions for a lone message do not vary as times do."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from calls import count, summed
from helpers.tools import output_of

LIMITS = {
    ("producer", "tuplewire"): 49,
    ("worker-0", "tuplewire"): 100,
    ("worker-0", "turns"): 7,
    ("worker-1", "tuplewire"): 82,
    ("worker-1", "turns"): 7,
    ("consumer", "tuplewire"): 39,
}
"""Calls of Tuplewire's functions, about 7 % above the measured ones, and turns of the event loop."""


@pytest.mark.usefixtures("no_fork_server")  # the counter starts with the interpreter
def test_calls_of_a_lone_message() -> None:
    """Each of the four processes stays within its limits. `make bench-calls` lists the functions."""
    least = dict.fromkeys(LIMITS, math.inf)
    for _ in range(10):  # a busy machine has more acknowledgements and turns for each message
        found = count(500)
        least = {(name, kind): min(n, summed(found[name])[kind]) for (name, kind), n in least.items()}
        if all(least[each] <= limit for each, limit in LIMITS.items()):
            return
    raise AssertionError(f"{least} is more than {LIMITS}")


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
