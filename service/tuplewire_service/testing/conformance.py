"""What every transport must do, as a class of tests to inherit from.

::

    class TestMyTransport(TransportConformance):
        def make_context(self) -> IContext:
            return MyContext()          # not prepared

Each test makes its own contexts and ends them. Nothing here needs pytest; any runner that finds `test_*`
methods of a class will do.
"""

from __future__ import annotations

import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from tuplewire.config import SessionSettings
from tuplewire.errors import (
    BindError,
    BufferFullError,
    ClosedError,
    InvalidTaskError,
    MessageTooLargeError,
    TuplewireError,
    UnknownTaskError,
)
from tuplewire.group import TaskGroup
from tuplewire.message import TaskMessage, TaskMessageBatch
from tuplewire.session.send import Settled
from tuplewire_service.messaging.base import (
    NO_BLOCK,
    ConnectionStatus,
    IClientConnection,
    IConnectionCallback,
    IContext,
    IRelayConnection,
    IServerConnection,
    ReceivedBatch,
)
from tuplewire_service.testing.waiting import eventually

TOPOLOGY = "conformance"
HOST = "127.0.0.1"
UNKNOWN_TASK = 999
RECEIVE_MESSAGES = 2000
"""What a receiver may hold for a task besides what its sender holds."""


class Recorder(IConnectionCallback):
    """Keeps what it gets; refuses one task; holds what it is told to hold until release()."""

    def __init__(self, held_tasks: Sequence[int] = ()) -> None:
        self._lock = threading.Lock()
        self._held_tasks = frozenset(held_tasks)
        self._held: list[tuple[ReceivedBatch, TaskGroup]] = []
        self._seen: list[tuple[int | None, int, bytes]] = []

    def recv(self, batch: ReceivedBatch) -> None:
        """Keep, refuse or hold each group."""
        with self._lock:
            batch.hold()
            for group in batch.groups:
                if group.task == UNKNOWN_TASK:
                    batch.refuse(group, UnknownTaskError(f"task {group.task} is unknown"))
                    continue
                self._seen += [(group.source, group.task, payload) for payload in group.payloads()]
                if group.task in self._held_tasks:
                    self._held.append((batch, group))
                else:
                    batch.origin.release(group.task, len(group), len(group.data))

    def release(self) -> None:
        """Be done with everything that is held, and hold nothing more."""
        with self._lock:
            held, self._held = self._held, []
            self._held_tasks = frozenset()
        for batch, group in held:
            batch.origin.release(group.task, len(group), len(group.data))

    def seen(self) -> list[tuple[int | None, int, bytes]]:
        """Return (source, task, payload) of everything, in the order of arrival."""
        with self._lock:
            return list(self._seen)

    def payloads(self, task: int) -> list[bytes]:
        """Return what came for one task."""
        return [payload for _, to, payload in self.seen() if to == task]


def _settled(connection: IClientConnection) -> Callable[[], bool]:
    return lambda: connection.statistics().ledger.pending == 0


def _ready(connection: IClientConnection) -> bool:
    return connection.status is ConnectionStatus.READY


def _assert_ledger(connection: IClientConnection, accepted: int, **dropped: int) -> None:
    """Check that the balance adds up and says what the test itself knows."""
    ledger = connection.statistics().ledger
    assert ledger.balanced, str(ledger)
    assert ledger.accepted == accepted, str(ledger)
    assert {reason: count for reason, count in ledger.dropped.items() if count} == dropped, str(ledger)


class TransportConformance(ABC):
    """Inherit, and say how to make a context."""

    @abstractmethod
    def make_context(self) -> IContext:
        """Return a new context that is not prepared yet."""

    def conf(self, settings: SessionSettings) -> Mapping[str, Any]:
        """Return the configuration for session settings and a receive queue of RECEIVE_MESSAGES.

        Override it where the keys differ.
        """
        return {
            "tuplewire.local.session": settings,
            "tuplewire.grpc.session": settings,
            "tuplewire.grpc.receive_messages": RECEIVE_MESSAGES,
        }

    # --- scenery -----------------------------------------------------------------------------------

    @contextmanager
    def context(self, **settings: Any) -> Iterator[IContext]:
        """Give a prepared context, and end it."""
        context = self.make_context()
        context.prepare(self.conf(SessionSettings.of(**settings)))
        try:
            yield context
        finally:
            context.term()

    @contextmanager
    def pair(
        self, callback: IConnectionCallback | None, **settings: Any
    ) -> Iterator[tuple[IServerConnection, IClientConnection]]:
        """Give a bound server and a client of it."""
        with self.context(**settings) as context:
            server = context.bind(TOPOLOGY, 0, callback)
            yield server, context.connect(TOPOLOGY, HOST, server.port)

    def unused_port(self) -> int:
        """Return a port that was free a moment ago."""
        with self.context() as context:
            return context.bind(TOPOLOGY, 0, Recorder()).port

    # --- messages ----------------------------------------------------------------------------------

    def test_a_batch_arrives_in_order(self) -> None:
        """Everything arrives once, in order within each (source, task)."""
        recorder = Recorder()
        with self.pair(recorder) as (_, client):
            for start in range(0, 1000, 100):
                numbers = range(start, start + 100)
                client.send(
                    TaskMessageBatch.from_columns(
                        [n % 3 for n in numbers], [b"%d" % n for n in numbers], [n % 2 for n in numbers]
                    )
                )
            eventually(_settled(client))
            seen = recorder.seen()
            assert len(seen) == 1000
            for source in range(2):
                for task in range(3):
                    got = [int(p) for s, t, p in seen if (s, t) == (source, task)]
                    assert got == [n for n in range(1000) if (n % 2, n % 3) == (source, task)]
            _assert_ledger(client, 1000)

    def test_one_message(self) -> None:
        """A task id and a payload are enough."""
        recorder = Recorder()
        with self.pair(recorder) as (_, client):
            client.send(7, b"payload")
            eventually(lambda: recorder.seen() == [(None, 7, b"payload")])

    def test_an_iterable_of_messages(self) -> None:
        """Any iterable of TaskMessages can be sent, empty payloads included."""
        recorder = Recorder()
        with self.pair(recorder) as (_, client):
            client.send(TaskMessage(task, b"x" * task) for task in range(3))
            eventually(lambda: sorted(recorder.seen(), key=str) == [(None, n, b"x" * n) for n in range(3)])

    def test_an_empty_batch_is_nothing(self) -> None:
        """Nothing is accepted, and nothing arrives."""
        recorder = Recorder()
        with self.pair(recorder) as (_, client):
            client.send([])
            assert client.try_send([])
            client.send(1, b"after")
            eventually(lambda: recorder.seen() == [(None, 1, b"after")])
            _assert_ledger(client, 1)

    def test_task_ids_reach_to_the_end(self) -> None:
        """Ids run from 0 to 2^31-1; others are refused before anything is sent."""
        recorder = Recorder()
        with self.pair(recorder) as (_, client):
            client.send(0, b"first")
            client.send(2**31 - 1, b"last")
            for task in (-1, 2**31):
                _raises(InvalidTaskError, lambda task=task: client.send(task, b""))  # type: ignore[misc]
            eventually(lambda: {task for _, task, _ in recorder.seen()} == {0, 2**31 - 1})

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
                eventually(_settled(client))
                _assert_ledger(client, 1)
            assert len(recorder.seen()) == 2

    # --- before and after there is a server ----------------------------------------------------------

    def test_messages_wait_for_the_server(self) -> None:
        """What is sent before the server is bound is delivered once it is."""
        port = self.unused_port()
        recorder = Recorder()
        with self.context() as context:
            client = context.connect(TOPOLOGY, HOST, port)
            client.send(1, b"early")
            assert not _ready(client)
            context.bind(TOPOLOGY, port, recorder)
            eventually(lambda: recorder.seen() == [(None, 1, b"early")], timeout=10)
            assert _ready(client)

    def test_messages_wait_for_the_callback(self) -> None:
        """What arrives before a callback is registered is delivered to it, in order, before the rest."""
        recorder = Recorder()
        with self.pair(None) as (server, client):
            for number in range(10):
                client.send(1, b"%d" % number)
            eventually(lambda: _ready(client))
            server.register_recv(recorder)
            client.send(1, b"10")
            eventually(lambda: recorder.payloads(1) == [b"%d" % n for n in range(11)])
            eventually(_settled(client))

    def test_what_waited_comes_before_what_is_sent_later(self) -> None:
        """A message that is sent while those that waited are being delivered comes after all of them."""
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

            context.bind(TOPOLOGY, port, Answering())
            eventually(lambda: len(recorder.seen()) == 6, timeout=10)
            assert recorder.payloads(1) == [b"%d" % n for n in range(6)]

    def test_messages_wait_for_the_next_server(self) -> None:
        """What is sent while the server is away reaches the one that takes its port."""
        first, second = Recorder(), Recorder()
        with self.context() as context:
            server = context.bind(TOPOLOGY, 0, first)
            client = context.connect(TOPOLOGY, HOST, server.port)
            client.send(1, b"one")
            eventually(_settled(client))
            server.close()
            client.send(1, b"two")
            context.bind(TOPOLOGY, server.port, second)
            eventually(lambda: second.payloads(1) == [b"two"], timeout=10)
            assert first.payloads(1) == [b"one"]

    def test_messages_can_be_pulled(self) -> None:
        """Without a callback, recv() gives one message at a time."""
        with self.pair(None) as (server, client):
            assert server.recv(NO_BLOCK) is None
            client.send([TaskMessage(1, b"a"), TaskMessage(1, b"b")])
            assert [server.recv(), server.recv()] == [TaskMessage(1, b"a"), TaskMessage(1, b"b")]
            assert server.recv(NO_BLOCK) is None
            eventually(_settled(client))

    # --- backpressure ----------------------------------------------------------------------------------

    def test_a_full_connection_says_so(self) -> None:
        """With a receiver that holds, what is accepted is bounded, and goes on once it is released."""
        recorder = Recorder(held_tasks=[1])
        with self.pair(recorder, max_pending_messages=10) as (_, client):
            accepted = self.fill(client)
            assert 10 <= accepted <= 10 + RECEIVE_MESSAGES
            assert not client.try_send(1, b"x")
            recorder.release()
            client.send(1, b"last", timeout=5)
            eventually(_settled(client))
            assert len(recorder.payloads(1)) == accepted + 1
            _assert_ledger(client, accepted + 1)

    @staticmethod
    def fill(client: IClientConnection) -> int:
        """Send to task 1 until there is no more room; return how much was accepted."""
        for accepted in range(10_000):
            try:
                client.send(1, b"x", timeout=0.2)
            except BufferFullError:
                return accepted
        raise AssertionError("10,000 messages were accepted for a receiver that takes none")

    def test_everybody_who_waits_for_room_gets_it(self) -> None:
        """Threads that share a connection with room for one message all get through."""
        recorder = Recorder()
        with self.pair(recorder, max_pending_messages=1) as (_, client):

            def send(task: int) -> None:
                for _ in range(100):
                    client.send(task, b"x", timeout=20)

            with _switching_often(), ThreadPoolExecutor(8) as threads:
                for done in [threads.submit(send, task) for task in range(8)]:
                    done.result()
            eventually(_settled(client))
            assert [len(recorder.payloads(task)) for task in range(8)] == [100] * 8

    def test_overflow_fail_does_not_wait(self) -> None:
        """With overflow=fail, send raises at once where it would wait."""
        recorder = Recorder(held_tasks=[1])
        with self.pair(recorder, max_pending_messages=1, overflow="fail") as (_, client):
            _raises(BufferFullError, lambda: [client.send(1, b"x") for _ in range(10_000)])
            recorder.release()

    def test_overflow_drop_oldest_never_waits_for_a_server(self) -> None:
        """With overflow=drop_oldest and nobody there, the oldest give way, one for one; the newest arrive."""
        port = self.unused_port()
        recorder = Recorder()
        with self.context(max_pending_messages=1000, overflow="drop_oldest") as context:
            client = context.connect(TOPOLOGY, HOST, port)
            for start in range(0, 5000, 8):
                numbers = range(start, start + 8)
                assert client.try_send(
                    TaskMessageBatch.from_columns([n % 3 for n in numbers], [b"%d" % n for n in numbers])
                )
            _assert_ledger(client, 5000, overflow=4000)
            context.bind(TOPOLOGY, port, recorder)
            eventually(_settled(client), timeout=10)
            for task in range(3):
                assert list(map(int, recorder.payloads(task))) == [
                    n for n in range(4000, 5000) if n % 3 == task
                ]
            _assert_ledger(client, 5000, overflow=4000)

    def test_overflow_drop_oldest_with_a_stopped_consumer(self) -> None:
        """What a receiver that holds does not have gives way, oldest first; what it has stays, in order.

        A sender need not wait as long as there is something that the receiver does not have.
        """
        recorder = Recorder(held_tasks=[1])
        bound = RECEIVE_MESSAGES + 1000
        with self.pair(recorder, max_pending_messages=bound, overflow="drop_oldest") as (_, client):
            accepted = 0
            while accepted < 10 * bound:
                numbers = range(accepted, accepted + 100)
                if not client.try_send(TaskMessageBatch.from_columns(1, [b"%d" % n for n in numbers])):
                    assert len(recorder.payloads(1)) == client.statistics().ledger.pending
                    break
                accepted += 100
            recorder.release()
            eventually(_settled(client), timeout=10)
            arrived = list(map(int, recorder.payloads(1)))
            assert arrived == sorted(set(arrived))
            assert arrived[-1000:] == list(range(accepted - 1000, accepted))
            dropped = accepted - len(arrived)
            _assert_ledger(client, accepted, **({"overflow": dropped} if dropped else {}))

    def test_the_token_comes_back_when_messages_give_way(self) -> None:
        """What was given up for room is told as what was refused is: settled and released, with its token."""
        settled: list[Settled] = []
        released: list[Settled] = []
        with self.context(max_pending_messages=3, overflow="drop_oldest") as context:
            client = context.connect(TOPOLOGY, HOST, self.unused_port())
            assert isinstance(client, IRelayConnection), "a transport for workers relays"
            client.attach(settled.extend, released.extend, lambda: 0, lambda: False)
            for token in range(5):
                assert client.forward([TaskGroup.of(token, [b"x"] * 2)], token)
            for told in (settled, released):
                eventually(lambda told=told: sum(each.messages for each in told) == 7)  # type: ignore[misc]
                assert [each.token for each in told for _ in range(each.messages)] == [0, 0, 1, 1, 2, 2, 3]
                assert {each.dropped for each in told} == {"overflow"}
            client.abort()

    def test_a_stopped_task_leaves_the_others_going(self) -> None:
        """Messages to other tasks pass those of a task whose receiver holds."""
        recorder = Recorder(held_tasks=[1])
        with self.pair(recorder) as (_, client):
            client.send(TaskMessageBatch.from_columns(1, [b"stopped"] * 1000))
            for number in range(1000):
                client.send(2, b"%d" % number)
            eventually(lambda: len(recorder.payloads(2)) == 1000)
            recorder.release()
            eventually(_settled(client))

    def test_the_token_comes_back_when_messages_settle(self) -> None:
        """A relay's token is returned for what was acknowledged and for what was refused."""
        recorder = Recorder()
        settled: list[Settled] = []
        released: list[Settled] = []
        with self.pair(recorder) as (_, client):
            assert isinstance(client, IRelayConnection), "a transport for workers relays"
            client.attach(settled.extend, released.extend, lambda: 0, lambda: False)
            client.follow([1])
            batch = [TaskMessage(1, b"a"), TaskMessage(UNKNOWN_TASK, b"b")]
            assert client.forward(TaskMessageBatch(batch).groups, "token")
            for told in (settled, released):
                eventually(lambda told=told: sum(each.messages for each in told) == 2)  # type: ignore[misc]
                assert {each.token for each in told} == {"token"}
                assert {each.task: each.dropped for each in told} == {1: None, UNKNOWN_TASK: "unknown_task"}

    def test_a_task_is_quiet_once_everything_is_released(self) -> None:
        """quiet() is False while the receiver holds a message of the task; a followed release is told."""
        recorder = Recorder(held_tasks=[1])
        released: list[Settled] = []
        with self.pair(recorder) as (_, client):
            assert isinstance(client, IRelayConnection), "a transport for workers relays"
            client.attach(lambda _: None, released.extend, lambda: 0, lambda: False)
            client.forward([TaskGroup.of(1, [b"a", b"b"]), TaskGroup.of(2, [b"c"])], "token")
            eventually(lambda: len(recorder.seen()) == 3)
            client.follow([1, 2])
            eventually(lambda: client.quiet(2))
            assert not client.quiet(1)
            recorder.release()
            eventually(lambda: client.quiet(1))
            assert sum(each.messages for each in released if each.task == 1) == 2

    def test_messages_can_be_taken_back(self) -> None:
        """What no server has taken comes back in order, and the ledger forgets it."""
        with self.context() as context:
            client = context.connect(TOPOLOGY, HOST, self.unused_port())
            assert isinstance(client, IRelayConnection), "a transport for workers relays"
            for number in range(3):
                client.forward([TaskGroup.of(1, [b"%d" % number])], number)
            left = client.take_back(0.1)
            assert [(group.payloads(), token) for group, token in left] == [
                ([b"%d" % n], n) for n in range(3)
            ]
            assert client.take_back(0.1) == []
            _assert_ledger(client, 0)

    # --- errors ------------------------------------------------------------------------------------------

    def test_an_unknown_task_is_refused_and_counted(self) -> None:
        """The refusal is in the sender's ledger and the server's counts; the rest of the batch arrives."""
        recorder = Recorder()
        with self.pair(recorder) as (server, client):
            client.send(
                [TaskMessage(UNKNOWN_TASK, b"a"), TaskMessage(1, b"b"), TaskMessage(UNKNOWN_TASK, b"c")]
            )
            eventually(_settled(client))
            assert recorder.seen() == [(None, 1, b"b")]
            _assert_ledger(client, 3, unknown_task=2)
            assert server.statistics().refused == {"UNKNOWN_TASK": 2}

    def test_a_message_over_the_limit_fails_alone(self) -> None:
        """The error has the size and the limit; nothing of it is sent, and the connection goes on."""
        recorder = Recorder()
        with self.pair(recorder, max_message_bytes=1000) as (_, client):
            error = _raises(MessageTooLargeError, lambda: client.send(1, b"x" * 1001))
            assert isinstance(error, MessageTooLargeError)
            assert (error.task, error.size_bytes, error.limit_bytes) == (1, 1001, 1000)
            client.send(1, b"x" * 1000)
            eventually(lambda: len(recorder.seen()) == 1)
            _assert_ledger(client, 1)

    def test_a_bound_port_is_refused(self) -> None:
        """A second bind of one port is an error, not a silent share."""
        with self.pair(Recorder()) as (server, _), self.context() as context:
            _raises(BindError, lambda: context.bind(TOPOLOGY, server.port, Recorder()))

    # --- counts and load -----------------------------------------------------------------------------------

    def test_counts_say_what_went_through(self) -> None:
        """Both sides count messages and bytes."""
        with self.pair(Recorder()) as (server, client):
            client.send(TaskMessageBatch.from_columns(1, [b"12345"] * 20))
            eventually(_settled(client))
            (count,) = server.statistics().received
            assert (count.messages, count.bytes) == (20, 100)
            assert client.statistics().sent_messages == 20

    def test_load_reaches_the_clients(self) -> None:
        """Loads come to every client, also to one that connects later, and are no messages."""
        recorder = Recorder()
        with self.context() as context:
            server = context.bind(TOPOLOGY, 0, recorder)
            client = context.connect(TOPOLOGY, HOST, server.port)
            eventually(lambda: _ready(client))
            assert client.get_load([1, 2]) == {}
            server.send_load_metrics({1: 0.25, 2: 1.0})
            eventually(lambda: client.get_load([1, 2, 3]) == {1: 0.25, 2: 1.0})
            late = context.connect(TOPOLOGY, HOST, server.port)
            eventually(lambda: late.get_load([2]) == {2: 1.0})
            assert recorder.seen() == []

    def test_backpressure_status_reaches_the_clients(self) -> None:
        """Congested tasks are known to the client until they are relieved."""
        with self.pair(Recorder()) as (server, client):
            eventually(lambda: _ready(client))
            server.send_backpressure_status("w", [1, 2], [])
            eventually(lambda: client.congested == {1, 2})
            server.send_backpressure_status("w", [], [1])
            eventually(lambda: client.congested == {2})

    # --- the end -----------------------------------------------------------------------------------------

    def test_close_waits_for_what_was_accepted(self) -> None:
        """Everything that was sent has arrived when close returns; later sends are an error."""
        recorder = Recorder()
        with self.pair(recorder) as (_, client):
            client.send(TaskMessageBatch.from_columns(1, [b"x"] * 5000))
            client.close()
            assert len(recorder.seen()) == 5000
            _assert_ledger(client, 5000)
            assert client.status is ConnectionStatus.CLOSED
            _raises(ClosedError, lambda: client.send(1, b"x"))
            client.close()

    def test_abort_counts_what_it_gives_up(self) -> None:
        """Without a server everything is given up and counted; a second abort does nothing."""
        with self.context() as context:
            client = context.connect(TOPOLOGY, HOST, self.unused_port())
            client.send(1, b"x")
            client.abort()
            client.abort()
            _assert_ledger(client, 1, closed=1)

    def test_after_stop_intake_messages_stay_with_the_sender(self) -> None:
        """What was taken is acknowledged; what is sent later stays pending, and goes to the next server."""
        first, second = Recorder(), Recorder()
        with self.context() as context:
            server = context.bind(TOPOLOGY, 0, first)
            assert server.addresses
            client = context.connect(TOPOLOGY, HOST, server.port)
            client.send(1, b"taken")
            eventually(lambda: first.payloads(1) == [b"taken"])
            server.stop_intake()
            eventually(_settled(client))
            client.send(1, b"kept")
            server.close()
            assert client.statistics().ledger.pending == 1
            context.bind(TOPOLOGY, server.port, second)
            eventually(lambda: second.payloads(1) == [b"kept"], timeout=10)
            assert first.payloads(1) == [b"taken"]

    def test_a_closed_server_takes_nothing(self) -> None:
        """After close the port is free, load cannot be sent, and a blocked recv has returned."""
        with self.context() as context:
            server = context.bind(TOPOLOGY, 0)
            got: list[TaskMessage | None] = []
            puller = threading.Thread(target=lambda: got.append(server.recv()), daemon=True)
            puller.start()
            server.close()
            puller.join(5)
            assert got == [None]
            assert server.status is ConnectionStatus.CLOSED
            _raises(ClosedError, lambda: server.send_load_metrics({1: 1.0}))
            server.close()
            context.bind(TOPOLOGY, server.port, Recorder())

    def test_term_ends_everything(self) -> None:
        """term() closes what the context made, twice if need be."""
        context = self.make_context()
        context.prepare(self.conf(SessionSettings()))
        server = context.bind(TOPOLOGY, 0, Recorder())
        client = context.connect(TOPOLOGY, HOST, server.port)
        context.term()
        context.term()
        assert server.status is client.status is ConnectionStatus.CLOSED


@contextmanager
def _switching_often() -> Iterator[None]:
    """Let threads run by turns so short that they meet in the middle of things."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def _raises(kind: type[TuplewireError], call: Callable[[], object]) -> TuplewireError:
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")
