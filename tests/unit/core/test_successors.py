"""Successors: the owners of messages that a stopped worker had forwarded, through one drain or several."""

from __future__ import annotations

import pytest

from tuplewire.session.departure import Departure, Departures, Successor
from tuplewire_service.worker.successors import Successors

OWN, OWN_NUMBER = 9, 900
TASK, PROGRAM = 1, 0
ENTRY = TASK, OWN_NUMBER
A, B, C = (Successor(name, f"{name}:1", number) for number, name in enumerate("abc", 1))


def left(worker: Successor, successor: Successor | None = None) -> Departure:
    """Return the departure of a worker that had forwarded this worker's messages to a successor."""
    return Departure(worker.incarnation, successors={} if successor is None else {ENTRY: successor})


def unreleased(worker: Successor) -> list[tuple[tuple[str, str], int, dict[tuple[int, int], int]]]:
    """Return this worker's messages that are not released by a peer."""
    return [((worker.worker_id, worker.address), worker.incarnation, {(TASK, PROGRAM): 5})]


def known(*departures: Departure) -> Departures:
    """Return the departures that a worker knows."""
    found = Departures()
    found.hear(departures)
    return found


@pytest.mark.parametrize(
    ("departures", "found"),
    [
        ([left(A, B)], B),
        ([left(A)], None),
        ([left(A, B), left(B, C)], C),
        ([left(A, B), left(B)], None),
        ([left(A, Successor("own", "own:1", OWN))], None),
    ],
    ids=["next", "all were consumed", "chain of drains", "consumed at the second", "came back"],
)
def test_the_next_message_goes_to_the_last_successor_once(
    departures: list[Departure], found: Successor | None
) -> None:
    """A connection to the successor is needed; without one, the message goes to the owner."""
    successors = Successors(OWN_NUMBER, OWN)
    successors.refresh(known(*departures), unreleased(A))
    assert successors.peers == ({(found.worker_id, found.address)} if found else set())
    assert len(successors) == len(successors.peers)
    assert [successors.take(*ENTRY) for _ in range(2)] == [found, None]


def test_a_chain_may_be_learned_step_by_step() -> None:
    """A forwarded to B and stopped; later B forwarded to C."""
    successors = Successors(OWN_NUMBER, OWN)
    successors.refresh(known(left(A, B)), unreleased(A))
    successors.refresh(known(left(B, C)), [])
    assert successors.take(*ENTRY) == C


def test_a_departure_that_was_just_received() -> None:
    """A departure counts if a message of the same entry worker is unreleased anywhere."""
    successors = Successors(OWN_NUMBER, OWN)
    successors.add_departures([left(B, C)], unreleased(A))
    assert successors.take(*ENTRY) == C
    successors.add_departures([left(B, C)], [])
    assert successors.take(*ENTRY) is None


def test_what_this_worker_leaves_itself() -> None:
    """The connection with the highest entry sequence has the latest messages."""
    successors = Successors(OWN_NUMBER, OWN)
    connections = [
        (("a", "a:1"), A.incarnation, {(TASK, PROGRAM): 5}),
        (("b", "b:1"), B.incarnation, {(TASK, PROGRAM): 7}),
        (("c", "c:1"), C.incarnation, {(TASK, PROGRAM): 6}),
    ]
    assert successors.snapshot_at_shutdown(connections) == {ENTRY: B}
