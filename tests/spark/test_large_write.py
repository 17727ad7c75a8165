"""A gigabyte, written exactly once by a driver of 1 GB."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.row_counter import RowCounter

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

TASKS = {0: [1, 2], 1: [3, 4]}
ROWS = 5_000_000
ROW_BYTES = 200
MOST_GROWTH = 100 << 20
"""Maximum growth of the JVM and of each Python process, while a gigabyte is written."""
SECONDS = 900.0


@pytest.mark.timeout(2 * SECONDS)
def test_a_gigabyte_needs_no_memory_of_spark(launch: Any, drive: Any, tmp_path: Path) -> None:
    """Each row arrives once, and neither the JVM's nor a Python task's memory grows with the rows."""
    seen = RowCounter(ROWS, ROW_BYTES)
    with launch("spark", TASKS) as running, seen.reading(running.endpoints, TASKS):
        address = running.endpoints[0].address
        printed = drive("large_write_driver.py", tmp_path, address, 4, ROWS, timeout=SECONDS)
    assert seen.times == bytearray([1]) * ROWS, "a row is missing, or has come twice"
    steps = {line.pop("step"): line for line in map(json.loads, printed)}
    grown = {who: steps["all"][who] - steps["few"][who] for who in ("jvm", "python")}
    assert all(each <= MOST_GROWTH for each in grown.values()), (grown, steps)
