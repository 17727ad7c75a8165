"""Routing after a peer, or this worker, shuts down, fails or leaves the assignment, and after a defect."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from helpers.queues import HERE, THERE, Program

from tuplewire.connection.send_buffer import SendBuffer
from tuplewire.errors import RefusedError, TuplewireError, WrongTopologyError
from tuplewire.session.ledger import DropReason, SettledMessages
from tuplewire.values.group import TaskGroup
from tuplewire_service.messaging.base import ReceivedBatch
from tuplewire_service.worker.assignment import AssignedWorker, Assignment
from tuplewire_service.worker.router import Router


async def test_nothing_is_released_once_the_end_begins(router: Router) -> None:
    """After shutdown starts, nothing is released, because senders would count it as consumed."""
    program = Program()
    settled = SettledMessages(program, 1, 3, 3, None)
    router._on_released([settled])
    router._closing = True
    router._on_released([settled])
    assert program.released == 3


@pytest.mark.parametrize("router", [Assignment(1, "t", (HERE,))], indirect=True)
async def test_the_end_counts_what_it_drops(router: Router) -> None:
    """A closing router drops queued messages and unpublished messages of sinks, and counts them."""
    router.recv(ReceivedBatch.for_callback([TaskGroup.of(0, [b"x", b"y"])], Program()))
    await router.close(0.1, (), {0: 5})
    balance = router.ledger()
    assert (balance.accepted, balance.dropped["shutdown"], balance.balanced) == (7, 7, True)


@pytest.mark.parametrize("reason", [DropReason.CLOSED, DropReason.REFUSED])
async def test_what_a_peer_did_not_take_is_counted_by_its_reason(router: Router, reason: DropReason) -> None:
    """Messages of a closed connection count as dropped{shutdown}; others retain their reason."""
    router._on_settled([SettledMessages(None, 1, 3, 3, None), SettledMessages(None, 1, 2, 2, reason)])
    told = DropReason.SHUTDOWN if reason is DropReason.CLOSED else reason
    assert router._ledger.acknowledged == 3
    assert {each: count for each, count in router._ledger.dropped.items() if count} == {told: 2}


@pytest.mark.parametrize(("queued", "passed_on"), [(0, 0), (1, 0), (0, 1)])
async def test_what_a_worker_leaves_behind(
    router: Router, queued: int, passed_on: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Peers must wait for a worker's shutdown if it drops queued messages or forwarded some."""
    if queued:
        router.recv(ReceivedBatch.for_callback([TaskGroup.of(0, [b"x"])], Program()))
    successors = {(1, 1): None} if passed_on else {}
    monkeypatch.setattr(router, "_successors", lambda: successors)
    assert router.must_announce == bool(queued or passed_on)


async def test_a_connection_whose_messages_are_taken_back_writes_nothing(router: Router) -> None:
    """A replaced connection stops writing immediately, and only the new connection writes."""
    given_up: Any = router.connections.by_peer.get(THERE.peer)
    router.connections.replace(THERE.peer)
    new: Any = router.connections.by_peer.get(THERE.peer)
    assert (given_up.may_write, new.may_write) == (False, True)


async def test_messages_are_doubted_only_while_a_worker_is_lost(router: Router) -> None:
    """While a worker is lost, messages it forwarded may be redelivered through another worker."""
    seen = []
    for connected in (True, False, True):
        router.on_worker_connection(5, connected=connected)
        seen.append(bool(router.consumers.lost_workers.numbers))
    assert seen == [False, True, False]


ASSIGNMENT = Assignment(1, "t", (HERE, THERE, AssignedWorker("elsewhere", "127.0.0.1:3", (2,))))
of_three = pytest.mark.parametrize("router", [ASSIGNMENT], indirect=True)


@of_three
@pytest.mark.parametrize(
    ("error", "reason", "released"),
    [
        (RuntimeError("a defect"), "shutdown", 0),
        (WrongTopologyError("not ours"), "refused", 4),
        (RefusedError("never heard of"), "refused", 4),
        (TuplewireError("x"), "refused", 4),
    ],
)
async def test_errors_of_a_connection_are_settled(
    router: Router, error: Exception, reason: str, released: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unsent messages count as dropped by reason; after a defect, none counts as consumed for its sender."""

    def offer(*_: object, **__: object) -> bool:
        raise error

    monkeypatch.setattr(SendBuffer, "offer", offer)
    program, defects = Program(awaits_releases=False), []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: defects.append(context["exception"]))
    groups = [TaskGroup.of(task, [b"a", b"b"]) for task in (0, 1, 2)]
    router.recv(ReceivedBatch.for_callback(groups, program))
    assert router.ledger().balanced
    await asyncio.sleep(0)  # the turn in which the transfer queue drains
    loop.set_exception_handler(None)
    assert defects == ([] if isinstance(error, TuplewireError) else [error])
    ledger = router.ledger()
    assert (ledger.accepted, ledger.pending, ledger.dropped[reason]) == (6, 2, 4)
    assert ledger.balanced
    assert program.released == released


@of_three
async def test_a_defect_while_held_messages_are_routed(router: Router) -> None:
    """If the second of three messages fails, the first is in flight and the others are dropped."""

    class FailingList(list[Any]):
        def append(self, item: Any) -> None:
            if self:
                raise RuntimeError("a defect")
            super().append(item)

    router._transfer.queue = FailingList()
    held: list[Any] = [(TaskGroup.of(1, [payload]), Program()) for payload in (b"a", b"b", b"c")]
    router._ledger.accepted += 3
    with pytest.raises(RuntimeError, match="a defect"):
        router._reroute(held)
    ledger = router.ledger()
    assert (ledger.pending, ledger.dropped["shutdown"]) == (1, 2)
    assert ledger.balanced
