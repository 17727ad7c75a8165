"""Interpreters for Spark's executors, with copies of or links to this interpreter's packages."""

from __future__ import annotations

import shutil
import sysconfig
import venv
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path


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
