"""Contexts and servers of the ZeroMQ transport, for a test."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tuplewire_service.messaging.base import IContext
from tuplewire_service.messaging.factory import TRANSPORT_KEY, TransportFactory
from tuplewire_service.messaging.zmq.zmq_transport import ZmqServerConnection
from tuplewire_service.testing.harness import HOST, TOPOLOGY, Recorder, eventually


@contextlib.contextmanager
def transport(**settings: object) -> Iterator[IContext]:
    """Yield a prepared context."""
    conf = {key.replace("__", "."): value for key, value in settings.items()}
    context = TransportFactory.make_context({TRANSPORT_KEY: "zmq", **conf})
    try:
        yield context
    finally:
        context.term()


@contextlib.contextmanager
def bound(recorder: Recorder, **settings: object) -> Iterator[tuple[IContext, ZmqServerConnection]]:
    """Yield a context and one of its servers."""
    with transport(**settings) as context:
        bound_server = context.bind(TOPOLOGY, 0, recorder)
        assert isinstance(bound_server, ZmqServerConnection)
        yield context, bound_server


def works(context: IContext, port: int, recorder: Recorder) -> None:
    """Check that a new client is served."""
    client = context.connect(TOPOLOGY, HOST, port)
    before = len(recorder.seen())
    client.send(1, b"still there")
    eventually(lambda: len(recorder.seen()) == before + 1)
    client.close()
