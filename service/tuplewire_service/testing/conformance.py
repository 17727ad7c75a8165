"""The conformance tests of transports, as a class to inherit from.

::

    class TestMyTransport(TransportConformance):
        def make_context(self) -> IContext:
            return MyContext()          # not prepared

Each test opens and closes its own contexts. The tests do not need pytest, only a runner that finds `test_*`
methods of a class. Used by tests of transports. Not thread-safe. Design: docs/design/sessions.md.
"""

from __future__ import annotations

import threading

from tuplewire.errors import (
    BindError,
    ClosedError,
    InvalidTaskError,
    NotReadyError,
    RefusedError,
)
from tuplewire.settings.config import SessionSettings
from tuplewire.values.batch import TaskMessageBatch
from tuplewire.values.message import SHUTDOWN, SHUTDOWN_TASK, TaskMessage
from tuplewire_service.messaging.base import (
    BLOCK,
    NO_BLOCK,
    ConnectionStatus,
    IConnectionCallback,
    Intake,
    IServerConnection,
    ReceivedBatch,
)
from tuplewire_service.testing.backpressure import BackpressureConformance, NewsConformance
from tuplewire_service.testing.scenery import (
    HOST,
    TOPOLOGY,
    UNKNOWN_TASK,
    Recorder,
    assert_ledger,
    eventually,
    is_ready,
    is_settled,
    raises,
)

TRACE = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
"""A header value in the format of W3C Trace Context."""


class TransportConformance(BackpressureConformance, NewsConformance):
    """The tests that every transport must pass. Inherit from it, and define make_context()."""

    # --- messages ----------------------------------------------------------------------------------

    def test_a_batch_arrives_in_order(self) -> None:
        """All messages arrive once, in order within each (source, task)."""
        with self.recorded() as (recorder, client):
            for start in range(0, 1000, 100):
                numbers = range(start, start + 100)
                client.send(
                    TaskMessageBatch.from_columns(
                        [n % 3 for n in numbers], [b"%d" % n for n in numbers], [n % 2 for n in numbers]
                    )
                )
            assert_ledger(client, 1000)
            seen = recorder.seen()
            assert len(seen) == 1000
            for source in range(2):
                for task in range(3):
                    got = [int(p) for s, t, p in seen if (s, t) == (source, task)]
                    assert got == [n for n in range(1000) if (n % 2, n % 3) == (source, task)]

    def test_an_iterable_of_messages(self) -> None:
        """Any iterable of TaskMessages can be sent, empty payloads included."""
        with self.recorded() as (recorder, client):
            client.send(TaskMessage(task, b"x" * task) for task in range(3))
            eventually(lambda: sorted(recorder.seen(), key=str) == [(None, n, b"x" * n) for n in range(3)])

    def test_keys_and_headers_stay_with_their_messages(self) -> None:
        """Messages arrive in order with their own key and headers, if any, in one batch and in several."""
        messages = [
            TaskMessage(1, b"plain"),
            TaskMessage(1, b"keyed", key=b"k"),
            TaskMessage(1, b"", key=b"", headers=[("traceparent", TRACE), ("", b""), ("traceparent", b"")]),
            TaskMessage(1, b"x" * 2000, headers=[("large", b"y" * 2000)]),
            TaskMessage(1, b"plain again"),
        ]
        with self.recorded() as (recorder, client):
            client.send(messages)
            for message in messages:
                client.send([message])
            client.send(messages[-1:] * 100 + messages[1:2] * 100)
            expected = messages * 2 + messages[-1:] * 100 + messages[1:2] * 100
            assert_ledger(client, len(expected))
            eventually(lambda: recorder.messages(1) == expected)

    def test_task_ids_reach_to_the_end(self) -> None:
        """send() accepts a task id and a payload. Ids from 0 to 2^31-1 are valid; others are not sent."""
        with self.recorded() as (recorder, client):
            client.send(0, b"first")
            client.send(2**31 - 1, b"last")
            for task in (-1, 2**31):
                raises(InvalidTaskError, lambda task=task: client.send(task, b""))  # type: ignore[misc]
            assert_ledger(client, 2)
            assert set(recorder.seen()) == {(None, 0, b"first"), (None, 2**31 - 1, b"last")}

    def test_each_connect_is_a_new_connection(self) -> None:
        """Two connections of one context carry their own messages and balance."""
        recorder = Recorder()
        with self.context() as context:
            server = context.bind(TOPOLOGY, 0, recorder)
            clients = [context.connect(TOPOLOGY, HOST, server.port) for _ in range(2)]
            assert clients[0] is not clients[1]
            for number, client in enumerate(clients):
                client.send(number, b"x")
            for client in clients:
                assert_ledger(client, 1)
            assert len(recorder.seen()) == 2

    def test_both_sides_tell_their_port_and_status(self) -> None:
        """A client reports its peer's port. It is CONNECTING, READY and finally CLOSED."""
        port = self.unused_port()
        with self.context() as context:
            client = context.connect(TOPOLOGY, HOST, port)
            assert (client.port, client.status) == (port, ConnectionStatus.CONNECTING)
            server = context.bind(TOPOLOGY, port, Recorder())
            assert (server.port, server.status) == (port, ConnectionStatus.READY)
            assert server.addresses
            eventually(lambda: is_ready(client), timeout=10)
            for connection in (client, server):
                connection.close()
                assert connection.status is ConnectionStatus.CLOSED

    # --- before and after there is a server ----------------------------------------------------------

    def test_messages_wait_for_the_callback(self) -> None:
        """A new callback receives waiting messages first, in order."""
        recorder = Recorder()
        with self.pair(None) as (server, client):
            for number in range(10):
                client.send(1, b"%d" % number)
            eventually(lambda: is_ready(client))
            server.register_recv(recorder)
            client.send(1, b"10")
            eventually(lambda: recorder.payloads(1) == [b"%d" % n for n in range(11)])
            eventually(is_settled(client))

    def test_refusals_of_what_waited_are_told(self) -> None:
        """If a new callback refuses a waiting message, the sender's ledger and the server count it."""
        recorder = Recorder()
        with self.pair(None) as (server, client):
            client.send([TaskMessage(1, b"a"), TaskMessage(UNKNOWN_TASK, b"b"), TaskMessage(2, b"c")])
            eventually(lambda: is_ready(client))
            assert client.statistics().ledger.pending == 3
            server.register_recv(recorder)
            assert_ledger(client, 3, unknown_task=1)
            assert sorted(task for _, task, _ in recorder.seen()) == [1, 2]
            assert server.statistics().refused_messages == {"UNKNOWN_TASK": 1}

    def test_messages_wait_for_the_server(self) -> None:
        """Messages sent before the server is bound are delivered afterwards, before later messages."""
        port = self.unused_port()
        recorder = Recorder()
        with self.context() as context:
            client = context.connect(TOPOLOGY, HOST, port)
            for number in range(5):
                client.send(1, b"%d" % number)

            class Answering(IConnectionCallback):
                def recv(self, batch: ReceivedBatch) -> None:
                    first = not recorder.seen()
                    recorder.recv(batch)
                    if first:
                        assert client.try_send(1, b"5")

            assert not is_ready(client)
            context.bind(TOPOLOGY, port, Answering())
            eventually(lambda: len(recorder.seen()) == 6, timeout=10)
            assert is_ready(client)
            assert recorder.payloads(1) == [b"%d" % n for n in range(6)]

    def test_messages_can_be_pulled(self) -> None:
        """Without a callback, recv() gives one message at a time."""
        with self.pair(None) as (server, client):
            assert server.recv(NO_BLOCK) is None
            client.send([TaskMessage(1, b"a"), TaskMessage(1, b"b")])
            assert [server.recv(), server.recv()] == [TaskMessage(1, b"a"), TaskMessage(1, b"b")]
            assert server.recv(NO_BLOCK) is None
            eventually(is_settled(client))

    def test_a_receive_loop_in_the_classic_way(self) -> None:
        """A loop can block for a message, then take the available ones, until the shutdown notice.

        Accepted messages arrive before the notice. Source: Storm's `launch-receive-thread!`.
        """
        batches: list[list[TaskMessage]] = []

        def receive(server: IServerConnection) -> None:
            while True:
                batch: list[TaskMessage] = []
                message = server.recv(BLOCK)
                while message is not None:
                    if message.task == SHUTDOWN_TASK:
                        batches.append(batch)
                        server.close()
                        return
                    batch.append(message)
                    message = server.recv(NO_BLOCK)
                batches.append(batch)

        with self.pair(None) as (server, client):
            loop = threading.Thread(target=receive, args=[server], daemon=True)
            loop.start()
            for number in range(20):
                client.send(number % 2, b"%d" % number)
            client.close()
            server.close()
            loop.join(10)
            assert not loop.is_alive(), "the shutdown notice did not end the loop"
            taken = [int(message.message) for batch in batches for message in batch]
            assert [n for n in taken if n % 2] == list(range(1, 20, 2))
            assert [n for n in taken if not n % 2] == list(range(0, 20, 2))
            assert server.recv(NO_BLOCK) == server.recv(BLOCK) == SHUTDOWN

    def test_messages_are_pulled_or_called_back(self) -> None:
        """A connection delivers to a callback or to recv(); the other one raises ClosedError."""
        with self.pair(Recorder()) as (server, _):
            raises(ClosedError, lambda: server.recv(NO_BLOCK))
            raises(ClosedError, lambda: server.register_recv(Recorder()))
        with self.pair(None) as (server, _):
            assert server.recv(NO_BLOCK) is None
            raises(ClosedError, lambda: server.register_recv(Recorder()))

    def test_intake_may_be_for_workers_only(self) -> None:
        """Workers continue and programs wait until a call admits them. No message is lost or duplicated."""
        recorder = Recorder()
        with self.context() as context, self.context("w1") as other:
            server = context.bind(TOPOLOGY, 0, recorder)
            program = context.connect(TOPOLOGY, HOST, server.port)
            worker = other.connect(TOPOLOGY, HOST, server.port)
            for client in (program, worker):
                client.send(1, b"before")
                eventually(is_settled(client))
            server.stop_intake(Intake.WORKERS)
            program.send(2, b"program")
            worker.send(3, b"worker")
            eventually(is_settled(worker), timeout=20)
            assert recorder.payloads(2) == []
            assert program.statistics().ledger.pending == 1
            server.stop_intake(Intake.ALL)
            eventually(is_settled(program), timeout=20)
            assert [recorder.payloads(task) for task in (2, 3)] == [[b"program"], [b"worker"]]
            assert len(recorder.payloads(1)) == 2

    # --- errors ------------------------------------------------------------------------------------------

    def test_an_unknown_task_is_refused_and_counted(self) -> None:
        """The refusal is in the sender's ledger and the server's counts; the rest of the batch arrives."""
        recorder = Recorder()
        with self.pair(recorder) as (server, client):
            client.send(
                [TaskMessage(UNKNOWN_TASK, b"a"), TaskMessage(1, b"b"), TaskMessage(UNKNOWN_TASK, b"c")]
            )
            assert_ledger(client, 3, unknown_task=2)
            assert recorder.seen() == [(None, 1, b"b")]
            assert server.statistics().refused_messages == {"UNKNOWN_TASK": 2}

    def test_what_a_callback_fails_at_is_refused(self) -> None:
        """The sender counts an exception in the callback as a refusal, and the connection continues."""
        recorder = Recorder()

        class Failing(IConnectionCallback):
            def recv(self, batch: ReceivedBatch) -> None:
                if batch.payloads[0] == b"bad":
                    raise ValueError("a defect of the receiver")
                recorder.recv(batch)

        with self.pair(Failing()) as (server, client):
            client.send(1, b"bad")
            assert_ledger(client, 1, refused=1)
            client.send(1, b"good")
            assert_ledger(client, 2, refused=1)
            assert recorder.seen() == [(None, 1, b"good")]
            assert sum(server.statistics().refused_messages.values()) == 1

    def test_programs_wait_for_a_server_that_is_not_ready(self) -> None:
        """No message arrives while the callback is not ready; afterwards all arrive automatically."""
        recorder = Recorder()

        class Starting(IConnectionCallback):
            ready = False

            def recv(self, batch: ReceivedBatch) -> None:
                assert self.ready
                recorder.recv(batch)

            @property
            def not_ready(self) -> RefusedError | None:
                return None if self.ready else NotReadyError("no assignment yet")

        callback = Starting()
        with self.pair(callback) as (_, client):
            for number in range(3):
                client.send(1, b"%d" % number)
            assert client.statistics().ledger.pending == 3
            callback.ready = True
            assert_ledger(client, 3)
            assert recorder.payloads(1) == [b"0", b"1", b"2"]

    def test_a_bound_port_is_refused(self) -> None:
        """A second bind of a port raises an error; two servers do not share the port."""
        with self.pair(Recorder()) as (server, _), self.context() as context:
            raises(BindError, lambda: context.bind(TOPOLOGY, server.port, Recorder()))

    # --- the end -----------------------------------------------------------------------------------------

    def test_close_waits_for_what_was_accepted(self) -> None:
        """All sent messages have arrived when close() returns; a later send() raises ClosedError."""
        with self.recorded() as (recorder, client):
            client.send(TaskMessageBatch.from_columns(1, [b"x"] * 5000))
            client.close()
            assert len(recorder.seen()) == 5000
            assert_ledger(client, 5000)
            assert client.status is ConnectionStatus.CLOSED
            raises(ClosedError, lambda: client.send(1, b"x"))
            client.close()

    def test_abort_counts_what_it_gives_up(self) -> None:
        """Without a server, all messages are dropped and counted; a second abort() has no effect."""
        with self.context() as context:
            client = context.connect(TOPOLOGY, HOST, self.unused_port())
            client.send(1, b"x")
            client.abort()
            client.abort()
            assert_ledger(client, 1, closed=1)

    def test_after_stop_intake_messages_stay_with_the_sender(self) -> None:
        """Accepted messages are acknowledged. Later ones wait at the sender for the next server."""
        first, second = Recorder(), Recorder()
        with self.context() as context:
            server = context.bind(TOPOLOGY, 0, first)
            assert server.addresses
            client = context.connect(TOPOLOGY, HOST, server.port)
            client.send(1, b"taken")
            eventually(lambda: first.payloads(1) == [b"taken"])
            server.stop_intake()
            eventually(is_settled(client))
            client.send(1, b"kept")
            server.close()
            assert client.statistics().ledger.pending == 1
            client.send(1, b"later")
            context.bind(TOPOLOGY, server.port, second)
            eventually(lambda: second.payloads(1) == [b"kept", b"later"], timeout=10)
            assert first.payloads(1) == [b"taken"]

    def test_a_closed_server_takes_nothing(self) -> None:
        """After close(), the port is free, loads cannot be sent, and a blocked recv() has returned."""
        with self.context() as context:
            server = context.bind(TOPOLOGY, 0)
            got: list[TaskMessage | None] = []
            puller = threading.Thread(target=lambda: got.append(server.recv()), daemon=True)
            puller.start()
            server.close()
            puller.join(10)
            assert got == [SHUTDOWN]
            assert server.status is ConnectionStatus.CLOSED
            raises(ClosedError, lambda: server.send_load_metrics({1: 1.0}))
            server.close()
            context.bind(TOPOLOGY, server.port, Recorder())

    def test_term_ends_everything(self) -> None:
        """term() closes all connections of the context; a second call has no effect."""
        context = self.make_context()
        context.prepare(self.conf(SessionSettings(), ""))
        server = context.bind(TOPOLOGY, 0, Recorder())
        client = context.connect(TOPOLOGY, HOST, server.port)
        context.term()
        context.term()
        assert server.status is client.status is ConnectionStatus.CLOSED
