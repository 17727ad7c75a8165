"""The asyncio client: uses the same sessions as the blocking client, and works on any event loop.

Used by asyncio programs, through `tuplewire.aio`. Owns its sender and receivers, which run on the messaging
loop of the process (connection/loop.py). Not thread-safe. Design: docs/design/forks-and-interrupts.md.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any, Self, overload

from tuplewire.client import BaseClient
from tuplewire.connection.loop import messaging_thread
from tuplewire.errors import FlushTimeoutError
from tuplewire.subscription import BaseSubscription, IterationLimit
from tuplewire.values.batch import TaskMessageBatch, as_groups
from tuplewire.values.message import Headers, TaskMessage


async def _run_on_messaging_loop(coroutine: Coroutine[Any, Any, None]) -> None:
    await asyncio.wrap_future(messaging_thread().submit(coroutine))


class Client(BaseClient):
    """Sends messages to a worker and receives messages from it. Not thread-safe.

    See tuplewire.Client for the guarantees and the arguments.

    Its connections run on the process's messaging loop, so they outlive the event loop that you use. Like
    asyncio, it does not support forks.
    """

    @overload
    async def send(
        self, messages: TaskMessageBatch | Iterable[TaskMessage], /, *, timeout: float | None = None
    ) -> None: ...
    @overload
    async def send(
        self,
        task: int,
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
        """Send messages; see tuplewire.Client.send. If the call is cancelled, no message is accepted."""
        buffer = self._untraced_buffer
        if buffer is None:  # the first call, a closed client, or tracing
            buffer = self._get_buffer()
            if self._tracing is not None and self._tracing.should_sample():
                groups = as_groups(messages, payload, self.source, key, headers)
                traced, span = self._tracing.sending(groups, self.address, buffer.session.max_message_bytes)
                with span:
                    await buffer.send_async(traced, timeout)
                return
        if key is not None or headers or not buffer.try_send_one(messages, payload, self.source):
            await buffer.send_async(as_groups(messages, payload, self.source, key, headers), timeout)

    async def flush(self, timeout: float | None = None) -> None:
        """Flush; see tuplewire.Client.flush. After a cancelled call, messages stay pending and may arrive."""
        if self._sender is not None:
            await self._sender.buffer.flush_async(self._settings.flush_timeout(timeout))

    def recv(
        self, tasks: int | Iterable[int], *, timeout: float | None = None, follow: bool = True
    ) -> Subscription:
        """Subscribe to tasks. Iterate over the result to get batches; see tuplewire.Client.recv."""
        return Subscription(*self._start_subscription(tasks, timeout, follow=follow))

    async def close(self, timeout: float | None = None) -> None:
        """Wait for acknowledgements, then close; see tuplewire.Client.close for the default and the errors.

        If the call is cancelled, pending messages are still sent, but no new ones accepted. Close again.
        """
        wait_seconds = self._settings.flush_timeout(timeout)
        self._closed, self._untraced_buffer = True, None
        for receiver in list(self._receivers):
            await _run_on_messaging_loop(receiver.close())
        if self._sender is not None and not self._sender.buffer.ended:
            await _run_on_messaging_loop(self._sender.close_async(wait_seconds))
            self._sender.buffer.raise_if_dropped(wait_seconds)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Flush and close within flush_timeout_seconds; after an error only close.

        If the flush is cancelled, the client is closed, and unacknowledged messages are dropped.
        """
        if kind is None:
            try:
                if self._sender is not None and not self._sender.buffer.ended:  # not after a close()
                    await self.flush()
            finally:  # drops messages only if the flush failed or was cancelled
                await self.close(0)
        else:
            with contextlib.suppress(FlushTimeoutError):
                await self.close(0 if self._sender is None else self._sender.buffer.close_seconds_after(kind))


class Subscription(BaseSubscription, AsyncIterator[TaskMessageBatch]):
    """An iterator over the batches of some tasks. Close it, or use it in `async with`."""

    async def __anext__(self) -> TaskMessageBatch:
        """Acknowledge the previous batch, and return the next one. Errors: subscription.Subscription.

        If the call is cancelled, the next call returns the batch. The previous one is acknowledged even then.
        """
        self.acknowledge(self._finished_count)
        return self._start_batch(await self._receiver.take_async(self._timeout))

    async def messages(
        self, count: int | None = None, *, quiet: float | None = None, seconds: float | None = None
    ) -> AsyncIterator[TaskMessage]:
        """Iterate over single messages, up to a limit; see tuplewire.subscription.Subscription.messages.

        If you leave the iteration early, by `break` or a cancellation, the messages before the last one are
        acknowledged at the next call or by close().
        """
        limit = IterationLimit(count, quiet, seconds)
        while limit.remaining > 0:
            self.acknowledge(self._finished_count)
            await self._receiver.buffer_changed.wait_for_async(self._receiver.is_admitted)
            if (arrived := await self._receiver.take_async(limit.max_wait())) is None:
                return
            for message in self._messages_of(arrived, limit):
                yield message
        self.acknowledge(self._finished_count)

    async def close(self) -> None:
        """End the subscription. A second call does nothing."""
        self._end_processing()
        if self._finished_count is not None:
            self.acknowledge(self._finished_count)
        await _run_on_messaging_loop(self._receiver.close())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
