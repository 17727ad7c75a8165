"""Assignments that change under traffic, are missing, or are outdated at a worker or a program."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.hostile import SEND, hello, talk
from helpers.topology import (
    assign,
    ledger,
    metric,
    numbered,
    numbers,
    one_worker,
    queued,
    status,
    two_workers,
)
from helpers.traffic import Feeder, Reader, client_of
from helpers.worker_process import run_command

from tuplewire import TaskGroup
from tuplewire.errors import RefusedMessagesError
from tuplewire.wire import messaging_pb2 as pb
from tuplewire.wire.codec import encode_frame
from tuplewire_service.testing import eventually


def test_removed_worker_is_disconnected_under_traffic(tmp_path: Path, transport: str) -> None:
    """If an assignment removes a worker, its empty connection is closed, and its task is refused."""
    with (
        two_workers(tmp_path, transport) as (a, b, proxy),
        client_of(a.address) as sender,
        client_of(b.address) as consumer,
        Reader(consumer.recv([1], timeout=0.2)) as reader,
    ):
        with Feeder(sender, 1) as feeder:
            feeder.goes_on(300)
        sender.flush(10)
        with Feeder(sender, 0) as local:
            assign(a, 2, {a: [0]})
            eventually(lambda: proxy.connection_count == 0, 10, "connection closed")
            assert list(status(a).peers) == []
            local.goes_on()
        reader.has(feeder.sent)
        assert numbers(reader.got) == list(range(feeder.sent))
        sender.send(1, b"nobody's")
        with pytest.raises(RefusedMessagesError, match="task 1 is not in assignment version 2"):
            sender.flush(10)
        assert queued(a, 0) == local.sent
        assert ledger(a).accepted == feeder.sent + local.sent
        assert ledger(a).balanced


def test_a_program_that_routes_by_an_old_assignment_is_told_the_owner(tmp_path: Path) -> None:
    """Messages for a moved task are refused with the new owner's address; other messages are accepted."""
    with one_worker("a", directory=tmp_path) as a, one_worker("b", directory=tmp_path) as b:
        for version, tasks in ((1, ([1, 2], [3])), (2, ([2], [1, 3]))):
            assign((a, b), version, {("a", a.address): tasks[0], ("b", b.address): tasks[1]})
        frames = [
            encode_frame(number, [[TaskGroup.of(task, [b"x"])]], assignment_version=1)
            for number, task in ((1, 1), (2, 2))
        ]
        refusals = [
            (refusal.task, refusal.code, refusal.owner_address)
            for response in talk(a, SEND, [hello(), *frames]).responses
            for refusal in pb.SendResponse.FromString(response).ack.refusals
        ]
        assert refusals == [(1, pb.ERROR_CODE_STALE_ASSIGNMENT, b.address)]
        assert (ledger(a).accepted, ledger(b).accepted) == (1, 0)


def test_a_worker_that_connects_learns_that_it_lags(tmp_path: Path) -> None:
    """A worker shows the newer assignment version of a connected worker until it has that version itself."""
    with one_worker("a", directory=tmp_path) as a, one_worker("b", directory=tmp_path) as b:
        workers = {("a", a.address): [1], ("b", b.address): [2]}
        assign(b, 5, workers)
        assign(a, 4, workers)
        eventually(lambda: status(a).newest_assignment_version == 5)
        assert status(a).assignment_version == 4
        assert "assignment 4 (another worker has 5)" in run_command("status", "--address", a.address).stdout
        assert metric(a, "tuplewire_newest_assignment_version") == 5
        assign(a, 5, workers)
        assert "assignment 5\n" in run_command("status", "--address", a.address).stdout


def test_a_worker_that_is_sent_to_learns_that_it_lags(tmp_path: Path) -> None:
    """A frame from a worker with a newer assignment also reports the version."""
    with (
        one_worker("a", directory=tmp_path) as a,
        one_worker("b", directory=tmp_path, tasks=[2]) as b,
        client_of(a.address) as sender,
    ):
        assign(a, 2, {("a", a.address): [1], ("b", b.address): [2]})
        assert status(b).newest_assignment_version == 1
        sender.send(numbered(2, range(3)))
        eventually(lambda: status(b).newest_assignment_version == 2)
