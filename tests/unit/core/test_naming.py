"""Detection of assignments that list this worker under another id or address."""

from __future__ import annotations

import pytest

from tuplewire_service.worker.assignment import AssignedWorker, Assignment
from tuplewire_service.worker.routing_table import id_mismatch, places


def _reason(worker_id: str, bound: str, *workers: tuple[str, str], advertise: str = "") -> str:
    assignment = Assignment(1, "t", tuple(AssignedWorker(*each, ()) for each in workers))
    return id_mismatch(assignment, worker_id, places([bound, "unix:///run/w.sock"], advertise))


@pytest.mark.parametrize(
    ("bound", "address"),
    [
        ("127.0.0.1:6700", "127.0.0.1:6700"),
        ("127.0.0.1:6700", "127.0.0.1:7000"),  # the address of a proxy
        ("0.0.0.0:6700", "10.0.0.7:6700"),
        ("[::]:6700", "worker-0.workers:80"),
    ],
)
def test_a_worker_that_is_named_is_meant_wherever_it_is_said_to_be(bound: str, address: str) -> None:
    """The id alone decides, because proxies, mapped ports and host aliases change the address."""
    assert _reason("w", bound, ("w", address), ("v", "10.0.0.8:6700")) == ""


@pytest.mark.parametrize(
    ("bound", "advertise", "address"),
    [
        ("127.0.0.1:6700", "", "127.0.0.1:6700"),
        ("127.0.0.1:6700", "", "localhost:6700"),
        ("0.0.0.0:6700", "", "127.0.0.1:6700"),
        ("[::]:6700", "", "[::1]:6700"),
        ("0.0.0.0:6700", "10.0.0.7", "10.0.0.7:6700"),
        ("0.0.0.0:6700", "host-7:80", "Host-7:80"),
    ],
)
def test_a_worker_that_is_called_otherwise_is_told_its_name(bound: str, advertise: str, address: str) -> None:
    """The reason names the address, its id in the assignment, and the flag."""
    reason = _reason("vm:6700", bound, ("w1", address), advertise=advertise)
    assert reason.startswith(
        f"the assignment has no worker vm:6700; its {address} is called w1: start with --worker-id w1"
    )


@pytest.mark.parametrize("address", ["127.0.0.1:6701", "10.0.0.7:6700", "localhost:80"])
def test_a_worker_that_is_not_named_hears_who_is(address: str) -> None:
    """Without a matching address, the reason only lists the assigned workers."""
    reason = _reason("w2", "127.0.0.1:6700", ("w1", address))
    assert "no worker w2 (here, at 127.0.0.1:6700), only w1: start with the --worker-id" in reason


def test_a_worker_whose_address_is_anothers_is_not_meant() -> None:
    """Swapped addresses are an error, because two workers would receive each other's messages."""
    reason = _reason("a", "127.0.0.1:1", ("a", "127.0.0.1:2"), ("b", "127.0.0.1:1"))
    assert "worker a elsewhere; 127.0.0.1:1, which is here, it calls b" in reason
    assert "--worker-id b" in reason
