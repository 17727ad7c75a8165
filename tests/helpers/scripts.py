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
    """Run a command to its end; return exit code and output. Raises TimeoutExpired after `seconds`."""
    return subprocess.run([*command], capture_output=True, text=True, timeout=seconds, check=check, **more)


def output_of(script: str, *words: str, **variables: str) -> str:
    """Run a program in a new interpreter; return its output, or raise AssertionError with its errors."""
    done = ran(sys.executable, "-W", "ignore", "-c", script, *words, env={**os.environ, **variables})
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
