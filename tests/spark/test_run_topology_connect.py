"""Topologies over Spark Connect, where there is no SparkContext to use."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("connect_program.py")

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("grpc_status") is None,
        reason="Spark Connect is NOT tested: install pyspark[connect], as the extra `dev` does",
    ),
]


def test_topologies_over_connect() -> None:
    """Rows go through, failures are told with their traceback, and stop, cancel and slots work."""
    ran = subprocess.run(
        [sys.executable, str(PROGRAM)], capture_output=True, text=True, check=False, timeout=110
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert "3 PySpark tasks at the same time, and Spark has 2 slot(s)" in found["slots"]
    assert found["rows"] == list(range(1000))
    summary, traceback = found["failure"]
    assert "of 'pass': LookupError: no such number" in summary
    assert 'raise LookupError("no such number")' in traceback
    assert found["stop"] > 0
    assert "was cancelled" in found["cancel"]
