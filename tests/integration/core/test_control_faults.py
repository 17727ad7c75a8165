"""A proxy that loses and duplicates only control messages: Tuplewire recovers automatically."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from helpers.control_faults import ControlFaults, Fate
from helpers.topology import numbered, numbers
from helpers.traffic import Feeder, Reader, client_of, deliver, reaches, take

from tuplewire.errors import FlushTimeoutError, RefusedMessagesError
from tuplewire.processes.worker_processes import Endpoint
from tuplewire.settings.config import AckMode
from tuplewire_service.testing import eventually

MESSAGES = 1000
FLAGS = ["--receive-queue-messages=250"]
"""Flags of the worker: the consumers have to keep a small queue empty."""
LOST = {"SendResponse.ack", "RecvRequest.progress"}
"""Kinds of messages that must be lost before sending stops: a slow machine sends few per 1,000 messages."""
_tasks = count()


def connections(client: Any) -> int:
    """Return the number of times that a client's sender has connected."""
    assert client._sender is not None
    return int(client._sender.counts.connections)


@pytest.mark.parametrize("mode", AckMode)
def test_all_arrives_while_control_messages_are_lost_and_doubled(endpoint: Endpoint, mode: AckMode) -> None:
    """Queues fill and empty many times without loss, duplicates, reordering or a reconnect."""
    task = next(_tasks)
    with (
        ControlFaults(endpoint.address, seed=1) as faults,
        client_of(faults.address, ack_mode=mode, max_pending_messages=MESSAGES) as sender,
        client_of(faults.address) as consumer,
        Reader(consumer.recv([task], timeout=0.2)) as reader,
    ):
        faults.begin()
        with Feeder(sender, task) as feeder:
            feeder.goes_on(MESSAGES)
            eventually(
                lambda: all(faults.counts[name, Fate.LOST] for name in LOST), 30, f"lost one each of {LOST}"
            )
        reaches(lambda: sender.ledger().acknowledged, feeder.sent, "messages acknowledged")
        reader.has(feeder.sent)
        assert numbers(reader.got) == list(range(feeder.sent))
        assert reader.redelivered == []
        assert connections(sender) == 1
        assert sender.ledger().acknowledged == feeder.sent
        assert faults.count(Fate.DOUBLED)
        assert faults.count(Fate.PASSED)


def test_nothing_is_acknowledged_while_every_control_message_is_lost(endpoint: Endpoint) -> None:
    """Frames and handshakes pass, acknowledgements do not; without the faults, the sender recovers."""
    task = next(_tasks)
    with ControlFaults(endpoint.address, lose=1, double=0) as faults, client_of(faults.address) as sender:
        faults.begin()
        sender.send(numbered(task, range(10)))
        assert numbers(take(endpoint, task, 10)) == list(range(10))
        with pytest.raises(FlushTimeoutError):
            sender.flush(0.5)
        assert faults.counts["SendResponse.ack", Fate.LOST] >= 1
        assert faults.count(Fate.PASSED) == 0
        faults.heal()
        sender.flush(10)
        assert connections(sender) == 1


def test_refusals_that_come_twice_are_raised_once(endpoint: Endpoint) -> None:
    """A duplicated acknowledgement, or the response to a probe, does not raise a refusal again."""
    with ControlFaults(endpoint.address, lose=0, double=1) as faults, client_of(faults.address) as sender:
        deliver(sender, numbered(next(_tasks), [0]))
        faults.begin()
        for number in range(20):
            sender.send(1_000_000 + number, b"to nobody")
            with pytest.raises(RefusedMessagesError, match=str(1_000_000 + number)):
                sender.flush(10)
            deliver(sender, numbered(next(_tasks), [0]))
        assert faults.count(Fate.DOUBLED)
