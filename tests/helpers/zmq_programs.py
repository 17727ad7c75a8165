"""Processes for tests of the ZeroMQ transport."""

from __future__ import annotations

import itertools
import tempfile
from multiprocessing.connection import Connection

from helpers.program import Threads, serve
from tuplewire_service.messaging.factory import TRANSPORT_KEY, TransportFactory
from tuplewire_service.testing.harness import HOST, TOPOLOGY, Recorder


def server(pipe: Connection, mode: str = "distributed", directory: str | None = None) -> None:
    """Run a process with a server; it answers `port`, and the `payloads` that task 1 has received.

    directory: for temporary files.
    """
    tempfile.tempdir = directory
    recorder = Recorder()
    conf = {TRANSPORT_KEY: "zmq", "storm.cluster.mode": mode}
    context = TransportFactory.make_context(conf)
    bound = context.bind(TOPOLOGY, 0, recorder)
    serve(pipe, {"port": lambda: bound.port, "payloads": lambda: recorder.payloads(1)}, [])
    context.term()


def sender(pipe: Connection, port: int) -> None:
    """Run a process that sends numbered messages to task 1 until it is killed."""
    context = TransportFactory.make_context({TRANSPORT_KEY: "zmq"})
    client = context.connect(TOPOLOGY, HOST, port)
    threads = Threads()

    def send() -> None:
        for number in itertools.count():
            client.send(1, b"%d" % number)

    threads.start(send)
    serve(pipe, {}, threads.errors)
