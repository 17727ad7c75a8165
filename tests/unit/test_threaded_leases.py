"""What the bound side of a transport with threads remembers of senders whose connections have ended."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from typing import Any

import pytest

from tuplewire import TaskGroup
from tuplewire.config import AckMode
from tuplewire.errors import ResourceLimitError
from tuplewire.session.receive import Opened
from tuplewire_service.messaging import receiving_end
from tuplewire_service.messaging.base import IConnectionCallback, ReceivedBatch
from tuplewire_service.messaging.threaded import ReceivingSession, Sending, ThreadedServer
from tuplewire_service.messaging.transport_settings import TransportSettings
from tuplewire_service.testing import eventually

WINDOW = 1000
TASK = 1


class Bare(ThreadedServer):
    """A bound side without I/O."""

    def _opened(self) -> None:
        """Nobody waits."""

    def _tell_load(self, loads: dict[int, float]) -> None:
        """There is nobody to tell."""

    def _tell_status(self, congested: Sequence[int], relieved: Sequence[int]) -> None:
        """There is nobody to tell."""

    def _end(self, timeout: float) -> None:
        """There is nothing to end."""


class Keeping(IConnectionCallback):
    """Holds what it gets."""

    def __init__(self) -> None:
        self.batches: list[ReceivedBatch] = []

    def recv(self, batch: ReceivedBatch) -> None:
        """Keep it."""
        batch.hold()
        self.batches.append(batch)

    def release(self) -> None:
        """Be done with all of it."""
        for batch in self.batches:
            for group in batch.groups:
                batch.inbound.release(group.task, len(group), len(group.data))


def bound(callback: IConnectionCallback, **settings: Any) -> Bare:
    """Return a bound side with small windows."""
    server = Bare(TransportSettings(receive_messages=WINDOW, **settings))
    server.register_recv(callback)
    return server


def connect(server: Bare, sender: str, known: int = 0, **more: Any) -> tuple[ReceivingSession, Opened]:
    """Let a sender connect."""
    return server.welcome(Sending(sender, "", AckMode.QUEUED, False, known, 0, **more), lambda: None)


def window(server: Bare) -> int:
    """Return how many messages a new sender may send; it says goodbye."""
    session, opened = connect(server, "next")
    server.goodbye(session)
    return opened.initial.messages


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a share last for a tenth of a second."""
    monkeypatch.setattr(receiving_end, "SHARE_SECONDS", 0.1)


@pytest.mark.usefixtures("brief")
def test_the_lost_take_no_share_and_may_resume() -> None:
    """Fifty that were lost leave the whole window to the next one, and each finds its session again."""
    server = bound(Keeping())
    sessions = [connect(server, str(number))[0] for number in range(50)]
    assert window(server) < WINDOW
    for session in sessions:
        server.take(session, 1, [TaskGroup.of(TASK, [b"x"])])
        server.lost(session)
    eventually(lambda: server.statistics().sessions == 0, 10)
    assert server.statistics().resumable_sessions == 50
    assert window(server) == WINDOW
    again, opened = connect(server, "0", sessions[0].incarnation)
    assert again is sessions[0]
    assert opened.update.sequence == 1
    assert server.statistics().sessions == 1
    server.close()


@pytest.mark.usefixtures("brief")
def test_what_the_lost_have_left_is_taken_off_the_queue() -> None:
    """Until it is released, the others have so much less; then all of it."""
    queue = Keeping()
    server = bound(queue)
    session, _ = connect(server, "gone")
    server.take(session, 1, [TaskGroup.of(TASK, [b"x"] * (WINDOW // 2))])
    server.lost(session)
    eventually(lambda: server.statistics().sessions == 0, 10)
    other, _ = connect(server, "other")
    assert other.state.credit.all()[0].messages == WINDOW // 2
    queue.release()
    eventually(lambda: other.state.credit.all()[0].messages == WINDOW, 10)
    server.close()


@pytest.mark.usefixtures("brief")
def test_the_lost_are_forgotten() -> None:
    """After `resume_seconds` nothing is remembered."""
    server = bound(Keeping(), resume_seconds=0.1)
    for number in range(50):
        server.lost(connect(server, str(number))[0])
    eventually(lambda: server.statistics().sessions == server.statistics().resumable_sessions == 0, 10)
    server.close()


@pytest.mark.usefixtures("brief")
def test_a_connection_that_is_found_lost_late() -> None:
    """A sender that has connected again meanwhile keeps its share."""
    server = bound(Keeping(), resume_seconds=0.1)
    session, _ = connect(server, "s")
    assert connect(server, "s", session.incarnation)[0] is session
    server.lost(session)
    server.lost(connect(server, "brief")[0])
    eventually(lambda: server.statistics().sessions == 1, 10)
    assert connect(server, "s", session.incarnation)[0] is session
    server.close()


def test_a_limit_of_sessions() -> None:
    """Who is lost gives way to who comes; where all are there, the next one is told the limit."""
    server = bound(Keeping(), max_sessions=2)
    lost, _ = connect(server, "lost")
    connect(server, "there")
    with pytest.raises(ResourceLimitError, match="raise max_sessions"):
        connect(server, "more")
    server.lost(lost)
    connect(server, "more")
    server.close()


def test_queued_messages_keep_no_session_that_has_ended() -> None:
    """They know whose they were and give its room back; equal sessions leave one small object together."""
    callback = Keeping()
    server = bound(callback)
    ended = []
    for sender in ("a", "b"):
        session = connect(server, sender)[0]
        server.take(session, 1, [TaskGroup.of(TASK, [b"x"] * (WINDOW // 4))])
        server.goodbye(session)
        ended.append(weakref.ref(session))
    del session
    gc.collect()
    assert [each() for each in ended] == [None, None]
    assert len(server._leases.ended) == 1
    inbound = callback.batches[0].inbound
    assert (inbound.source, inbound.worker_number, inbound.wants_releases) == ("client", 0, False)
    assert inbound.sender_id == ""
    other, _ = connect(server, "other")
    assert other.state.credit.all()[0].messages == WINDOW // 2
    callback.release()
    eventually(lambda: other.state.credit.all()[0].messages == WINDOW, 10)
    server.close()
