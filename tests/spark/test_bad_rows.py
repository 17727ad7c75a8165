"""A row that cannot be sent, with four attempts per Spark task."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from helpers.topology import metric, queued

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

DRIVER = Path(__file__).with_name("bad_rows_driver.py")
TASKS = {0: [1], 1: [2]}
DRIVER_SECONDS = 240


@pytest.mark.timeout(400)
def test_a_bad_row_is_named_and_not_tried_again(launch: Any, tmp_path: Path) -> None:
    """Each partition is computed once; nothing of a bad partition or of an exactly-once write is sent.

    A stream continues from its checkpoint with badRows=drop.
    """
    with launch("spark", TASKS) as running:
        run = subprocess.run(
            [sys.executable, str(DRIVER), running.endpoints[0].address, str(tmp_path)],
            check=True,
            timeout=DRIVER_SECONDS,
            start_new_session=True,
            stdout=subprocess.PIPE,
        )
        errors = {line["job"]: line["error"] for line in map(json.loads, run.stdout.splitlines())}
        assert set(errors) == {"atLeastOnce", "exactlyOnce", "fail"}
        for job in ("atLeastOnce", "exactlyOnce"):
            assert "BadRowsError: row 27 of partition 3: the task is null (task None" in errors[job]
        assert "BadRowsError: row " in errors["fail"]
        attempts = Counter(each.name.rpartition("-")[0] for each in tmp_path.glob("*-*-*"))
        assert set(attempts.values()) == {1}, attempts
        assert {f"{job}-{number}" for job in ("atLeastOnce", "exactlyOnce") for number in range(4)} <= set(
            attempts
        )
        # Three partitions of 250 rows, at least once, and a stream without one row.
        assert [queued(each, index + 1) for index, each in enumerate(running.endpoints)] == [875, 874]
        assert [metric(each, 'tuplewire_staged_bytes{place="memory"}') for each in running.endpoints] == [
            0,
            0,
        ]
