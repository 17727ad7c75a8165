"""The asyncio client: the same session as the blocking one, on the caller's own event loop."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Iterable
from types import TracebackType
from typing import Any, Self, overload

from tuplewire.channel import dial_grpc, dialler_for, resolve_address, resolve_topology
from tuplewire.config import SessionSettings
from tuplewire.credentials import Credentials
from tuplewire.errors import ClosedError
from tuplewire.message import TaskMessage, TaskMessageBatch, as_groups
from tuplewire.receiver import Receiver
from tuplewire.sender import Identity, Sender
from tuplewire.session.consume import Arrived
from tuplewire.session.ledger import LedgerSnapshot


class Client:
    """Sends to and receives from a worker; tuplewire.Client has the guarantees and the parameters.

    Belongs to the event loop on which it is first used. Not for use across a fork, which asyncio itself does
    not survive.
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
        """Describe a client; see tuplewire.Client."""
        self.address = resolve_address(address)
        self.topology = resolve_topology(topology)
        self.source = source
        self._id = client_id or str(uuid.uuid4())
        self._incarnation = incarnation or time.time_ns()
        self._settings = SessionSettings.of(**settings)
        self._credentials = credentials
        self._sender: Sender | None = None
        self._receivers: set[Receiver] = set()
        self._closed = False

    def _connected(self) -> Sender:
        if self._closed:
            raise ClosedError("the client is closed")
        if self._sender is None:
            identity = Identity(self.topology, self._id, self._incarnation)
            loop = asyncio.get_running_loop()
            dial = dial_grpc(self.address, self._settings, dialler_for(self._credentials))
            self._sender = Sender(self.address, identity, self._settings, loop, dial)
            self._sender.start()
        return self._sender

    @overload
    async def send(
        self, messages: TaskMessageBatch | Iterable[TaskMessage], /, *, timeout: float | None = None
    ) -> None: ...
    @overload
    async def send(self, messages: int, payload: bytes, /, *, timeout: float | None = None) -> None: ...
    async def send(
        self, messages: Any, payload: bytes | None = None, /, *, timeout: float | None = None
    ) -> None:
        """Hand over messages, waiting for room; see tuplewire.Client.send."""
        groups = as_groups(messages, payload, self.source)
        await self._connected().sent(groups, timeout)

    @overload
    def try_send(self, messages: TaskMessageBatch | Iterable[TaskMessage], /) -> bool: ...
    @overload
    def try_send(self, messages: int, payload: bytes, /) -> bool: ...
    def try_send(self, messages: Any, payload: bytes | None = None, /) -> bool:
        """Hand over messages where send would not wait; needs a running loop."""
        return self._connected().try_send(as_groups(messages, payload, self.source))

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until everything that was sent is acknowledged; see tuplewire.Client.flush."""
        if self._sender is not None:
            await self._sender.flushed(timeout)

    def recv(self, tasks: Iterable[int], *, timeout: float | None = None) -> Subscription:
        """Subscribe to tasks; iterate over the result for what arrives; see tuplewire.Client.recv."""
        if self._closed:
            raise ClosedError("the client is closed")
        receiver = Receiver(
            self.address,
            self.topology,
            self._id,
            self._incarnation,
            tasks,
            self._settings,
            asyncio.get_running_loop(),
            dial_grpc(self.address, self._settings, dialler_for(self._credentials)),
        )
        receiver.start()
        self._receivers.add(receiver)
        return Subscription(receiver, timeout)

    def ledger(self) -> LedgerSnapshot:
        """Return what became of everything that was sent."""
        return LedgerSnapshot() if self._sender is None else self._sender.ledger()

    async def close(self, timeout: float = 10.0) -> None:
        """Wait for acknowledgements as long as the timeout, then end; see tuplewire.Client.close."""
        self._closed = True
        for receiver in list(self._receivers):
            await receiver.close()
        if self._sender is not None:
            await self._sender.close(timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Flush and close; after an error only close."""
        try:
            if kind is None:
                await self.flush()
        finally:
            await self.close()


class Subscription(AsyncIterator[TaskMessageBatch]):
    """Batches as they arrive for some tasks; see tuplewire.client.Subscription.

    Close it, or use it in `async with`.
    """

    def __init__(self, receiver: Receiver, timeout: float | None) -> None:
        self._receiver = receiver
        self._timeout = timeout
        self._current: Arrived | None = None

    async def __anext__(self) -> TaskMessageBatch:
        """Return the next batch; raises what tuplewire.client.Subscription raises."""
        self.acknowledge()
        arrived = await self._receiver.taken(self._timeout)
        if arrived is None:
            raise TimeoutError(f"nothing arrived from {self._receiver.address} for {self._timeout} s")
        self._current = arrived
        return TaskMessageBatch.from_groups(arrived.groups)

    def acknowledge(self) -> None:
        """Say that every batch so far is done with."""
        arrived, self._current = self._current, None
        if arrived is not None:
            self._receiver.acknowledge(arrived)

    async def close(self) -> None:
        """End the subscription; does nothing the second time."""
        await self._receiver.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
