"""Exactly one attempt: a DataFrame is written while tasks and executors fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.topology import collect

from tuplewire import Client
from tuplewire.connection.control_client import ControlClient

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

DRIVER = Path(__file__).with_name("attempts_driver.py")
TASKS = {0: [1, 2], 1: [3, 4]}
DRIVER_SECONDS = 300.0


@pytest.mark.timeout(400)
def test_one_attempt_of_each_partition_is_seen(launch: Any, tmp_path: Path) -> None:
    """Each row arrives once despite a failed task, a killed executor, a repeated stage and a slow attempt."""
    with launch("spark", TASKS) as running:
        driver = [sys.executable, str(DRIVER), running.endpoints[0].address, str(tmp_path)]
        subprocess.run(driver, check=True, timeout=DRIVER_SECONDS, start_new_session=True)
        for partition in ("failing-0", "failing-1", "slow-0"):
            assert len(list(tmp_path.glob(f"{partition}-*"))) > 1, f"{partition} had one attempt only"
        got: list[int] = []
        for worker, tasks in zip(running.endpoints, TASKS.values(), strict=True):
            with ControlClient(worker.address) as control:
                assert [each.queued_messages for each in control.status().tasks] == [1500, 1500]
            with (
                Client(worker.address, topology="spark") as client,
                client.recv(tasks, timeout=20) as batches,
            ):
                got += [int(payload) for _, payload in collect(batches, 3000)]
    assert sorted(got) == list(range(6000))
