"""A gigabyte, written exactly once by a driver of 1 GB."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.row_counter import RowCounter

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

DRIVER = Path(__file__).with_name("large_write_driver.py")
TASKS = {0: [1, 2], 1: [3, 4]}
ROWS = 5_000_000
ROW_BYTES = 200
MOST_GROWTH = 100 << 20
"""Maximum growth of the JVM and of each Python process, while a gigabyte is written."""
SECONDS = 900.0


@pytest.mark.timeout(2 * SECONDS)
def test_a_gigabyte_needs_no_memory_of_spark(launch: Any) -> None:
    """Each row arrives once, and neither the JVM's nor a Python task's memory grows with the rows."""
    seen = RowCounter(ROWS, ROW_BYTES)
    with launch("spark", TASKS) as running, seen.reading(running.endpoints, TASKS):
        driver = [sys.executable, str(DRIVER), running.endpoints[0].address, "4", str(ROWS)]
        run = subprocess.run(
            driver, check=True, timeout=SECONDS, start_new_session=True, stdout=subprocess.PIPE
        )
    assert seen.times == bytearray([1]) * ROWS, "a row is missing, or has come twice"
    steps = {line.pop("step"): line for line in map(json.loads, run.stdout.splitlines())}
    grown = {who: steps["all"][who] - steps["few"][who] for who in ("jvm", "python")}
    assert all(each <= MOST_GROWTH for each in grown.values()), (grown, steps)
