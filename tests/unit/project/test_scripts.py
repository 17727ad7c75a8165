"""The shell scripts: every file that a script sources exists, even if no test runs the script."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "script", [*ROOT.glob("tests/*.sh"), *ROOT.glob("deploy/*.sh")], ids=lambda each: each.name
)
def test_what_it_sources_is_there(script: Path) -> None:
    """Every sourced file exists, relative to the repository's root."""
    sourced = re.findall(r"^(?:\.|source) (\S+)$", script.read_text(encoding="utf-8"), re.MULTILINE)
    assert [each for each in sourced if not (ROOT / each).is_file()] == []
    assert sourced or script.parent.name == "deploy" or script.name == "environments.sh"
