"""The streaming pipeline, as its command runs it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset
import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

STOP_SECONDS = 150.0


def test_runs_until_stopped(tmp_path: Path) -> None:
    """After Ctrl-C what is on its way is still counted, nothing is missing, and the exit code is 0."""
    output = tmp_path / "windows"
    with subprocess.Popen(
        [sys.executable, "-m", "tuplewire_service", "run", "stream", "--output", str(output)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as run:
        assert run.stdout is not None
        first = run.stdout.readline()
        os.killpg(run.pid, signal.SIGINT)
        rest, errors = run.communicate(timeout=STOP_SECONDS)
    assert re.match(r"\S+ to \S+: +[\d,]+ readings of \d+ sensors, mean \d", first), errors
    assert run.returncode == 0, errors
    account = re.search(
        r"([\d,]+) readings came to the bolts, ([\d,]+) are counted in windows; equal: yes", rest
    )
    assert account is not None, rest
    assert rest.count("pending 0 (balances)") == 2
    table = pyarrow.dataset.dataset(output, partitioning="hive").to_table()
    last = table.group_by(["start", "sensor"]).aggregate([("readings", "max")])
    assert sum(last["readings_max"].to_pylist()) == int(account[1].replace(",", "")) > 0
