"""Successors: who has messages that a stopped worker had forwarded, through one drain or several."""

from __future__ import annotations

from tuplewire.session.departure import Departure, Departures, Successor
from tuplewire_service.worker.successors import Successors

OWN, OWN_NUMBER = 9, 900
TASK, PROGRAM = 1, 0
ENTRY = TASK, OWN_NUMBER
A, B, C = (Successor(name, f"{name}:1", number) for number, name in enumerate("abc", 1))


def left(worker: Successor, successor: Successor | None = None) -> Departure:
    """Return the departure of a worker, which had forwarded this worker's messages to a successor."""
    return Departure(worker.incarnation, successors={} if successor is None else {ENTRY: successor})


def unreleased(worker: Successor) -> list[tuple[tuple[str, str], int, dict[tuple[int, int], int]]]:
    """Return messages of this worker that a connection to a worker still waits for."""
    return [((worker.worker_id, worker.address), worker.incarnation, {(TASK, PROGRAM): 5})]


def known(*departures: Departure) -> Departures:
    """Return the departures that a worker knows."""
    found = Departures()
    found.hear(departures)
    return found


def test_the_successor_of_a_stopped_worker_is_learned() -> None:
    """The next message of the task goes to the successor, once; a connection to it is needed."""
    successors = Successors(OWN_NUMBER, OWN)
    successors.learn(known(left(A, B)), unreleased(A))
    assert len(successors) == 1
    assert successors.peers == {("b", "b:1")}
    assert successors.take(*ENTRY) == B
    assert successors.take(*ENTRY) is None


def test_a_stopped_worker_without_a_successor() -> None:
    """All of its messages were consumed: the next message goes to the owner."""
    successors = Successors(OWN_NUMBER, OWN)
    successors.learn(known(left(A)), unreleased(A))
    assert successors.take(*ENTRY) is None


def test_a_chain_of_drains_ends_at_the_last() -> None:
    """A forwarded to B and B to C, and both have stopped."""
    successors = Successors(OWN_NUMBER, OWN)
    successors.learn(known(left(A, B), left(B, C)), unreleased(A))
    assert successors.peers == {("c", "c:1")}
    successors = Successors(OWN_NUMBER, OWN)
    successors.learn(known(left(A, B)), unreleased(A))
    successors.learn(known(left(B, C)), [])
    assert successors.take(*ENTRY) == C


def test_a_chain_may_end_with_a_consumer() -> None:
    """B stopped without a successor: all messages were consumed there, so the next goes anywhere."""
    successors = Successors(OWN_NUMBER, OWN)
    successors.learn(known(left(A, B), left(B)), unreleased(A))
    assert not len(successors)
    assert successors.peers == set()


def test_messages_that_came_back_have_no_successor() -> None:
    """What was forwarded to this worker is in its own queue."""
    successors = Successors(OWN_NUMBER, OWN)
    itself = Successor("own", "own:1", OWN)
    successors.learn(known(left(A, itself)), unreleased(A))
    assert not len(successors)


def test_a_departure_that_was_just_received() -> None:
    """It counts if a message of the same entry worker is unreleased anywhere."""
    successors = Successors(OWN_NUMBER, OWN)
    successors.hear([left(B, C)], unreleased(A))
    assert successors.take(*ENTRY) == C
    successors.hear([left(B, C)], [])
    assert successors.take(*ENTRY) is None


def test_what_this_worker_leaves_itself() -> None:
    """The connection with the highest entry sequence has the latest messages."""
    successors = Successors(OWN_NUMBER, OWN)
    connections = [
        (("a", "a:1"), A.incarnation, {(TASK, PROGRAM): 5}),
        (("b", "b:1"), B.incarnation, {(TASK, PROGRAM): 7}),
        (("c", "c:1"), C.incarnation, {(TASK, PROGRAM): 6}),
    ]
    assert successors.left(connections) == {ENTRY: B}
