"""The blocking client, for PySpark tasks and other threads."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Self, overload
from weakref import WeakSet

from tuplewire.channel import dial_grpc, dialler_for, resolve_address, resolve_topology
from tuplewire.config import SessionSettings
from tuplewire.credentials import Credentials
from tuplewire.errors import ClosedError
from tuplewire.loop import EventLoopThread, messaging_loop
from tuplewire.message import TaskMessage, TaskMessageBatch, as_groups
from tuplewire.receiver import Receiver
from tuplewire.sender import Identity, Sender
from tuplewire.session.consume import Arrived
from tuplewire.session.ledger import LedgerSnapshot


class Client:
    """Sends to and receives from a worker.

    Nothing is connected before the first call. What `send` has returned from arrives exactly once and in
    order per (source, task) as long as this process and the workers live, through any number of broken
    connections.

    Thread-safe. Pickles as its settings: where it is unpickled it is a new sender that connects at its first
    call; likewise in a forked child.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        topology: str | None = None,
        client_id: str | None = None,
        incarnation: int | None = None,
        source: int | None = None,
        credentials: Credentials | None = None,
        **settings: Any,
    ) -> None:
        """Describe a client.

        address: the worker's, host:port or unix:///path; by default that of TUPLEWIRE_ADDRESS.
        topology: by default that of TUPLEWIRE_TOPOLOGY, or `default`.
        client_id, incarnation: who this is across restarts; a newer incarnation of one id fences the older
        off (in Spark: the taskAttemptId). By default nobody else.
        source: the task that sends, where this is one.
        credentials: the files of TLS and of a token; by default those of TUPLEWIRE_TLS_CA and so on, where it
        connects.
        settings: those of tuplewire.config.SessionSettings; ConfigError names an unknown one.
        """
        self.address = resolve_address(address)
        self.topology = resolve_topology(topology)
        self.source = source
        self._client_id = client_id
        self._incarnation = incarnation
        self._keywords = settings
        self._settings = SessionSettings.of(**settings)
        self._credentials = credentials
        self._forget()

    def _forget(self) -> None:
        """Be a client that has not connected yet, in this process."""
        self._pid = os.getpid()
        self._id = self._client_id or str(uuid.uuid4())
        self._lock = threading.Lock()
        self._sender: Sender | None = None
        self._subscriptions: WeakSet[Subscription] = WeakSet()
        self._closed = False

    def __reduce__(self) -> tuple[Any, ...]:
        keywords = {
            "address": self.address,
            "topology": self.topology,
            "client_id": self._client_id,
            "incarnation": self._incarnation,
            "source": self.source,
            "credentials": self._credentials,
            **self._keywords,
        }
        return (_make_client, (type(self), keywords))

    def __repr__(self) -> str:
        state = "closed" if self._closed else "idle" if self._sender is None else "open"
        return f"<Client {self.address} topology={self.topology} {state}>"

    def _connected(self) -> Sender:
        if self._pid != os.getpid():
            self._forget()
        sender = self._sender
        if sender is None:
            with self._lock:
                sender = self._sender or self._connect()
        return sender

    def _connect(self) -> Sender:
        if self._closed:
            raise ClosedError("the client is closed")
        thread = messaging_loop()
        identity = Identity(self.topology, self._id, self._incarnation or time.time_ns())
        dial = dial_grpc(self.address, self._settings, dialler_for(self._credentials))
        self._sender = sender = Sender(self.address, identity, self._settings, thread.loop, dial)
        thread.suspendables.add(sender)
        thread.call(sender.start)
        return sender

    @overload
    def send(
        self, messages: TaskMessageBatch | Iterable[TaskMessage], /, *, timeout: float | None = None
    ) -> None: ...
    @overload
    def send(self, messages: int, payload: bytes, /, *, timeout: float | None = None) -> None: ...
    def send(self, messages: Any, payload: bytes | None = None, /, *, timeout: float | None = None) -> None:
        """Hand over a batch, an iterable of TaskMessages, or a task id and a payload.

        Waits for room, at most `timeout` seconds (None: max_block_seconds), and returns once everything is
        accepted: all of it or nothing. With overflow="fail" it does not wait; with overflow="drop_oldest" it
        first gives up the oldest messages that were never sent, which the ledger counts, and waits only where
        that is not enough. Raises BufferFullError, MessageTooLargeError, ClosedError, or the RefusedError for
        which the session has ended.
        """
        groups = as_groups(messages, payload, self.source)
        self._connected().send(groups, timeout)

    @overload
    def try_send(self, messages: TaskMessageBatch | Iterable[TaskMessage], /) -> bool: ...
    @overload
    def try_send(self, messages: int, payload: bytes, /) -> bool: ...
    def try_send(self, messages: Any, payload: bytes | None = None, /) -> bool:
        """Hand over as `send` does, where that does not need to wait; False where it would."""
        return self._connected().try_send(as_groups(messages, payload, self.source))

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything that was sent is acknowledged, or was given up as `overflow` says.

        Raises FlushTimeoutError when the timeout (seconds) passes first, and RefusedMessagesError when the
        worker has refused messages since the last flush.
        """
        if self._sender is not None and self._pid == os.getpid():
            self._sender.wait_flushed(timeout)

    def recv(self, tasks: Iterable[int], *, timeout: float | None = None) -> Subscription:
        """Subscribe to tasks of the worker; iterate over the result for what arrives, batch by batch.

        timeout: of each batch, in seconds; None waits without end.
        """
        if self._pid != os.getpid():
            self._forget()
        if self._closed:
            raise ClosedError("the client is closed")
        thread = messaging_loop()
        receiver = Receiver(
            self.address,
            self.topology,
            self._id,
            self._incarnation or time.time_ns(),
            tasks,
            self._settings,
            thread.loop,
            dial_grpc(self.address, self._settings, dialler_for(self._credentials)),
        )
        thread.suspendables.add(receiver)
        thread.call(receiver.start)
        subscription = Subscription(receiver, thread, timeout)
        self._subscriptions.add(subscription)
        return subscription

    def ledger(self) -> LedgerSnapshot:
        """Return what became of everything that was sent; a forked child has sent nothing yet."""
        if self._sender is None or self._pid != os.getpid():
            return LedgerSnapshot()
        return self._sender.ledger()

    def close(self, timeout: float = 10.0) -> None:
        """Wait for acknowledgements as long as the timeout, then end; what is left is dropped{closed}.

        Does nothing the second time. A forked child closes nothing of its parent's.
        """
        if self._pid != os.getpid():
            self._forget()
        with self._lock:
            self._closed = True
            sender = self._sender
        for subscription in list(self._subscriptions):
            subscription.close()
        if sender is not None:
            messaging_loop().run(sender.close(timeout))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Flush and close; after an error only close, so that the error is what is seen."""
        with contextlib.ExitStack() as stack:
            stack.callback(self.close)
            if kind is None:
                self.flush()


class Subscription(Iterator[TaskMessageBatch]):
    """Batches as they arrive for some tasks.

    Asking for the next batch acknowledges the one before; acknowledge() does so at once. Ending the iteration
    in any other way, or close(), leaves what is not acknowledged, in order, to the next subscriber.
    """

    def __init__(self, receiver: Receiver, thread: EventLoopThread, timeout: float | None) -> None:
        self._receiver = receiver
        self._thread = thread
        self._timeout = timeout
        self._pid = os.getpid()
        self._current: Arrived | None = None

    def __next__(self) -> TaskMessageBatch:
        """Return the next batch.

        Raises TimeoutError when nothing arrives for the timeout, UnreachableError when the worker is out of
        reach for as long, SupersededError when somebody else subscribes to one of the tasks, UnknownTaskError
        when a task is not on this worker, ClosedError after close().
        """
        if self._pid != os.getpid():
            raise ClosedError("the subscription belongs to the parent process; call recv() in this one")
        self.acknowledge()
        arrived = self._receiver.take(self._timeout)
        if arrived is None:
            raise TimeoutError(f"nothing arrived from {self._receiver.address} for {self._timeout} s")
        self._current = arrived
        return TaskMessageBatch.from_groups(arrived.groups)

    def acknowledge(self) -> None:
        """Say that every batch so far is done with."""
        arrived, self._current = self._current, None
        if arrived is not None:
            self._receiver.acknowledge(arrived)

    def close(self) -> None:
        """End the subscription; does nothing the second time."""
        if self._pid == os.getpid():
            self._thread.run(self._receiver.close())

    def __del__(self) -> None:
        """End a subscription that was only iterated over; in the background, as nobody may wait here."""
        if self._pid == os.getpid() and self._thread.loop.is_running() and not self._receiver.closed:
            self._thread.submit(self._receiver.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _make_client(kind: type[Client], keywords: dict[str, Any]) -> Client:
    return kind(**keywords)
