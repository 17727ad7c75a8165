"""The benchmark programs start; no other test runs them."""

from __future__ import annotations

from pathlib import Path

from helpers.scripts import output_of

BENCH = Path(__file__).parents[2] / "tools" / "bench"
PROGRAMS = [str(path) for path in sorted(BENCH.glob("*.py")) if "ArgumentParser(" in path.read_text("utf-8")]
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
