"""The common base of SendingEnd and ConsumingEnd: a stream that is replaced whenever it breaks.

Subclasses open, read and write a stream. This class connects, backs off after failures, logs an unreachable
worker, and decides which errors are final. Used by sending_end.py and consuming_end.py. Owns the task that
runs the stream. Call only from the event loop. Design: docs/design/sessions.md.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from google.protobuf.message import DecodeError, Message

from tuplewire.connection.loop import report_errors
from tuplewire.connection.stream import ClientStream, StreamBroken, StreamOpener
from tuplewire.errors import ProtocolError, RefusedError, TuplewireError, UnreachableError
from tuplewire.session.backoff import Backoff
from tuplewire.settings.config import SessionSettings
from tuplewire.text.events import event_logger

logger = event_logger(__name__)

CREDENTIAL_REFUSALS = frozenset({"UNAUTHENTICATED", "PERMISSION_DENIED"})
"""Refusals of credentials. They may be temporary: two sides do not replace their files at the same time."""
_WARN_AFTER_SECONDS = 1.0
"""The time before an unreachable worker is logged: it may be starting, or the connection may return."""
FINAL_CODES = CREDENTIAL_REFUSALS | {
    "MESSAGE_TOO_LARGE",
    "PROTOCOL_VERSION",
    "STALE_INCARNATION",
    "SUPERSEDED",
    "WRONG_TOPOLOGY",
    "UNKNOWN_TASK",
    "TASK_NOT_LOCAL",
}
"""Codes that end a session. See _is_retryable() of the subclasses for exceptions."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The sender or consumer of a session; fences and resumes sessions.

    incarnation: increases with every start of the same client id. is_worker: True for a worker.
    """

    topology: str
    client_id: str
    incarnation: int
    is_worker: bool = False


class ReconnectingSession(ABC):
    """Keeps one stream open until the session ends. Call only from the event loop."""

    method: ClassVar[str]

    def __init__(
        self,
        address: str,
        identity: Identity,
        settings: SessionSettings,
        loop: asyncio.AbstractEventLoop,
        open_stream: StreamOpener,
        expected_worker_id: str,
    ) -> None:
        """Describe a session. expected_worker_id: the worker to reach; empty: any at the address."""
        self.address = address
        self.identity = identity
        self.expected_worker_id = expected_worker_id
        self.connected = False
        self._settings = settings
        self._loop = loop
        self._open_stream = open_stream
        self.is_closed = False
        """True if no further stream must be opened."""
        self._was_admitted = False
        """True if a worker has accepted the credentials before: they are retried if it refuses them later."""
        self._last_problem = "no answer yet"
        self._run_task: asyncio.Task[None] | None = None
        self._warning_timer: asyncio.TimerHandle | None = None

    @property
    def connection_state(self) -> str:
        """The state of the connection, as text."""
        reason = self._last_problem.removeprefix(f"{self.address}: ").removeprefix("no connection: ")
        return "connected" if self.connected else f"not connected: {reason}"

    # --- for subclasses ------------------------------------------------------------------------------

    @abstractmethod
    async def _open(self, stream: ClientStream) -> None:
        """Send the first request of a stream, and apply the answer."""

    @staticmethod
    async def _exchange(stream: ClientStream, request: Message) -> bytes:
        """Write a request and return the next message; raise StreamBroken if the peer ends the stream."""
        await stream.write(request.SerializeToString())
        data = await stream.read()
        if data is None:
            raise StreamBroken
        return data

    @abstractmethod
    def _background_tasks(self, stream: ClientStream) -> Sequence[Coroutine[Any, Any, None]]:
        """Return the coroutines that run while the stream is read, such as the writer."""

    @abstractmethod
    async def _read(self, stream: ClientStream) -> None:
        """Read until the peer ends the stream."""

    @abstractmethod
    def _on_lost(self, error: TuplewireError) -> None:
        """Handle a stream that ended or could not be opened."""

    @abstractmethod
    def _on_failed(self, error: TuplewireError) -> None:
        """Handle an error after which no further stream is opened."""

    # --- life ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start to connect."""
        name = f"{self.method.lower()} at {self.address}"
        self._run_task = report_errors(self._loop.create_task(self._run(), name=name))
        self._start_warning()

    def _start_warning(self) -> None:
        """Log a warning in one second, unless a stream is open by then."""
        if self._warning_timer is None and not self.is_closed:
            self._warning_timer = self._loop.call_later(_WARN_AFTER_SECONDS, self._log_unreachable)

    def _log_unreachable(self) -> None:
        reason = f"{self._last_problem}; trying again"
        logger.warning("worker.not_connected", extra={"address": self.address, "reason": reason})

    def _cancel_warning(self) -> None:
        """Cancel the warning: there is a connection, or none is needed."""
        if self._warning_timer is not None:
            self._warning_timer.cancel()
            self._warning_timer = None

    async def suspend(self) -> None:
        """Close the stream, at the end or for a fork; see tuplewire.connection.loop."""
        self._cancel_warning()
        task, self._run_task = self._run_task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])  # its exception, if any, was reported by report_errors()

    @property
    def _needs_stream(self) -> bool:
        """True if a stream that breaks is replaced."""
        return not self.is_closed

    async def _run(self) -> None:
        """Open streams, one after another, until _needs_stream is False.

        1. An error that every retry would repeat ends the session.
        2. After any other error of a stream, another one is opened after a delay.
        3. A defect ends the session, and the loop's exception handler reports it.
        """
        settings = self._settings
        backoff = Backoff(settings.backoff_initial_seconds, settings.backoff_max_seconds)
        while self._needs_stream:
            try:
                await self._open_and_run(backoff)
            except TuplewireError as error:
                self._on_lost(error)
                # 1. A finished session needs no further stream, and the error has no effect on it.
                if self._needs_stream and not self._is_retryable(error):
                    self._cancel_warning()
                    self._on_failed(_without_traceback(error))
                    return
                # 2. Warn only after a second, because the connection may return sooner.
                self._start_warning()
            except Exception as error:
                # 3. Callers that wait get an error. Without it, they would wait indefinitely.
                self._cancel_warning()
                self._on_failed(TuplewireError(f"the connection to {self.address} has a defect: {error!r}"))
                raise
            finally:
                self.connected = False
            if self._needs_stream:
                await asyncio.sleep(backoff.next())

    def _is_retryable(self, error: TuplewireError) -> bool:
        # Refused credentials are final only before the first admission; see CREDENTIAL_REFUSALS.
        if isinstance(error, RefusedError):
            return error.code not in FINAL_CODES or (error.code in CREDENTIAL_REFUSALS and self._was_admitted)
        return isinstance(error, UnreachableError)

    async def _open_and_run(self, backoff: Backoff) -> None:
        """Run one stream until it ends; always raise the error that ended it."""
        async with self._open_stream(self.method) as stream:
            with contextlib.suppress(StreamBroken):  # stream.end() returns the reason
                try:
                    await self._open(stream)
                    backoff.reset()
                    self._was_admitted = True
                    self._cancel_warning()
                    await self._run_stream(stream)
                except DecodeError as error:
                    text = f"{self.address} does not answer as a Tuplewire worker: {error}"
                    raise ProtocolError(text) from error
            raise await stream.end()

    async def _run_stream(self, stream: ClientStream) -> None:
        background = [self._loop.create_task(each) for each in self._background_tasks(stream)]
        try:
            # In a separate task, a message resumes only _read(), not each coroutine that awaits it.
            await self._loop.create_task(self._read(stream))
        finally:
            for task in background:
                task.cancel()
            # With return_exceptions, only a cancellation of this task is raised here, not the tasks' own.
            results = await asyncio.gather(*background, return_exceptions=True)
            for error in results:
                if error is not None and not isinstance(error, StreamBroken | asyncio.CancelledError):
                    raise error


def _without_traceback(error: TuplewireError) -> TuplewireError:
    """Return the error without its tracebacks, because their frames refer to objects of gRPC.

    While one of these objects exists, gRPC's threads run, and the child of a fork cannot use gRPC.
    """
    link: BaseException | None = error
    while link is not None:
        link.with_traceback(None)
        link = link.__cause__ or link.__context__
    return error
