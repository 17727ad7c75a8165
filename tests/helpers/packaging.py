"""Building wheels, and installing them into virtual environments of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command as from a shell of its own, and return its output; it is in the error when it fails."""
    # What is on the path of the tests must not stand in for what is installed.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} exited with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


def build_wheel(source: Path, out: Path) -> Path:
    """Build the wheel of a source tree into a folder, and return it."""
    # With the build backend at hand there is no need to install it again.
    isolation = ["--no-isolation"] if find_spec("hatchling") else []
    run(sys.executable, "-m", "build", "--wheel", *isolation, "--outdir", out, source, cwd=out)
    (built,) = out.glob("*.whl")
    return built


def install(home: Path, *wheels: Path) -> Path:
    """Install wheels, with nothing but what they ask for, into an empty environment; return its programs.

    The pip is that of the tests: one of its own, and compiling what is hardly used, take most of the time.
    """
    run(sys.executable, "-m", "venv", "--without-pip", home / "venv", cwd=home)
    programs = home / "venv" / "bin"
    pip: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        programs / "python",
        "--disable-pip-version-check",
        "--quiet",
    ]
    run(*pip, "install", "--no-compile", *wheels, cwd=home)
    return programs
