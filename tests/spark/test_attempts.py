"""Exactly one attempt: tasks and executors that fail while a DataFrame is written."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from helpers.topology import collect

from tuplewire import Client
from tuplewire.control import ControlClient

pytestmark = [pytest.mark.spark, pytest.mark.slow]

DRIVER = Path(__file__).with_name("attempts_driver.py")
TASKS = {0: [1, 2], 1: [3, 4]}
DRIVER_SECONDS = 300.0


@pytest.mark.timeout(400)
def test_one_attempt_of_each_partition_is_seen(launch: Any, tmp_path: Path) -> None:
    """A failed task, a killed executor and the stage that runs again because of it leave every row once."""
    with launch("spark", TASKS) as running:
        driver = [sys.executable, str(DRIVER), running.endpoints[0].address, str(tmp_path)]
        subprocess.run(driver, check=True, timeout=DRIVER_SECONDS, start_new_session=True)
        attempts = Counter(each.name.split("-")[1] for each in tmp_path.glob("attempt-*"))
        assert attempts["0"] > 1
        assert attempts["1"] > 1
        got: list[int] = []
        for worker, tasks in zip(running.endpoints, TASKS.values(), strict=True):
            with ControlClient(worker.address) as control:
                assert [each.queued_messages for each in control.status().tasks] == [1000, 1000]
            with (
                Client(worker.address, topology="spark") as client,
                client.recv(tasks, timeout=20) as batches,
            ):
                got += [int(payload) for _, payload in collect(batches, 2000)]
    assert sorted(got) == list(range(4000))
