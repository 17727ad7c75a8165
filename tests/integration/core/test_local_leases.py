"""The local transport: senders and tasks have state only while they are in use, and can be stopped."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.ports import free_port

from tuplewire.connection.memory_stream import memory_servers
from tuplewire.errors import FlushTimeoutError
from tuplewire.session.send_events import SendEvents
from tuplewire.values.group import TaskGroup
from tuplewire_service.messaging import receiving_end
from tuplewire_service.messaging.base import ConnectionStatus
from tuplewire_service.messaging.local import LocalContext
from tuplewire_service.messaging.streamed_transport import StreamedServer
from tuplewire_service.testing import eventually
from tuplewire_service.testing.harness import TOPOLOGY, Recorder

SENDERS = 50


@pytest.fixture
def context() -> Iterator[LocalContext]:
    """Yield a context of the transport."""
    context = LocalContext()
    context.prepare({})
    yield context
    context.term()


def connect(context: LocalContext, server: StreamedServer[Any]) -> Any:
    """Return a new sender that is connected to a server."""
    return context.connect(TOPOLOGY, "", server.port)


def test_nothing_is_left_of_what_has_ended(context: LocalContext) -> None:
    """Neither the registry nor a context retains closed ports and senders."""
    for _ in range(SENDERS):
        server = context.bind(TOPOLOGY, 0, Recorder())
        sender = connect(context, server)
        sender.send(1, b"x")
        sender.close()
        server.close()
    assert len(context._made) < 5
    eventually(lambda: not memory_servers, 10)


def test_a_limit_of_sessions_is_told(
    context: LocalContext, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """flush() of a sender over the limit gives the reason; it succeeds after another sender has closed."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(receiving_end, "MAX_SESSIONS", 2)
    server = context.bind(TOPOLOGY, 0, Recorder())
    senders = [connect(context, server) for _ in range(3)]
    for sender in senders[:2]:
        sender.send(1, b"x")
        sender.end.buffer.flush(10)
    senders[2].send(1, b"x")
    with pytest.raises(FlushTimeoutError, match="2 senders are connected already"):
        senders[2].end.buffer.flush(0.3)
    senders[0].close()
    senders[2].end.buffer.flush(10)


def test_nothing_is_written_after_writing_is_stopped(context: LocalContext) -> None:
    """A server that starts later receives nothing; the reclaimed messages are not marked as copies."""
    recorder, port = Recorder(), free_port()
    events = SendEvents(settled=lambda _: None, released=lambda _: None)
    client: Any = context.connect(TOPOLOGY, "", port, events=events)
    end = client.end
    assert end.thread.call(lambda: end.buffer.offer([TaskGroup.of(1, [b"a"])], "token"))
    end.writes = False
    context.bind(TOPOLOGY, port, recorder)
    eventually(lambda: client.status is ConnectionStatus.READY, timeout=20)
    left = end.thread.run(end.take_back(0.2))
    assert [(group.payloads(), group.redelivered, token) for group, token in left] == [
        ([b"a"], False, "token")
    ]
    assert recorder.seen() == []
