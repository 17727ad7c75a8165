"""Writes while tasks and executors fail, and with a row that cannot be sent."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.topology import collect, metric, status

from tuplewire import Client

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(500)]

TASKS = {0: [1, 2, 5], 1: [3, 4, 6]}
DRIVER_SECONDS = 400.0


@pytest.fixture(scope="module")
def written(
    launch: Any, drive: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Any, Path, dict[str, str]]]:
    """Run the driver; yield the workers, the directory with a file for each attempt, and the errors."""
    place = tmp_path_factory.mktemp("attempts")
    with launch("spark", TASKS) as running:
        address = running.endpoints[0].address
        printed = drive("attempts_driver.py", place, address, place, timeout=DRIVER_SECONDS)
        yield running, place, {line["job"]: line["error"] for line in map(json.loads, printed)}


def test_one_attempt_of_each_partition_is_seen(written: tuple[Any, Path, dict[str, str]]) -> None:
    """Each row arrives once despite a failed task, a killed executor, a repeated stage and a slow attempt."""
    running, place, _ = written
    for partition in ("failing-0", "failing-1", "slow-0"):
        assert len(list(place.glob(f"{partition}-*"))) > 1, f"{partition} had one attempt only"
    got: list[int] = []
    for worker, tasks in zip(running.endpoints, TASKS.values(), strict=True):
        assert [each.queued_messages for each in status(worker).tasks][:2] == [1500, 1500]
        client = Client(worker.address, topology="spark")
        with client, client.recv(tasks[:2], timeout=20) as batches:
            got += [int(payload) for _, payload in collect(batches, 3000)]
    assert sorted(got) == list(range(6000))


def test_a_bad_row_is_named_and_not_tried_again(written: tuple[Any, Path, dict[str, str]]) -> None:
    """Each partition is computed once; nothing of a bad partition or of an exactly-once write is sent.

    A stream continues from its checkpoint with badRows=drop.
    """
    running, place, errors = written
    assert set(errors) == {"atLeastOnce", "exactlyOnce", "fail"}
    for job in ("atLeastOnce", "exactlyOnce"):
        assert "BadRowsError: row 27 of partition 3: the task is null (task None" in errors[job]
    assert "BadRowsError: row " in errors["fail"]
    files = [each for job in (*errors, "drop") for each in place.glob(f"{job}-*-*")]
    attempts = Counter(each.name.rpartition("-")[0] for each in files)
    assert set(attempts.values()) == {1}, attempts
    assert {f"{job}-{number}" for job in ("atLeastOnce", "exactlyOnce") for number in range(4)} <= set(
        attempts
    )
    # Three partitions of 250 rows, at least once, and a stream without one row.
    assert [status(each).tasks[2].queued_messages for each in running.endpoints] == [875, 874]
    assert [metric(each, 'tuplewire_staged_bytes{place="memory"}') for each in running.endpoints] == [0, 0]
