"""External programs that a test needs, and programs that it runs to their end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

ROOT = Path(__file__).resolve().parents[2]


def require_tool(name: str, found_in: str) -> str:
    """Return the path of a program. Without it, the test is skipped loudly, or fails.

    found_in: the package to install. With REQUIRE_TOOLS=1, a missing program is a failure. Programs that pip
    installed next to this interpreter have priority.
    """
    path = shutil.which(name, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if path is None:
        missing(f"{name} is missing; {found_in} has it")
    return path


def missing(what: str) -> NoReturn:
    """Skip the test loudly, or fail it if REQUIRE_TOOLS=1 is set."""
    if os.environ.get("REQUIRE_TOOLS") == "1":
        pytest.fail(what)
    pytest.skip(f"NOT CHECKED: {what}")


def ran(
    *command: str | Path, seconds: float = 900, check: bool = False, **more: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; return exit code and output. Raises TimeoutExpired after `seconds`."""
    return subprocess.run([*command], capture_output=True, text=True, timeout=seconds, check=check, **more)


def started(*command: str | Path, **more: Any) -> subprocess.Popen[str]:
    """Start a program, with pipes of text for its output and its errors."""
    return subprocess.Popen([*command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)


def output_of(script: str, *words: str, **variables: str) -> str:
    """Run a program in a new interpreter; return its output, or raise AssertionError with its errors."""
    done = ran(sys.executable, "-W", "ignore", "-c", script, *words, env={**os.environ, **variables})
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
