"""The sending time of a message, as reported to its consumer, does not depend on the message's route."""

from __future__ import annotations

import time

import pytest
from helpers.topology import TOPOLOGY, acknowledged, queued
from helpers.traffic import client_of, deliver

from tuplewire.processes.worker_processes import Endpoint, WorkerProcesses
from tuplewire_service.testing import eventually

TASK = 1


def now() -> int:
    """Return the current time in whole milliseconds, like the reported times."""
    return time.time_ns() // 1_000_000


def times(endpoint: Endpoint, count: int) -> dict[bytes, int]:
    """Return the sending time of each message, as reported to a consumer that acknowledges nothing."""
    found: dict[bytes, int] = {}
    with client_of(endpoint.address) as client, client.recv([TASK], timeout=20) as batches:
        while len(found) < count:
            for group in next(batches).groups:
                found.update(dict.fromkeys(group.payloads(), group.accepted_micros // 1000))
    return found


@pytest.mark.parametrize("transport", ["grpc", "zmq"])
def test_the_time_of_sending_stays_with_a_message(transport: str) -> None:
    """The sending time stays the same over two hops, for every consumer, and after a move of the task."""
    sent: dict[bytes, tuple[int, int]] = {}
    with WorkerProcesses(2, TOPOLOGY, flags=[f"--transport={transport}", "--drain-seconds=0.5"]) as workers:
        near, far = workers.endpoints
        workers.assign({0: [], 1: [TASK]})
        with client_of(near.address) as client:
            for number in range(5):
                payload, before = b"%d" % number, now()
                deliver(client, TASK, payload)
                sent[payload] = before, now()
                eventually(lambda before=before: now() > before + 30)  # type: ignore[misc]
        eventually(lambda: queued(far, TASK) == 5)
        read = times(far, 5)
        assert {payload: low <= read[payload] <= high for payload, (low, high) in sent.items()} == (
            dict.fromkeys(sent, True)
        )
        assert times(far, 5) == read
        assert acknowledged(far, TASK) == 0

        workers.assign({0: [TASK], 1: []})
        eventually(lambda: queued(near, TASK) == 5, timeout=20)
        assert times(near, 5) == read
