"""Defects in the message path are reported, and the ledger stays balanced."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from helpers.one_router import HERE, THERE

from tuplewire import TaskGroup
from tuplewire.connection.send_buffer import SendBuffer
from tuplewire.errors import RefusedError, TuplewireError, WrongTopologyError
from tuplewire_service.messaging.base import ReceivedBatch
from tuplewire_service.worker.assignment import AssignedWorker, Assignment
from tuplewire_service.worker.router import Router

ASSIGNMENT = Assignment(1, "t", (HERE, THERE, AssignedWorker("elsewhere", "127.0.0.1:3", (2,))))
pytestmark = pytest.mark.parametrize("router", [ASSIGNMENT], indirect=True)


class _Program:
    source, sender_id, worker_number, needs_release_acks = "client", "c", 0, False

    def __init__(self) -> None:
        self.released: list[int] = []

    def release(self, task: int, messages: int, _size_bytes: int) -> None:
        self.released += [task] * messages


async def _send(
    router: Router, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> tuple[_Program, list[Any]]:
    """Send two messages each to tasks 0, 1 and 2 while every connection fails with this error."""

    def offer(*_: object, **__: object) -> bool:
        raise error

    monkeypatch.setattr(SendBuffer, "offer", offer)
    program, defects = _Program(), []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: defects.append(context))
    groups = [TaskGroup.of(task, [b"a", b"b"]) for task in (0, 1, 2)]
    router.recv(ReceivedBatch.arrived(groups, program))
    assert router.ledger().balanced
    await asyncio.sleep(0)  # the turn in which the transfer queue drains
    loop.set_exception_handler(None)
    return program, defects


async def test_a_defect_in_a_connection_is_loud_and_the_ledger_adds_up(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop reports the error, and unsent messages count as dropped but are not released."""
    program, defects = await _send(router, RuntimeError("a defect"), monkeypatch)
    assert [str(context["exception"]) for context in defects] == ["a defect"]
    ledger = router.ledger()
    assert (ledger.accepted, ledger.pending, ledger.dropped["shutdown"]) == (6, 2, 4)
    assert ledger.balanced
    assert program.released == []


@pytest.mark.parametrize(
    "error", [WrongTopologyError("not ours"), RefusedError("never heard of"), TuplewireError("x")]
)
async def test_a_refusal_by_one_peer_is_settled_by_name(
    router: Router, error: TuplewireError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal is not a defect: its messages are dropped{refused}, and the others continue."""
    program, defects = await _send(router, error, monkeypatch)
    assert defects == []
    ledger = router.ledger()
    assert (ledger.accepted, ledger.pending, ledger.dropped["refused"]) == (6, 2, 4)
    assert ledger.balanced
    assert program.released == [1, 1, 2, 2]


async def test_a_defect_while_held_messages_are_routed(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the second of three messages fails, the first is in flight and the others are dropped."""
    put, calls = router._transfer.put, []

    def raises(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == 2:
            raise RuntimeError("a defect")
        put(*arguments)

    monkeypatch.setattr(router._transfer, "put", raises)
    held: list[Any] = [(TaskGroup.of(1, [payload]), _Program()) for payload in (b"a", b"b", b"c")]
    router._ledger.accepted += 3
    with pytest.raises(RuntimeError, match="a defect"):
        router._reroute(held)
    ledger = router.ledger()
    assert (ledger.pending, ledger.dropped["shutdown"]) == (1, 2)
    assert ledger.balanced
