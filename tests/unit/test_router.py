"""What a router asks its moves, and in which order it acts when a peer has shut down."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from tuplewire.connection.loop import messaging_loop
from tuplewire.errors import PermissionDeniedError, StaleAssignmentError, TooManyHopsError
from tuplewire.session.consume import Cursor
from tuplewire.session.delivery import Done
from tuplewire.session.departure import Departure
from tuplewire.session.ledger import DropReason, Ledger, Settled
from tuplewire.session.rejection import Rejection
from tuplewire.values.group import TaskGroup
from tuplewire_service.messaging.base import ReceivedBatch
from tuplewire_service.messaging.local import LocalContext
from tuplewire_service.messaging.subscription import SubscribeRequest
from tuplewire_service.worker.assignment import AssignedWorker, Assignment
from tuplewire_service.worker.drops import Drops
from tuplewire_service.worker.router import Router
from tuplewire_service.worker.routing_table import LOCAL, RoutingTable, places
from tuplewire_service.worker.worker_settings import WorkerSettings

HERE = AssignedWorker("here", "127.0.0.1:1", (0,))
THERE = AssignedWorker("there", "127.0.0.1:2", (1,))
ASSIGNMENT = Assignment(1, "t", (HERE, THERE))


class Program:
    """A program that sends."""

    source, sender_id, worker_number, wants_releases = "client", "c", 0, False

    def release(self, task: int, messages: int, size_bytes: int) -> None:
        """Take no note."""


class Worker(Program):
    """Another worker that forwards."""

    source, sender_id, worker_number = "w", "w/1.1", 9


class Counting(Program):
    """The same, which counts what is released."""

    released = 0

    def release(self, task: int, messages: int, size_bytes: int) -> None:
        """Count the messages."""
        del task, size_bytes
        self.released += messages


def with_router(
    act: Callable[[Router], Coroutine[Any, Any, None] | None], assignment: Assignment = ASSIGNMENT
) -> None:
    """Run something with the router of a worker that has task 0; another one has task 1.

    It runs on the messaging loop, as a worker's router does: its connections live there.
    """
    loop, context = messaging_loop(), LocalContext()

    async def main() -> Router:
        router = Router(WorkerSettings(worker_id="here", topology="t"), 1, context, draining=lambda: False)
        router.update(assignment)
        return router

    async def acting() -> None:
        if (acts := act(router)) is not None:
            await acts

    router = loop.run(main())
    try:
        loop.run(acting())
    finally:
        router.connections.abort()
        context.term()


def test_a_message_is_compared_with_those_in_flight_to_its_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Moves are given the owner, be it this worker or another one."""

    def act(router: Router) -> None:
        asked: dict[int, Any] = {}
        way = router._moves.way

        def recorded(group: TaskGroup, inbound: Any, owner: Any) -> Any:
            asked[group.task] = owner
            return way(group, inbound, owner)

        monkeypatch.setattr(router._moves, "way", recorded)
        router.recv(ReceivedBatch.arrived([TaskGroup.of(task, [b"x"]) for task in (0, 1)], Program()))
        assert asked == {0: HERE.peer, 1: THERE.peer}

    with_router(act)


def test_forwarded_messages_go_before_those_that_a_peer_gives_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for the transfer takes its old route; then the task waits for what comes back."""

    def act(router: Router) -> None:
        events: list[Any] = []
        monkeypatch.setattr(router._transfer, "drain", lambda: events.append("drained"))

        def ended(*_: Any) -> dict[Any, Any]:
            events.append("asked who has ended")
            return {THERE.peer: {1: None}}

        monkeypatch.setattr(router.connections, "ended", ended)
        monkeypatch.setattr(router.connections, "renew", lambda peer: events.append(("renewed", peer)))
        monkeypatch.setattr(router, "_wait_for", lambda peer, tasks, _: events.append(("waits", peer, tasks)))
        router.refresh()
        assert events == [
            "drained",
            "asked who has ended",
            ("waits", THERE.peer, (1,)),
            ("renewed", THERE.peer),
        ]

    with_router(act)


def test_what_is_done_with_is_timed() -> None:
    """From its acceptance until its consumer has acknowledged it; what was rejected is not."""

    def act(router: Router) -> None:
        accepted = time.time_ns() // 1000 - 2_000_000
        done = Done(Program(), 3, 3, accepted)
        router._done(0, [done, replace(done, rejected=True), replace(done, accepted_micros=0)])
        assert sum(router.end_to_end.counts) == 3
        assert 5 < router.end_to_end.seconds < 60
        assert router._ledger.acknowledged == 6

    with_router(act)


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("draining", [False, True])
def test_who_is_told_of_a_departure(*, leaves: bool, draining: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that drains and leaves messages connects to everybody; no other one does."""

    def act(router: Router) -> None:
        asked: list[bool] = []
        monkeypatch.setattr(type(router), "leaves_messages", leaves)
        monkeypatch.setattr(router, "_draining", lambda: draining)
        to_connect = router.table.to_connect

        def recorded(successors: Any, *, everyone: bool) -> Any:
            asked.append(everyone)
            return to_connect(successors, everyone=everyone)

        monkeypatch.setattr(router.table, "to_connect", recorded)
        router.refresh()
        assert asked == [draining and leaves]

    with_router(act)


def test_news_of_workers_that_have_left_is_acted_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their sinks are known here, and the connections are looked at."""

    def act(router: Router) -> None:
        done: list[Any] = []
        router.on_sinks = done.append
        monkeypatch.setattr(router, "refresh", lambda: done.append("refreshed"))
        router.workers_left([Departure(7)])
        assert done == [(), "refreshed"]
        assert 7 in router.departures

    with_router(act)


def test_a_worker_that_is_assigned_again_is_not_dead() -> None:
    """It may answer at the same address."""

    def act(router: Router) -> None:
        router._dead.add(THERE.peer)
        router.update(Assignment(2, "t", (HERE, THERE)))
        assert not router._dead

    with_router(act)


def test_nothing_is_released_once_the_end_begins() -> None:
    """Its senders would take it for consumed."""

    def act(router: Router) -> None:
        program = Counting()
        settled = Settled(program, 1, 3, 3, None)
        router._released([settled])
        router._closing = True
        router._released([settled])
        assert program.released == 3

    with_router(act)


def test_the_end_counts_what_it_drops() -> None:
    """What is queued, and what a sink had chosen and not published."""

    async def act(router: Router) -> None:
        router.recv(ReceivedBatch.arrived([TaskGroup.of(0, [b"x", b"y"])], Program()))
        await router.close(0.1, (), {0: 5})
        balance = router.ledger()
        assert (balance.accepted, balance.dropped["shutdown"], balance.balanced) == (7, 7, True)

    with_router(act, Assignment(1, "t", (HERE,)))


@pytest.mark.parametrize("reason", [DropReason.CLOSED, DropReason.REFUSED])
def test_what_a_peer_did_not_take_is_counted_by_its_reason(reason: DropReason) -> None:
    """What a closed connection gives up goes with this worker; everything else keeps its reason."""

    def act(router: Router) -> None:
        router._settled([Settled(None, 1, 3, 3, None), Settled(None, 1, 2, 2, reason)])
        told = DropReason.SHUTDOWN if reason is DropReason.CLOSED else reason
        assert router._ledger.acknowledged == 3
        assert {each: count for each, count in router._ledger.dropped.items() if count} == {told: 2}

    with_router(act)


def test_a_former_owner_that_is_dead_is_waited_for_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its moves wait until what it had is handed back, and for nothing else."""

    def act(router: Router) -> None:
        lost: list[set[Any]] = []
        monkeypatch.setattr(router._moves, "peers", lambda since=0.0: {THERE.peer} if not since else set())
        monkeypatch.setattr(router._moves, "lose", lost.append)
        router._dead.add(THERE.peer)
        router.refresh()
        assert lost == [{THERE.peer}]

    with_router(act)


def test_what_a_worker_passed_on_as_it_left_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection would wait for ever: no release comes from there any more."""

    def act(router: Router) -> None:
        ended: list[object] = []
        monkeypatch.setattr(router.connections, "receivers_ended", ended.append)
        router.refresh()
        assert ended == [router.departures.passed_on]

    with_router(act)


def test_an_assignment_that_means_another_worker_makes_nothing_ready() -> None:
    """Consumers are told why, and what to do."""

    def act(router: Router) -> None:
        assert router.not_ready is None
        router.table.misnamed = "start with --worker-id other"
        assert "start with --worker-id other" in str(router.not_ready)

    with_router(act)


def test_messages_that_are_given_up_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    """By task, with how many there are and why; and their sender has room again."""
    program, ledger = Counting(), Ledger()
    drops = Drops(ledger)
    drops.unroutable(TaskGroup.of(3, [b"x", b"y"]), program)
    (record,) = caplog.records
    assert record.getMessage().startswith("messages.dropped task=3 messages=2 reason=unknown_task")
    assert (ledger.dropped[DropReason.UNKNOWN_TASK], program.released) == (2, 2)


def test_messages_to_another_worker_leave_at_once() -> None:
    """In the turn in which they came."""

    def act(router: Router) -> None:
        router.recv(ReceivedBatch.arrived([TaskGroup.of(1, [b"x", b"y"])], Program()))
        assert router.connections.pending_messages == 2

    with_router(act)


def test_nobody_else_consumes_from_a_task_that_runs_here() -> None:
    """A consumer is refused by name; other tasks of the worker are open to it."""

    def act(router: Router) -> None:
        router.taken_here = frozenset({0})
        request = SubscribeRequest("me", "c", 1, 0, [Cursor(0, 0, 0, 10, 1000)])
        with pytest.raises(PermissionDeniedError, match="task 0 is run by worker here itself"):
            router.subscribe(request, lambda: None)
        router.taken_here = frozenset()
        assert router.subscribe(request, lambda: None).ended is None

    with_router(act)


@pytest.mark.parametrize(("queued", "passed_on"), [(0, 0), (1, 0), (0, 1)])
def test_what_a_worker_leaves_behind(queued: int, passed_on: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers have to wait for its end where it drops queued messages, or where it has passed some on."""

    def act(router: Router) -> None:
        if queued:
            router.recv(ReceivedBatch.arrived([TaskGroup.of(0, [b"x"])], Program()))
        monkeypatch.setattr(Router, "successors", {(1, 1): None} if passed_on else {})
        assert router.leaves_messages == bool(queued or passed_on)

    with_router(act)


def test_an_assignment_says_whether_it_is_new() -> None:
    """The same one again changes nothing."""

    def act(router: Router) -> None:
        assert not router.update(ASSIGNMENT)
        assert router.update(replace(ASSIGNMENT, version=2))

    with_router(act)


def test_a_connection_whose_messages_are_taken_back_writes_nothing() -> None:
    """From that moment on: its peer may answer before the connection is closed. The new one writes."""

    def act(router: Router) -> None:
        given_up: Any = router.connections.get(THERE.peer)
        router.connections.renew(THERE.peer)
        new: Any = router.connections.get(THERE.peer)
        assert (given_up.writes, new.writes) == (False, True)

    with_router(act)


def test_a_connection_that_is_not_needed_settles_what_it_has() -> None:
    """It goes on writing until its messages are acknowledged, or its time is over."""

    def act(router: Router) -> None:
        connection: Any = router.connections.get(THERE.peer)
        router.connections.refresh({}, (), (), 3.0)
        assert router.connections.get(THERE.peer) is None
        assert connection.writes

    with_router(act)


def test_the_place_of_a_task_is_told_as_far_as_it_is_known() -> None:
    """Here, at another worker, or, where nobody has it, here as well."""

    def act(router: Router) -> None:
        assert [router.place_of(task) for task in (0, 1, 9)] == [LOCAL, "there", LOCAL]

    with_router(act)


def test_messages_are_doubted_only_while_a_worker_is_lost() -> None:
    """What it had forwarded may come again from its programs, by another worker."""

    def act(router: Router) -> None:
        seen = []
        for connected in (True, False, True):
            router.worker_is(5, connected=connected)
            seen.append(router.queues.doubtful is not None)
        assert seen == [False, True, False]

    with_router(act)


def test_messages_that_circle_are_refused() -> None:
    """After more hops than any move takes, a task that is not here is refused; one that is here is not."""

    def act(router: Router) -> None:
        for task, hops, refused in ((1, 16, False), (1, 17, True), (0, 17, False)):
            group = TaskGroup.of(task, [b"x"])
            group = replace(group, forwarded=5 + hops * ((1 << 32) + (1 << 56)), entry_sequence=1)
            assert group.unqueued_hops == hops
            batch = ReceivedBatch.arrived([group], Worker())
            router.recv(batch)
            assert [type(error) for _, error in batch.refusals] == [TooManyHopsError] * refused, (task, hops)

    with_router(act)


def test_rejected_messages_that_wait_count_as_lost_at_the_end() -> None:
    """A worker that ends before a rejected message was due again counts it as dropped{shutdown}."""

    async def act(router: Router) -> None:
        router.recv(ReceivedBatch.arrived([TaskGroup.of(0, [b"a", b"b"])], Counting()))
        request = SubscribeRequest("", "c", 1, 0, [Cursor(0, 0, 0, 10, 1000)])
        subscription = router.queues.subscribe(request, lambda: None)
        assert len(subscription.take(1000)) == 1
        rejected = Rejection(1, 1, 10.0, "", wait=False)
        subscription.progress([Cursor(0, 2, 2, 10, 1000, (rejected,))])
        assert router.rejections.snapshot().waiting == 1
        await router.close(0.1, [], {})
        assert router.ledger().dropped[DropReason.SHUTDOWN] == 1
        assert router.ledger().balanced

    with_router(act)


def test_a_worker_without_an_assignment_says_so() -> None:
    """The error names three ways to get one; with an assignment that means this worker there is none."""
    table = RoutingTable("w")
    assert "has no assignment yet: push one" in str(table.not_ready)
    table.replace(Assignment(1, "t", (AssignedWorker("w", "127.0.0.1:1", (0,)),)))
    assert table.not_ready is None


def test_a_peer_that_has_shut_down_holds_up_no_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it had is handed back: moves no longer wait for its releases."""

    def act(router: Router) -> None:
        lost: list[Any] = []
        monkeypatch.setattr(router.connections, "ended", lambda *_: {THERE.peer: {1: None}})
        monkeypatch.setattr(router._moves, "lose", lost.append)
        router._renew_ended()
        assert lost == [{THERE.peer}]

    with_router(act)


def test_moves_are_looked_at_when_a_worker_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its departure may be what they wait for."""

    def act(router: Router) -> None:
        looked: list[Any] = []
        monkeypatch.setattr(router, "_end_moves", lambda tasks=None: looked.append(tasks))
        router.workers_left([Departure(7)])
        assert looked == [None]

    with_router(act)


def test_messages_by_a_newer_assignment_wait_for_it() -> None:
    """Another worker knows already that the task is ours: it is opened, and keeps what comes."""

    def act(router: Router) -> None:
        batch = ReceivedBatch.arrived([TaskGroup.of(1, [b"x"])], Worker())
        batch.assignment_version = 2
        router.recv(batch)
        assert router.version_received == 2
        assert list(batch.refusals) == []
        assert (router.connections.pending_messages, router.held_messages) == (0, 1)
        assert router.moving_tasks == 1

    with_router(act)


def test_taps_see_what_is_routed() -> None:
    """Each batch, after it was routed."""

    def act(router: Router) -> None:
        seen: list[Any] = []

        class Taps(list[int]):
            def look(self, batch: ReceivedBatch, place_of: Callable[[int], str]) -> None:
                seen.append([(group.task, place_of(group.task)) for group in batch.groups])

        router.taps = Taps([1])  # type: ignore[assignment]
        router.recv(ReceivedBatch.arrived([TaskGroup.of(task, [b"x"]) for task in (0, 1)], Program()))
        assert seen == [[(0, LOCAL), (1, "there")]]

    with_router(act)


def test_an_advertised_host_takes_the_first_port() -> None:
    """A host without a port is reached at that of the first address over TCP."""
    assert places(["unix:///run/w.sock", "10.0.0.1:6700", "10.0.0.1:6701"], "host") == [
        ("10.0.0.1", 6700),
        ("10.0.0.1", 6701),
        ("host", 6700),
    ]


def test_a_lost_connection_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its worker may have left: moves that wait for it must not wait for ever."""
    looked: list[object] = []

    async def act(router: Router) -> None:
        monkeypatch.setattr(router, "_renew_ended", lambda: looked.append(router))
        connection: Any = router.connections.get(THERE.peer)
        connection._when_lost()
        assert looked == []  # in a turn of its own
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert looked == [router]

    with_router(act)


def test_a_worker_is_given_up_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not before: moves that began less than three seconds ago wait."""

    def act(router: Router) -> None:
        asked: list[float] = []

        def peers(since: float = math.inf) -> set[Any]:
            asked.append(since)
            return set()

        monkeypatch.setattr(router._moves, "peers", peers)
        router.refresh()
        now = router._clock()
        assert [since for since in asked if since != math.inf and now - 60 < since < now - 1] != []

    with_router(act)


@pytest.mark.parametrize(("version", "stale"), [(0, False), (1, True), (2, True), (3, False)])
def test_programs_that_route_by_an_old_assignment_are_told(version: int, stale: bool) -> None:  # noqa: FBT001
    """A program that names a version has routed by itself; one that names none leaves that to its worker."""

    def act(router: Router) -> None:
        router.update(replace(ASSIGNMENT, version=3))
        batch = ReceivedBatch.arrived([TaskGroup.of(1, [b"x"])], Program())
        batch.assignment_version = version
        router.recv(batch)
        assert [type(error) for _, error in batch.refusals] == [StaleAssignmentError] * stale

    with_router(act)
