"""A streaming query while its executors are killed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.topology import TOPOLOGY, numbered
from helpers.traffic import client_of
from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(400)]

DRIVER = Path(__file__).with_name("killed_executors_driver.py")
COUNT = 3000
DRIVER_SECONDS = 350.0


def test_killed_executors_leave_no_trace(spark: SparkSession, launch: Any, tmp_path: Path) -> None:  # noqa: ARG001
    """Another executor reads the messages of a killed one: each message once, and in order per task."""
    with launch(TOPOLOGY, {0: [1], 1: [2]}) as running:
        address = running.endpoints[0].address
        with client_of(address) as client:
            for task in (1, 2):
                client.send(numbered(task, range(task * COUNT, task * COUNT + COUNT // 2)))
        settings = {
            "address": address,
            "topology": TOPOLOGY,
            "tasks": "1,2",
            "count": str(COUNT),
            "checkpoint": str(tmp_path / "checkpoint"),
            "work": str(tmp_path / "work"),
        }
        driver = subprocess.run(
            [sys.executable, str(DRIVER)],
            check=True,
            cwd=tmp_path,
            input=json.dumps(settings),
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
            timeout=DRIVER_SECONDS,
        )
    found: dict[str, Any] = json.loads(driver.stdout.splitlines()[-1])
    assert found["error"] == ""
    assert found["killed"] == 2
    assert found["executors"] > 2, "Spark has started others"
    for task in (1, 2):
        got = [number for number in found["numbers"] if number // COUNT == task]
        assert got == list(range(task * COUNT, task * COUNT + COUNT // 2))
