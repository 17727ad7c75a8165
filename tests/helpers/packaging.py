"""Wheels, and virtual environments with them or with the packages of this interpreter."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path


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
    pip = [sys.executable, "-m", "pip", f"--python={programs}/python", "--quiet"]
    run(*pip, "install", "--disable-pip-version-check", "--no-compile", *wheels, cwd=home)
    return programs


def make_interpreter(home: Path, *, without: Sequence[str] = ()) -> Path:
    """Make an environment with this one's packages, except Tuplewire and some prefixes; return its python."""
    python = _empty(home)
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith((".", "_", "tuplewire", *without)) and entry.suffix != ".pth":
            (site_packages(python) / entry.name).symlink_to(entry)
    return python


def make_movable_interpreter(home: Path, packages: Sequence[str]) -> Path:
    """Make a virtual environment with copies of these packages, except large files, and return its python."""
    python = _empty(home)
    large = shutil.ignore_patterns("include", "tests", "libarrow_flight*", "libarrow_s3*")
    for name in packages:
        spec = find_spec(name)
        assert spec is not None, f"{name} is not installed: make install"
        if spec.submodule_search_locations:
            place = Path(spec.submodule_search_locations[0])
            shutil.copytree(place, site_packages(python) / place.name, ignore=large)
        else:
            assert spec.origin is not None
            shutil.copy(spec.origin, site_packages(python))
    return python


def site_packages(python: Path) -> Path:
    """Return the package folder of an interpreter made here."""
    (site,) = (python.parents[1] / "lib").glob("python*/site-packages")
    return site


def _empty(home: Path) -> Path:
    venv.create(home, symlinks=True)
    return home / "bin" / "python"
