"""Interpreters for Spark's executors, with copies of or links to this interpreter's packages."""

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

from helpers.tools import missing


def make_interpreter(home: Path, *, without: Sequence[str] = ()) -> Path:
    """Make a virtual environment with links to this interpreter's packages, and return its python.

    without: prefixes of the names of further packages to omit. Tuplewire is always omitted.
    """
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


def other_python() -> str:
    """Return an interpreter of another minor version. Without one, the test is skipped loudly.

    It is searched for on the PATH, and in pyenv's folder.
    """
    places = [Path(each) for each in os.environ["PATH"].split(os.pathsep)]
    places += sorted(Path.home().glob(".pyenv/versions/*/bin"))
    minors = [minor for minor in (11, 12, 13, 14) if minor != sys.version_info.minor]
    for python in (place / f"python3.{minor}" for minor in minors for place in places):
        if python.exists():
            shown = subprocess.run([python, "--version"], capture_output=True, text=True, check=False)
            if shown.stdout.startswith("Python 3."):
                return str(python)
    return missing("a Python of another minor version is missing; pyenv install 3.12 has it")


def site_packages(python: Path) -> Path:
    """Return the package folder of an interpreter made here."""
    (site,) = (python.parents[1] / "lib").glob("python*/site-packages")
    return site


def _empty(home: Path) -> Path:
    venv.create(home, symlinks=True)
    return home / "bin" / "python"
