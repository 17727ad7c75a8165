"""While a task moves, messages wait only for earlier messages on an old route."""

from __future__ import annotations

from typing import Any, cast

import pytest
from helpers.cursors import ack_of, credit_of
from helpers.queues import Program
from helpers.sending import PLENTY, reopen

from tuplewire.connection.sending_end import SendingEnd
from tuplewire.session.send import SendSession
from tuplewire.settings.addresses import Peer
from tuplewire.settings.config import SessionSettings
from tuplewire.values.group import TaskGroup, flow_path_of
from tuplewire.wire.messaging_pb2 import Departure
from tuplewire_service.messaging.base import InboundSession
from tuplewire_service.worker.assignment import AssignedWorker
from tuplewire_service.worker.departures import Departures, Successor, Successors, successors_to_wire
from tuplewire_service.worker.moves import EntrySequences, LostWorkers, Moves

TASK = 1
OWN, OTHER = 100, 200
"""Worker numbers: this worker, and a worker that sends messages to it."""
PEER = Peer("w", "127.0.0.1:1")


PROGRAM, WORKER = Program(), Program(OTHER)


class Route:
    """A connection to a previous owner: a send session with a receiver simulated by the test."""

    def __init__(self, *sent: TaskGroup) -> None:
        self.session = SendSession(SessionSettings())
        reopen(self.session)
        self.ack_handler = self
        if sent:
            self.send(*sent)

    def watch_releases(self, tasks: list[int]) -> None:
        """Do nothing: every release is known here."""

    def send(self, *groups: TaskGroup) -> None:
        assert self.session.offer(groups, "inbound")
        frame = self.session.next_frame()
        assert frame is not None
        self.session.apply_ack(ack_of(frame.sequence, [], []))

    def consume(self, group: TaskGroup, messages: int) -> None:
        """Release a total of `messages` messages of the group's flow."""
        grant = credit_of(group.flow_id, PLENTY, PLENTY, messages)
        self.session.apply_ack(ack_of(self.session.acked_frame, [grant], []))


def messages(first: int, count: int = 1, *, passed_on: int = 0, worker: int = OTHER) -> TaskGroup:
    """Return messages from an entry sequence on, after they were forwarded `passed_on` times."""
    group = TaskGroup.of(TASK, [b"x"] * count).numbered(first, 0)
    for _ in range(passed_on):
        group = group.as_forwarded(worker)
    return group


def moving(*routes: Route, left: bool = True) -> Moves:
    """Return the moves of a task with these previous owners. left: the task has left the local queue."""
    moves = Moves(Successors(OWN, 0), lambda _: None, lambda _: left)
    for route in routes:
        moves.add_old_route(TASK, PEER, cast("SendingEnd", route))
    return moves


def held(moves: Moves, group: TaskGroup, inbound: Program) -> bool:
    """Hold messages if they must wait; return True in this case."""
    return moves.try_hold(group, cast("InboundSession", inbound))


def follows(moves: Moves, group: TaskGroup, inbound: Program, route: Route) -> bool:
    """Return True if messages must follow earlier ones by this route."""
    assert not held(moves, group, inbound)
    move = moves.by_task[TASK]
    return move.connection_to_follow(group, cast("InboundSession", inbound)) is cast("Any", route)


def went(moves: Moves, group: TaskGroup, route: Route | None) -> None:
    """Record the route of messages from another worker."""
    moves.by_task[TASK].record_route(group, cast("InboundSession", WORKER), cast("SendingEnd | None", route))


def free(moves: Moves) -> list[int]:
    """Return the entry sequences of messages that no longer need to wait."""
    return [group.entry_sequence for group, _ in moves.take_ready(moves.filter_moving(), {})]


def test_what_follows_waits_until_the_old_route_is_empty() -> None:
    """A program's message waits for the earlier ones; then it is sent, and the move ends."""
    first = messages(1, 3)
    route = Route(first)
    moves = moving(route)
    assert held(moves, messages(4), PROGRAM)
    route.consume(first, 2)
    assert free(moves) == []
    route.consume(first, 3)
    assert free(moves) == [4]
    assert TASK not in moves.by_task


def test_what_another_worker_sent_goes_after_what_came_before_it() -> None:
    """Messages from another worker do not wait for earlier ones, but follow them on the same route."""
    route = Route(messages(5, 10, passed_on=1))
    moves = moving(route)
    for again in messages(5, 10, passed_on=2), messages(9, 3, passed_on=2):  # also a part of it
        assert not follows(moves, again, WORKER, route)
    later = messages(15, passed_on=1)
    assert follows(moves, later, WORKER, route)
    went(moves, later, route)
    went(moves, messages(5, 10, passed_on=2), None)  # they have returned
    assert follows(moves, messages(16, passed_on=1), WORKER, route)
    went(moves, messages(15, passed_on=3), None)
    assert not follows(moves, messages(16, passed_on=1), WORKER, route)


def test_our_own_come_around_too() -> None:
    """Returned messages of this worker's programs are sent before newer messages of these programs."""
    route, other = Route(), Route()
    route.send(messages(1, 2))
    moves = moving(route)
    back = messages(1, passed_on=1, worker=OWN)
    went(moves, back, other)
    moves.add_old_route(TASK, PEER, cast("SendingEnd", other))
    other.send(back.as_forwarded(OWN))
    assert held(moves, messages(3), PROGRAM)
    assert follows(moves, messages(2, passed_on=1, worker=OWN), WORKER, other)
    other.consume(back.as_forwarded(OWN), 1)
    route.consume(messages(1), 2)
    assert free(moves) == [3]


def test_later_messages_take_the_route_of_earlier_ones() -> None:
    """Earlier messages took a longer route; on a shorter one, later messages could arrive first."""
    earlier, later = messages(1, passed_on=3), messages(2, passed_on=1)
    behind = Route(earlier).session.flow_path_before(TASK, (OTHER,), 2)
    assert behind == flow_path_of(earlier.path)
    assert later.as_forwarded(OTHER, behind).flow_id == earlier.flow_id
    assert messages(2, passed_on=4).as_forwarded(OTHER, behind).flow_id == messages(2, passed_on=5).flow_id


def test_a_move_is_over_when_everything_on_its_ways_is_done_with() -> None:
    """Messages of other workers keep the move open; once they are consumed, later ones go to the owner."""
    other = messages(1, passed_on=1)
    route = Route(other)
    moves = moving(route)
    assert follows(moves, messages(2, passed_on=1), WORKER, route)
    assert free(moves) == []
    assert TASK in moves.by_task
    route.consume(other, 1)
    assert not follows(moves, messages(2, passed_on=1), WORKER, route)
    free(moves)
    assert TASK not in moves.by_task


def test_a_way_that_is_given_up_holds_nobody() -> None:
    """A closed connection returns its messages, and the messages that waited for it are sent."""
    route = Route(messages(1))
    moves = moving(route)
    assert held(moves, messages(2), PROGRAM)
    moves.remove_routes(cast("SendingEnd", Route()), [])
    assert free(moves) == []
    moves.remove_routes(cast("SendingEnd", route), [])
    assert free(moves) == [2]


def test_what_comes_after_waits_until_what_a_lost_worker_had_is_back() -> None:
    """Messages wait until a lost worker's messages are routed again; the connection is empty before that."""
    route = Route()
    moves = moving(route)
    route.send(messages(1))
    moves.mark_lost({PEER})
    route.session.withdraw()
    assert held(moves, messages(2), WORKER)
    assert held(moves, messages(3), WORKER)
    assert free(moves) == []
    moves.remove_routes(cast("SendingEnd", route), [])
    assert free(moves) == [2, 3]
    assert TASK not in moves.by_task


def test_what_is_handed_back_waits_for_what_is_on_another_route() -> None:
    """Returned messages wait for earlier ones on another route; the rest is routed immediately."""
    ended, other = Route(), Route()
    first = messages(1, 3)
    other.send(first)
    moves = moving(other)
    moves.add_old_route(TASK, Peer("w2", "127.0.0.1:2"), cast("SendingEnd", ended))
    moves.mark_lost({Peer("w2", "127.0.0.1:2")})
    left = [(messages(4), PROGRAM), (messages(9), WORKER)]
    handed_back = moves.remove_routes(cast("SendingEnd", ended), cast("Any", left))
    assert [group.entry_sequence for group, _ in handed_back] == [9]
    other.consume(first, 3)
    assert free(moves) == [4]


def test_what_travelled_further_stays_in_front() -> None:
    """Messages of one entry worker may be in several flows; a new receiver gets them in order."""
    first = messages(1, passed_on=1)
    route = Route(first)
    route.consume(first, 1)
    for group in (messages(7, passed_on=2), messages(12, passed_on=1)):
        assert route.session.offer([group], "inbound")
    reopen(route.session, 8)
    frame = route.session.next_frame()
    assert frame is not None
    assert [group.entry_sequence for run in frame.runs for group in run] == [7, 12]
    assert [group.entry_sequence for group, _ in route.session.withdraw()] == [7, 12]


def test_a_message_between_held_ones_waits() -> None:
    """A message waits for earlier held messages, even if the old route is already empty."""
    first = messages(1, 3)
    route = Route(first)
    moves = moving(route)
    for entry_sequence in (5, 9):
        assert held(moves, messages(entry_sequence), PROGRAM)
    route.consume(first, 3)
    assert held(moves, messages(7), PROGRAM)
    assert not held(moves, messages(4), PROGRAM)


def test_of_what_waits_only_what_is_free_goes() -> None:
    """The first held message is sent before the second, which waits for another old route."""
    one, two = Route(), Route()
    first, second = messages(1, 3), messages(5, 3)
    one.send(first)
    two.send(second)
    moves = moving(one, two)
    assert held(moves, messages(4), PROGRAM)
    assert held(moves, messages(8), PROGRAM)
    one.consume(first, 3)
    assert free(moves) == [4]
    two.consume(second, 3)
    assert free(moves) == [8]


@pytest.mark.parametrize("entered", [OWN, OTHER])
@pytest.mark.parametrize("in_flight", [True, False])
def test_a_message_follows_earlier_ones_to_a_successor(*, entered: int, in_flight: bool) -> None:
    """A message follows earlier ones to a drained worker's successor, unless later ones go to the owner."""
    route, other = Route(), Route()
    owner, routes = Peer("o", "o:1"), {Peer("o", "o:1"): route, Peer("s", "s:1"): other}
    moves = Moves(Successors(OWN, 0), cast("Any", routes.get), lambda _: True)
    successors = successors_to_wire({(TASK, entered): Successor("s", "s:1", 5)})
    departure = Departure(incarnation=3, successors=successors)
    moves.successors.add_departures([departure], [(PEER, 3, {(TASK, entered): 1})])
    assert len(moves.successors.by_task) == 1
    if in_flight:
        route.send(messages(1) if entered == OWN else messages(1, passed_on=1))
    inbound = cast("InboundSession", PROGRAM if entered == OWN else WORKER)
    move, way = moves.destination_of(messages(2), inbound, owner)
    assert (move is None, way) == (in_flight, None if in_flight else other)


def test_an_entry_sequence_is_never_given_twice() -> None:
    """A forgotten task that returns continues after the highest number of any task."""
    sequences = EntrySequences()

    def placed(task: int, count: int) -> int:
        return sequences.assign_sequence(
            TaskGroup.of(task, [b"x"] * count), 0, retained_upstream=False
        ).entry_sequence

    assert [placed(1, 3), placed(1, 1), placed(2, 1)] == [1, 4, 1]
    sequences.forget(1)
    sequences.forget(2)
    assert placed(1, 1) == 5


@pytest.mark.parametrize(
    ("owner", "left", "moves_on"), [("w", True, False), ("w", False, True), (None, True, True)]
)
def test_a_task_that_comes_back_to_a_former_owner(owner: str | None, *, left: bool, moves_on: bool) -> None:
    """A route ends if its worker owns the task again and no messages wait in the local queue."""
    moves = moving(Route(messages(1)), left=left)
    owner_of = {} if owner is None else {TASK: AssignedWorker(owner, PEER[1], (TASK,))}
    moves.take_ready([TASK], owner_of)
    move = moves.by_task.get(TASK)
    assert bool(move and move.routes) is moves_on


def test_what_a_lost_worker_had_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages from a lost worker, or forwarded by it, are recognized, of the most recently lost ones."""
    monkeypatch.setattr("tuplewire_service.worker.moves._MAX_LOST_WORKERS", 2)
    lost = LostWorkers()
    lost.on_worker_connection(OTHER, connected=True)
    assert not lost.accepted(messages(1), WORKER)
    lost.on_worker_connection(OTHER, connected=False)
    assert lost.accepted(messages(1), WORKER)
    assert lost.accepted(messages(1, passed_on=1), Program(300))
    assert not lost.accepted(messages(1), PROGRAM)
    assert not lost.accepted(messages(1), Program(300))
    for number in (2, 3):
        lost.on_worker_connection(number, connected=False)
    inbound = [cast("InboundSession", Program(number)) for number in (OTHER, 2, 3)]
    assert [lost.accepted(messages(1), each) for each in inbound] == [False, True, True]


OWN_INCARNATION = 9
NO_WORKER = 0
ENTRY = TASK, OWN
A, B, C = (Successor(name, f"{name}:1", number) for number, name in enumerate("abc", 1))


def departed(worker: Successor, successor: Successor | None = None) -> Departure:
    """Return the departure of a worker that had forwarded this worker's messages to a successor."""
    successors = successors_to_wire({} if successor is None else {ENTRY: successor})
    return Departure(incarnation=worker.incarnation, successors=successors)


def unreleased(worker: Successor) -> list[tuple[Peer, int, dict[tuple[int, int], int]]]:
    """Return this worker's messages that are not released by a peer."""
    return [(Peer(worker.worker_id, worker.address), worker.incarnation, {(TASK, NO_WORKER): 5})]


def known(*departures: Departure) -> Departures:
    """Return the departures that a worker knows."""
    found = Departures()
    found.merge(departures)
    return found


@pytest.mark.parametrize(
    ("departures", "found"),
    [
        ([departed(A, B)], B),
        ([departed(A)], None),
        ([departed(A, B), departed(B, C)], C),
        ([departed(A, B), departed(B)], None),
        ([departed(A, Successor("own", "own:1", OWN_INCARNATION))], None),
    ],
    ids=["next", "all were consumed", "chain of drains", "consumed at the second", "came back"],
)
def test_the_next_message_goes_to_the_last_successor_once(
    departures: list[Departure], found: Successor | None
) -> None:
    """A connection to the successor is needed; without one, the message goes to the owner."""
    successors = Successors(OWN, OWN_INCARNATION)
    successors.refresh(known(*departures), unreleased(A))
    assert successors.peers == ({Peer(found.worker_id, found.address)} if found else set())
    assert len(successors.by_task) == len(successors.peers)
    assert [successors.by_task.pop(ENTRY, None) for _ in range(2)] == [found, None]


def test_a_departure_that_was_just_received() -> None:
    """A departure counts if a message of the same entry worker is unreleased anywhere."""
    successors = Successors(OWN, OWN_INCARNATION)
    successors.add_departures([departed(B, C)], unreleased(A))
    assert successors.by_task.pop(ENTRY, None) == C
    successors.add_departures([departed(B, C)], [])
    assert successors.by_task.pop(ENTRY, None) is None


def test_what_this_worker_leaves_itself() -> None:
    """The connection with the highest entry sequence has the latest messages."""
    successors = Successors(OWN, OWN_INCARNATION)
    connections = [
        (Peer("a", "a:1"), A.incarnation, {(TASK, NO_WORKER): 5}),
        (Peer("b", "b:1"), B.incarnation, {(TASK, NO_WORKER): 7}),
        (Peer("c", "c:1"), C.incarnation, {(TASK, NO_WORKER): 6}),
    ]
    assert successors.snapshot_at_shutdown(connections) == {ENTRY: B}
