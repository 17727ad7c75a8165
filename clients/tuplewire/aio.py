"""The asyncio client: the same session as the blocking one, on the same thread, awaited on any event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any, Self, overload

from tuplewire.client import BaseClient
from tuplewire.connection.loop import messaging_loop
from tuplewire.errors import FlushTimeoutError
from tuplewire.subscription import BaseSubscription, Bounds
from tuplewire.values.batch import TaskMessageBatch, as_groups
from tuplewire.values.message import Headers, TaskMessage


async def _on_messaging_loop(coroutine: Coroutine[Any, Any, None]) -> None:
    await asyncio.wrap_future(messaging_loop().submit(coroutine))


class Client(BaseClient):
    """Sends to and receives from a worker; tuplewire.Client has the guarantees and the parameters.

    Its connections are on the process's messaging loop: they outlive the event loop on which you use it. It
    does not survive a fork; asyncio itself does not.

    A cancelled `send` has accepted nothing. A cancelled `flush` leaves every message pending, and they may
    still arrive. A cancelled wait for the next batch loses no message: the next call returns it.
    """

    @overload
    async def send(
        self, messages: TaskMessageBatch | Iterable[TaskMessage], /, *, timeout: float | None = None
    ) -> None: ...
    @overload
    async def send(
        self,
        messages: int,
        payload: bytes,
        /,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        timeout: float | None = None,
    ) -> None: ...
    async def send(
        self,
        messages: Any,
        payload: bytes | None = None,
        /,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        timeout: float | None = None,
    ) -> None:
        """Hand over messages, and wait for room; see tuplewire.Client.send.

        If it is cancelled, nothing is accepted.
        """
        buffer = self._connected()
        if self._observer is not None and self._observer.samples():
            groups = as_groups(messages, payload, self.source, key, headers)
            with self._observer.sending(groups, self.address, buffer.window.max_message_bytes) as sent:
                await buffer.send_async(sent, timeout)
        elif key is not None or headers or not buffer.send_one(messages, payload, self.source):
            await buffer.send_async(as_groups(messages, payload, self.source, key, headers), timeout)

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until every sent message is acknowledged; see tuplewire.Client.flush.

        If it is cancelled, messages stay pending, and may still arrive.
        """
        if self._sender is not None:
            await self._sender.buffer.flush_async(self._settings.flush_patience(timeout))

    def recv(self, tasks: int | Iterable[int], *, timeout: float | None = None) -> Subscription:
        """Subscribe to tasks; iterate over the result to get batches; see tuplewire.Client.recv."""
        return Subscription(*self._receive(tasks, timeout))

    async def close(self, timeout: float | None = None) -> None:
        """Wait for acknowledgements, then end; see tuplewire.Client.close, for the default and errors, too.

        If it is cancelled, nothing more is accepted, and pending messages go on. Close again to end it.
        """
        patience = self._settings.flush_patience(timeout)
        self._closed = True
        for receiver in list(self._receivers):
            await _on_messaging_loop(receiver.close())
        if self._sender is not None and not self._sender.buffer.ended:
            await _on_messaging_loop(self._sender.close_async(patience))
            self._tell_given_up(self._sender, patience)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Flush and close, in at most flush_seconds; after an error only close.

        If it is cancelled while it waits, the client is closed, and what is not acknowledged is given up.
        """
        if kind is None:
            try:
                await self.flush()
            finally:
                await self.close(0)
        else:
            with contextlib.suppress(FlushTimeoutError):
                await self.close(self._patience_after(kind))


class Subscription(BaseSubscription, AsyncIterator[TaskMessageBatch]):
    """An iterator over the batches that arrive for some tasks; see tuplewire.subscription.Subscription.

    Close it, or use it in `async with`.
    """

    async def __anext__(self) -> TaskMessageBatch:
        """Return the next batch; raises what tuplewire.subscription.Subscription raises.

        If it is cancelled, no message is lost: the next call returns the batch. The batch before is
        acknowledged all the same.
        """
        self._settle()
        return self._batch_of(await self._receiver.take_async(self._timeout))

    async def messages(
        self, count: int | None = None, *, quiet: float | None = None, seconds: float | None = None
    ) -> AsyncIterator[TaskMessage]:
        """Iterate over single messages, to an end; see tuplewire.subscription.Subscription.messages.

        If you leave it early, by `break` or a cancellation, what you have seen before the last message is
        acknowledged with the next call, or with close().
        """
        bounds = Bounds(count, quiet, seconds)
        while bounds.left > 0:
            self._settle()
            arrived = await self._receiver.take_async(bounds.wait())
            if arrived is None:
                return
            batch = self._begin(arrived, bounds.left)
            given = 0
            for self._seen, message in enumerate(batch):
                if not self._void or message.task not in self._void:
                    given += 1
                    yield message
            self._seen = len(batch)
            bounds.left -= given
        self._settle()

    async def close(self) -> None:
        """End the subscription; a second call does nothing."""
        self._end_processing()
        if self._seen is not None:
            self._settle()
        await _on_messaging_loop(self._receiver.close())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
