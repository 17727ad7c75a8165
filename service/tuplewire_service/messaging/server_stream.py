"""The serving side of a stream, what its other side may do, and what the services of streams share."""

from __future__ import annotations

import asyncio
import contextlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import NoReturn, Protocol, TypeVar

from tuplewire.connection.memory_stream import PassedFrame
from tuplewire.connection.stream import MessageStream, StreamBroken
from tuplewire.errors import (
    MalformedError,
    PermissionDeniedError,
    ProtocolVersionError,
    RefusedError,
    ResourceLimitError,
    TuplewireError,
    UnauthenticatedError,
    WrongTopologyError,
    WrongWorkerError,
)
from tuplewire.settings.config import PROTOCOL_VERSION
from tuplewire.text.events import event_logger
from tuplewire.text.log_rate import LogRate
from tuplewire.values.group import TaskGroup
from tuplewire.wire import messaging_pb2 as pb
from tuplewire.wire.codec import decode_send_request
from tuplewire.wire.opaque_pb2 import OpaqueFrame
from tuplewire_service.messaging.transport_settings import TransportSettings

logger = event_logger(__name__)

_Said = TypeVar("_Said")

HELLO_SECONDS = 10.0
"""How long a stream may take for its first message, and a connection for its handshake."""
MAX_SILENT_STREAMS = 1000
"""Streams of one server that have not sent their first message yet."""
MAX_ID_LENGTH = 256
MAX_DETAIL_LENGTH = 500
"""Errors quote what the peer said; gRPC drops a status whose metadata is over 8 KiB, name and all."""
_LAST_WRITE_SECONDS = 1.0
_log_rate = LogRate()
"""Of the whole process: what peers cause is not to fill its log, whatever the number of servers."""


class IAccess:
    """What one caller may do: everything, unless a subclass says otherwise.

    Asked once for each stream, and of messages once for each frame; `refused` must cost next to nothing.
    """

    def open_session(self, topology: str, *, worker: bool) -> None:
        """Take note that it sends for a topology, maybe as another worker; raises RefusedError."""

    def receive(self, topology: str, tasks: Iterable[int]) -> None:
        """Take note that it wants the messages of these tasks; raises RefusedError."""

    def tap(self, topology: str, tasks: Collection[int]) -> None:
        """Take note that it wants copies of the messages to these tasks, none: all; raises RefusedError."""

    def refused(self, groups: Sequence[TaskGroup]) -> Sequence[tuple[TaskGroup, RefusedError]]:
        """Return those groups that it may not send, and why."""
        del groups
        return ()

    def sees(self, who: str) -> bool:
        """Whether it may be told of an owner's sessions and consumers."""
        del who
        return True

    @property
    def owner(self) -> str:
        """Whose its sessions, consumers and sinks are: another owner's of the same name are others."""
        return ""

    def standing(self, end: Callable[[RefusedError], None]) -> AbstractContextManager[None]:
        """Return what lasts as long as its stream: meanwhile `end` is called once it is admitted no more."""
        del end
        return contextlib.nullcontext()


EVERYTHING = IAccess()
"""Of a caller about whom nobody asks."""


class ServerStream(MessageStream):
    """The serving side of a stream; it ends in good order when its handler returns."""

    peer: str
    """Who is on the other side, for the log."""

    @property
    def host(self) -> str:
        """The host of the other side, as far as the transport can tell."""
        return self.peer

    async def read_request(self) -> pb.SendRequest | OpaqueFrame | PassedFrame | None:
        """Return the next request of a Send stream; see read. Raises MalformedError, too."""
        data = await self.read()
        return None if data is None else decode_send_request(data)

    def admit(self) -> IAccess:
        """Return what the other side may do; RefusedError when it may not come in."""
        return EVERYTHING

    @abstractmethod
    async def refuse(self, error: TuplewireError) -> NoReturn:
        """End the stream with an error, of which the other side gets the code and the text."""


class SilentStreams:
    """Waits for what streams say first, their hello. Belongs to the event loop.

    Guarantee: at most MAX_SILENT_STREAMS wait, for at most HELLO_SECONDS. With one more, the one that has
    waited longest is refused: who means it says hello within milliseconds, and gets in however many do not.
    """

    def __init__(self) -> None:
        self._waiting: dict[object, asyncio.Timeout] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    async def first(self, read: Callable[[], Awaitable[_Said]], what: str) -> _Said:
        """Return what `read` returns. what: its name, for the errors.

        Raises MalformedError when it takes too long, and ResourceLimitError when others have come meanwhile.
        """
        key = object()
        try:
            async with asyncio.timeout(HELLO_SECONDS) as patience:
                self._waiting[key] = patience
                if len(self._waiting) > MAX_SILENT_STREAMS:
                    oldest = next(iter(self._waiting))
                    self._waiting.pop(oldest).reschedule(asyncio.get_running_loop().time())
                return await read()
        except TimeoutError:
            if key in self._waiting:
                raise MalformedError(f"no {what} within {HELLO_SECONDS:g} s") from None
            raise ResourceLimitError(
                f"over {MAX_SILENT_STREAMS} streams have sent nothing yet, and this one was the oldest: send "
                f"the {what} immediately"
            ) from None
        finally:
            self._waiting.pop(key, None)


class StreamService:
    """What the services of a bound server have in common. Belongs to the event loop."""

    def __init__(self, topology: str, settings: TransportSettings, silent: SilentStreams) -> None:
        """Begin to serve. silent: those of the server, of all its services together."""
        self.topology = topology
        self.settings = settings
        self.silent = silent
        self.refused_streams: Counter[str] = Counter()

    def _check_peer(self, peer: str, hello: pb.Hello | pb.Subscribe) -> None:
        """Raise RefusedError for a peer of another protocol or topology, or that means another worker."""
        if hello.protocol_version != PROTOCOL_VERSION:
            raise ProtocolVersionError(
                f"this worker speaks protocol {PROTOCOL_VERSION}, the {peer} {hello.protocol_version}"
            )
        check_receiver(self.settings.worker_id, self.topology, peer, hello)

    async def _refuse(self, wire: ServerStream, error: TuplewireError, *, farewell: bool = False) -> None:
        """End a stream. farewell: say why before; the status alone is lost on some senders that write."""
        self.refused_streams[code_of(error)] += 1
        log_refusal(wire.peer, error)
        if farewell:
            with contextlib.suppress(TimeoutError, StreamBroken):
                async with asyncio.timeout(_LAST_WRITE_SECONDS):
                    await wire.write(pb.SendResponse(ended=ended_to_wire(error)).SerializeToString())
        await wire.refuse(error)


def log_refusal(peer: str, error: TuplewireError) -> None:
    """Log a refused stream, once a minute for each host and reason; a guard logs what it denies itself."""
    if isinstance(error, UnauthenticatedError | PermissionDeniedError):
        return
    host, code = peer.rpartition(":")[0], code_of(error)  # the port differs each time
    if streams := _log_rate.due((host, code)):
        extra = {"peer": peer, "streams": streams, "reason": str(error)[:MAX_DETAIL_LENGTH]}
        logger.warning("stream.refused", extra=extra)


def code_of(error: TuplewireError) -> str:
    """Return the name of the wire's ErrorCode for an error."""
    return error.code if isinstance(error, RefusedError) else "MALFORMED"


def ended_to_wire(error: TuplewireError) -> pb.Ended:
    """Return what tells of an error before the status does."""
    return pb.Ended(code=f"ERROR_CODE_{code_of(error)}", detail=str(error)[:MAX_DETAIL_LENGTH])


def check_id(name: str, value: str) -> None:
    """Raise MalformedError for a peer's id that is empty, or too long to be remembered."""
    if not 0 < len(value) <= MAX_ID_LENGTH:
        raise MalformedError(f"a {name} has 1 to {MAX_ID_LENGTH} characters, not {len(value)}")


class _Addressed(Protocol):
    """What every message has that is for one worker."""

    @property
    def receiver_id(self) -> str: ...
    @property
    def topology(self) -> str: ...


def check_receiver(
    worker_id: str,
    topology: str,
    peer: str,
    said: _Addressed,
) -> None:
    """Raise RefusedError for a peer that means another worker; before what only that one can answer."""
    if said.receiver_id not in {"", worker_id}:
        raise WrongWorkerError(
            f"this is worker {worker_id!r}, the {peer} means {said.receiver_id!r}: one of the two has a "
            "wrong id, or the assignment a wrong address"
        )
    if said.topology != topology:
        raise WrongTopologyError(
            f"this worker serves topology {topology!r}, the {peer} belongs to {said.topology!r}"
        )


async def finish_writing(writer: asyncio.Task[None]) -> None:
    """Let a stream's writer, which was told to end, finish the write that is under way; raise what it raised.

    A write that is broken off stays with gRPC, which sends no status meanwhile: the peer would wait for one
    as long as the connection holds. Only a peer that does not read is left like that.
    """
    try:
        await asyncio.wait([writer], timeout=_LAST_WRITE_SECONDS)
    finally:
        writer.cancel()
        with contextlib.suppress(asyncio.CancelledError, StreamBroken):
            await writer
