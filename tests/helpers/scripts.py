"""Programs that a test runs in a new interpreter."""

from __future__ import annotations

import os
import subprocess
import sys


def output_of(script: str, *words: str, **variables: str) -> str:
    """Run a program with these arguments and variables of the environment; return its output.

    Raises AssertionError with the program's errors unless it exits with 0 within a minute.
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, *words],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
