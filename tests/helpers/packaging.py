"""Building wheels, and installing them into separate virtual environments."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command as from a new shell, and return its output. A failure shows the output."""
    # Modules on the tests' path must not replace the installed ones.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} exited with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


def build_wheel(source: Path, out: Path) -> Path:
    """Build the wheel of a source tree into a folder, and return it."""
    # If the build backend is installed, it does not have to be installed again.
    isolation = ["--no-isolation"] if find_spec("hatchling") else []
    run(sys.executable, "-m", "build", "--wheel", *isolation, "--outdir", out, source, cwd=out)
    (built,) = out.glob("*.whl")
    return built


def install(home: Path, *wheels: Path) -> Path:
    """Install wheels into an empty environment with the pip of the tests; return its programs' folder."""
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
