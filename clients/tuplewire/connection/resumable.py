"""What Sender and Receiver have in common: a stream that is opened again whenever it breaks."""

from __future__ import annotations

import asyncio
import contextlib
import random
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from google.protobuf.message import DecodeError, Message

from tuplewire.connection.loop import watched
from tuplewire.connection.stream import ClientStream, Dial, StreamBroken
from tuplewire.errors import ProtocolError, RefusedError, TuplewireError, UnreachableError
from tuplewire.session.retry import Backoff
from tuplewire.settings.config import SessionSettings
from tuplewire.text.events import event_logger
from tuplewire.text.log_rate import LogRate

logger = event_logger(__name__)

CREDENTIALS = frozenset({"UNAUTHENTICATED", "PERMISSION_DENIED"})
"""Refusals for what a side shows of itself. Two sides whose files are exchanged do not change at once."""
_QUIET_SECONDS = 1.0
"""How long nobody is told that a worker is out of reach: it may be about to start, or to come again."""
FATAL = CREDENTIALS | {
    "MESSAGE_TOO_LARGE",
    "PROTOCOL_VERSION",
    "STALE_INCARNATION",
    "SUPERSEDED",
    "WRONG_TOPOLOGY",
}
"""Refusals that the same request would meet again, however often it is made."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who sends, or consumes: fences and resumes sessions.

    incarnation: grows with every start of the same sender id. worker: whether it is a worker.
    """

    topology: str
    sender_id: str
    incarnation: int
    worker: bool = False


class Resumable(ABC):
    """Keeps one stream up until it is over. Belongs to the loop."""

    method: ClassVar[str]
    fatal: ClassVar[frozenset[str]] = FATAL
    """The codes of refusals after which it is of no use to try again."""

    def __init__(
        self,
        address: str,
        identity: Identity,
        settings: SessionSettings,
        loop: asyncio.AbstractEventLoop,
        dial: Dial,
        receiver_id: str,
    ) -> None:
        """Describe a session; dial opens its streams.

        receiver_id: the worker that is meant; empty: whoever answers at the address.
        """
        self.address = address
        self.identity = identity
        self.receiver_id = receiver_id
        self.connected = False
        self._settings = settings
        self._loop = loop
        self._dial = dial
        self.over = False
        """Whether no further stream is wanted."""
        self._admitted = False
        """Whether the worker has let us in before, or others may exchange their files before we do ours."""
        self._last_problem = "no answer yet"
        self._task: asyncio.Task[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._log_rate = LogRate()

    @property
    def connection(self) -> str:
        """The state of the connection, as text."""
        return "connected" if self.connected else f"not connected: {self._last_problem}"

    # --- what a session does with its stream ---------------------------------------------------------

    @abstractmethod
    async def _open(self, stream: ClientStream) -> None:
        """Say hello, and take the answer in."""

    @staticmethod
    async def _exchange(stream: ClientStream, request: Message) -> bytes:
        """Write a request, and return what comes next; StreamBroken where the other side ends the stream."""
        await stream.write(request.SerializeToString())
        data = await stream.read()
        if data is None:
            raise StreamBroken
        return data

    @abstractmethod
    def _beside(self, stream: ClientStream) -> Sequence[Coroutine[Any, Any, None]]:
        """Return what runs while the stream is read, such as what writes to it."""

    @abstractmethod
    async def _read(self, stream: ClientStream) -> None:
        """Read until the other side has ended the stream."""

    @abstractmethod
    def _lost(self, error: TuplewireError) -> None:
        """Take account of a stream that is over, or could not be opened."""

    @abstractmethod
    def _failed(self, error: TuplewireError) -> None:
        """Give up for good."""

    def _dismissed_because(self) -> TuplewireError | None:
        """Return why the stream was to end, where that is known better here than there."""
        return None

    # --- life ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to connect; on the loop."""
        name = f"{self.method.lower()} at {self.address}"
        self._task = watched(self._loop.create_task(self._run(), name=name))
        self._out_of_reach_from_now()

    def _out_of_reach_from_now(self) -> None:
        """Have it said if nothing is mended within a second."""
        if self._alarm is None and not self.over:
            self._alarm = self._loop.call_later(_QUIET_SECONDS, self._say_out_of_reach)

    def _say_out_of_reach(self) -> None:
        if self._log_rate.due("unreachable"):
            reason = f"{self._last_problem}; trying again"
            logger.warning("worker.unreachable", extra={"peer": self.address, "reason": reason})

    def _in_reach(self) -> None:
        """Take back what _out_of_reach_from_now() has begun: there is a connection, or none is wanted."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    async def suspend(self) -> None:
        """Give the stream up, at the end or for a fork; see tuplewire.connection.loop."""
        self._in_reach()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])  # what it raised, if anything, was reported

    @property
    def _wanted(self) -> bool:
        """Whether a stream that breaks is opened again."""
        return not self.over

    async def _run(self) -> None:
        settings = self._settings
        backoff = Backoff(settings.backoff_initial_seconds, settings.backoff_max_seconds, random.random)
        while self._wanted:
            try:
                await self._stream(backoff)
            except TuplewireError as error:
                self._lost(error)
                if self._wanted and not self._may_try_again(error):
                    self._in_reach()
                    self._failed(_without_frames(error))
                    return
                self._out_of_reach_from_now()
            except Exception as error:
                self._in_reach()
                self._failed(TuplewireError(f"the connection to {self.address} has a defect: {error!r}"))
                raise
            finally:
                self.connected = False
            if self._wanted:
                await asyncio.sleep(backoff.next())

    def _may_try_again(self, error: TuplewireError) -> bool:
        if isinstance(error, RefusedError):
            return error.code not in self.fatal or (error.code in CREDENTIALS and self._admitted)
        return isinstance(error, UnreachableError)

    async def _stream(self, backoff: Backoff) -> None:
        """Keep one stream up until it ends; always raises what ended it."""
        async with self._dial(self.method) as stream:
            with contextlib.suppress(StreamBroken):  # the stream itself says why
                try:
                    await self._open(stream)
                    backoff.succeeded()
                    self._admitted = True
                    self._in_reach()
                    await self._carry(stream)
                except DecodeError as error:
                    raise ProtocolError(
                        f"{self.address} does not answer as a Tuplewire worker: {error}"
                    ) from error
            raise self._dismissed_because() or await stream.end()

    async def _carry(self, stream: ClientStream) -> None:
        beside = [self._loop.create_task(each) for each in self._beside(stream)]
        try:
            await self._read(stream)
        finally:
            for task in beside:
                task.cancel()
            # A cancellation that comes now is ours; it must not be taken for that of one of them.
            ended = await asyncio.gather(*beside, return_exceptions=True)
            for error in ended:
                if error is not None and not isinstance(error, StreamBroken | asyncio.CancelledError):
                    raise error


def _without_frames(error: TuplewireError) -> TuplewireError:
    """Return an error that keeps no frame alive: in those that it came through are objects of gRPC.

    As long as one of them is there, so are gRPC's threads, and the child of a fork cannot use it.
    """
    link: BaseException | None = error
    while link is not None:
        link.with_traceback(None)
        link = link.__cause__ or link.__context__
    return error
