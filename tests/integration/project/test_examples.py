"""The examples that do not need Spark: each one runs unchanged, and prints the expected output."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from deploy.foreign_clients import client
from helpers.pasted import EXAMPLES, PRINTS, on_spark
from helpers.tools import ran


def test_every_example_is_run() -> None:
    """Each example is in the table that the tests use, and is short enough to copy."""
    assert {path.name for path in EXAMPLES.glob("*.py")} == PRINTS.keys()
    lines = {path.name: path.read_text(encoding="utf-8").count("\n") for path in EXAMPLES.glob("*.py")}
    assert {name: count for name, count in lines.items() if not 30 <= count <= 90} == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PRINTS if not on_spark(name)])
def test_example(name: str, tmp_path: Path) -> None:
    """A new process runs the example to its end, without a warning."""
    variables = client("node").environment if list(EXAMPLES.glob(f"{Path(name).stem}.js")) else None
    ended = ran(sys.executable, "-W", "error", EXAMPLES / name, cwd=tmp_path, env=variables)
    assert ended.returncode == 0, ended.stderr
    for pattern in PRINTS[name]:
        assert re.search(pattern, ended.stdout), ended.stdout
