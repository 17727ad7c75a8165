"""Programs that a test runs to their end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def ran(
    *command: str | Path, seconds: float = 60, check: bool = False, **more: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; return its exit code, and its output as text.

    more: other arguments of subprocess.run. Raises TimeoutExpired after `seconds`.
    """
    return subprocess.run([*command], capture_output=True, text=True, timeout=seconds, check=check, **more)


def output_of(script: str, *words: str, **variables: str) -> str:
    """Run a program in a new interpreter, with arguments and variables; return its output.

    Raises AssertionError with the program's errors unless it exits with 0 within a minute.
    """
    done = ran(sys.executable, "-W", "ignore", "-c", script, *words, env={**os.environ, **variables})
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
