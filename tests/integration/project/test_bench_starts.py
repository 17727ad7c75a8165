"""The benchmark programs start; no other test runs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "tools" / "bench"
PROGRAMS = sorted(path.name for path in BENCH.glob("*.py") if "ArgumentParser(" in path.read_text("utf-8"))


@pytest.mark.parametrize("program", PROGRAMS)
def test_it_has_help(program: str) -> None:
    """`--help` works in the project's root with the installed packages alone."""
    ended = subprocess.run(
        [sys.executable, f"tests/tools/bench/{program}", "--help"],
        cwd=BENCH.parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("usage: ")
