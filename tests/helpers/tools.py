"""Programs that are not ours and that a test needs."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).resolve().parents[2]


def require_tool(name: str, found_in: str) -> str:
    """Return the path of a program; without it the test is skipped loudly, or fails where all must be there.

    found_in: what to install. REQUIRE_TOOLS=1 makes a missing program a failure. What pip has put
    beside this interpreter comes first.
    """
    path = shutil.which(name, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if path is None:
        missing(f"{name} is missing; {found_in} has it")
    return path


def missing(what: str) -> NoReturn:
    """Skip the test loudly, or fail it where nothing may be missing."""
    if os.environ.get("REQUIRE_TOOLS") == "1":
        pytest.fail(what)
    pytest.skip(f"NOT CHECKED: {what}")
