"""A defect on the way of messages: it is not hidden, and the ledger adds up all the same."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tuplewire import TaskGroup
from tuplewire.connection.loop import messaging_loop
from tuplewire.connection.send_buffer import SendBuffer
from tuplewire.errors import RefusedError, TuplewireError, WrongTopologyError
from tuplewire_service.messaging.base import ReceivedBatch
from tuplewire_service.messaging.local import LocalContext
from tuplewire_service.worker.assignment import AssignedWorker, Assignment
from tuplewire_service.worker.router import Router
from tuplewire_service.worker.worker_settings import WorkerSettings

ASSIGNMENT = Assignment(
    1,
    "t",
    (
        AssignedWorker("here", "127.0.0.1:1", (0,)),
        AssignedWorker("there", "127.0.0.1:2", (1,)),
        AssignedWorker("elsewhere", "127.0.0.1:3", (2,)),
    ),
)


class _Program:
    source, sender_id, worker_number, wants_releases = "client", "c", 0, False

    def __init__(self) -> None:
        self.released: list[int] = []

    def release(self, task: int, messages: int, _size_bytes: int) -> None:
        self.released += [task] * messages


def _run(error: Exception, monkeypatch: pytest.MonkeyPatch) -> tuple[Router, _Program, list[Any]]:
    """Send two messages each to tasks 0, 1 and 2 where every connection fails with this error."""

    def offer(*_: object, **__: object) -> bool:
        raise error

    monkeypatch.setattr(SendBuffer, "offer", offer)
    program, defects = _Program(), []

    async def main() -> Router:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: defects.append(context))
        context = LocalContext()
        router = Router(
            WorkerSettings(worker_id="here", topology="t"),
            1,
            context,
            draining=lambda: False,
        )
        router.update(ASSIGNMENT)
        groups = [TaskGroup.of(task, [b"a", b"b"]) for task in (0, 1, 2)]
        router.recv(ReceivedBatch.arrived(groups, program))
        assert router.ledger().balanced
        await asyncio.sleep(0)  # the turn in which the transfer queue drains
        await asyncio.to_thread(router.connections.abort)
        await asyncio.to_thread(context.term)
        loop.set_exception_handler(None)
        return router

    return messaging_loop().run(main()), program, defects


def test_a_defect_in_a_connection_is_loud_and_the_ledger_adds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop hears of it; what was not sent counts as dropped, and its sender is not told it is done."""
    router, program, defects = _run(RuntimeError("a defect"), monkeypatch)
    assert [str(context["exception"]) for context in defects] == ["a defect"]
    ledger = router.ledger()
    assert (ledger.accepted, ledger.pending, ledger.dropped["shutdown"]) == (6, 2, 4)
    assert ledger.balanced
    assert program.released == []


@pytest.mark.parametrize(
    "error", [WrongTopologyError("not ours"), RefusedError("never heard of"), TuplewireError("x")]
)
def test_a_refusal_by_one_peer_is_settled_by_name(
    error: TuplewireError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No defect: these messages are dropped{refused}, the others go on."""
    router, program, defects = _run(error, monkeypatch)
    assert defects == []
    ledger = router.ledger()
    assert (ledger.accepted, ledger.pending, ledger.dropped["refused"]) == (6, 2, 4)
    assert ledger.balanced
    assert program.released == [1, 1, 2, 2]


def test_a_defect_while_held_messages_are_routed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of three raises: the first is on its way, the others count as dropped."""

    async def main() -> None:
        context = LocalContext()
        router = Router(WorkerSettings(worker_id="here", topology="t"), 1, context, draining=lambda: False)
        router.update(ASSIGNMENT)
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
        await asyncio.to_thread(router.connections.abort)
        await asyncio.to_thread(context.term)

    messaging_loop().run(main())
