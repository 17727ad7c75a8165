"""The serving side of a stream, the rights of its peer, and the base of the stream services.

Used by all transports, the stream services, security/guard.py and control/. Owns the pending handshakes.
Call only from the event loop. Design: docs/design/identity.md (limits before admission).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from google.protobuf.message import DecodeError

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
from tuplewire.text.events import LogRateLimiter, event_logger
from tuplewire.text.formatting import encodable
from tuplewire.values.group import TaskGroup
from tuplewire.wire import messaging_pb2 as pb
from tuplewire_service.messaging.transport_settings import TransportSettings

logger = event_logger(__name__)

_Message = TypeVar("_Message")

HANDSHAKE_SECONDS = 10.0
"""Timeout of a stream's first message, and of a connection's handshake."""
MAX_PENDING_HANDSHAKES = 1000
"""Maximum number of a server's streams without a first message."""
MAX_ID_LENGTH = 256
MAX_DETAIL_LENGTH = 500
"""Errors quote the peer; gRPC drops a status with more than 8 KiB of metadata, including the error code."""
_FINAL_WRITE_SECONDS = 1.0
_log_limiter = LogRateLimiter()
"""Shared by the whole process, so that peers cannot fill its log through several servers."""


class AccessRights:
    """The rights of one caller: all, unless a subclass restricts them.

    Checked once for each stream, and for messages once for each frame; denied_groups() must be very fast.
    """

    is_own_program = False
    """True for the program in the worker's process: it may send until the end of a drain, because its work
    must finish, and only it may receive the messages of its tasks.
    """

    def check_send(self, topology: str, *, as_worker: bool) -> None:
        """Check the right to send for a topology, possibly as a worker. Raises RefusedError."""

    def check_receive(self, topology: str, tasks: Iterable[int]) -> None:
        """Check the right to receive the messages of these tasks. Raises RefusedError."""

    def check_tap(self, topology: str, tasks: Collection[int]) -> None:
        """Check the right to copies of messages to these tasks (empty: all). Raises RefusedError."""

    def check_control(self, method: str) -> None:
        """Check the right to call a method of Control. Raises PermissionDeniedError."""

    def denied_groups(self, groups: Sequence[TaskGroup]) -> Sequence[tuple[TaskGroup, RefusedError]]:
        """Return the groups that it may not send, with the errors."""
        del groups
        return ()

    def may_list(self, identity: str) -> bool:
        """Return True if it may see an owner's sessions and consumers."""
        del identity
        return True

    @property
    def owner(self) -> str:
        """The owner of its sessions, consumers and sinks. Equal names of different owners are independent."""
        return ""

    def track_stream(self, end: Callable[[RefusedError], None]) -> AbstractContextManager[None]:
        """Return a context for the duration of its stream; `end` is called if its admission is withdrawn."""
        del end
        return contextlib.nullcontext()


FULL_ACCESS = AccessRights()
"""The rights of every caller, if the server authenticates none."""


class ServerStream(MessageStream):
    """The serving side of a stream; it closes cleanly when its handler returns."""

    peer: str
    """The other side's address, as the transport reports it."""

    def admit(self) -> AccessRights:
        """Return the rights of the other side. Raises RefusedError if it is not admitted."""
        return FULL_ACCESS

    @abstractmethod
    async def refuse(self, error: TuplewireError) -> NoReturn:
        """End the stream with an error; the other side receives its code and text."""


class PendingHandshakes:
    """Waits for the first message of streams, such as hello. Call only from the event loop.

    Guarantee: at most MAX_PENDING_HANDSHAKES wait, for at most HANDSHAKE_SECONDS. With one more, the longest
    wait ends with a refusal. Real clients send hello within milliseconds, so silent ones cannot block them.
    """

    def __init__(self) -> None:
        self._waiting: dict[object, asyncio.Timeout] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    async def read_first(self, read: Callable[[], Awaitable[_Message]], name: str) -> _Message:
        """Return the result of `read`. Raises MalformedError or ResourceLimitError, which contain `name`."""
        key = object()
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS) as timeout:
                self._waiting[key] = timeout
                if len(self._waiting) > MAX_PENDING_HANDSHAKES:
                    # An expired timeout ends the oldest wait; its removed key distinguishes the two errors.
                    oldest = self._waiting.pop(next(iter(self._waiting)))
                    if not oldest.expired():  # its wait may end in this turn of the loop
                        oldest.reschedule(asyncio.get_running_loop().time())
                return await read()
        except TimeoutError:
            if key in self._waiting:
                raise MalformedError(f"no {name} within {HANDSHAKE_SECONDS:g} s") from None
            raise ResourceLimitError(
                f"over {MAX_PENDING_HANDSHAKES} streams have sent nothing yet, and this one was the oldest: "
                f"send the {name} immediately"
            ) from None
        finally:
            self._waiting.pop(key, None)


@dataclass(eq=False)
class StreamService:
    """The base of a bound server's stream services. Call only from the event loop.

    All services of a server share `pending_handshakes`; `refused_streams` counts by error code. Before its
    first message is accepted, a stream ends in one of four ways:

    1. The caller is not admitted.
    2. No message arrives in time, or newer silent streams displace this one; see PendingHandshakes.
    3. The peer closes its side before the message. This is not an error.
    4. The message is refused.
    """

    topology: str
    settings: TransportSettings
    pending_handshakes: PendingHandshakes
    refused_streams: Counter[str]

    def _check_peer(self, peer: str, hello: pb.Hello | pb.Subscribe) -> None:
        """Raise RefusedError for another protocol or topology, or a peer that expects another worker."""
        if hello.protocol_version != PROTOCOL_VERSION:
            raise ProtocolVersionError(
                f"this worker uses protocol {PROTOCOL_VERSION}, the {peer} {hello.protocol_version}: "
                "bring both to one release"
            )
        check_receiver(self.settings.worker_id, self.topology, peer, hello)

    async def _refuse(self, stream: ServerStream, error: TuplewireError, *, with_error: bool = False) -> None:
        """End a stream. With `with_error`, also write the error: some writing senders miss the status."""
        self.refused_streams[code_of(error)] += 1
        log_refusal(stream.peer, error)
        if with_error:
            with contextlib.suppress(TimeoutError, StreamBroken):
                # A peer that does not read must not delay the status.
                async with asyncio.timeout(_FINAL_WRITE_SECONDS):
                    await stream.write(pb.SendResponse(ended=ended_to_wire(error)).SerializeToString())
        await stream.refuse(error)


def log_refusal(peer: str, error: TuplewireError) -> None:
    """Log a refused stream, once a minute for each host and reason. A guard logs its own refusals."""
    if isinstance(error, UnauthenticatedError | PermissionDeniedError):
        return
    host, code = peer.rpartition(":")[0], code_of(error)  # the port differs for each connection
    if streams := _log_limiter.count_event((host, code)):
        extra = {"client": peer, "streams": streams, "reason": str(error)[:MAX_DETAIL_LENGTH]}
        expected = code in {"DRAINING", "TASK_NOT_LOCAL"}  # its peers connect again, or to the task's owner
        logger.log(logging.INFO if expected else logging.WARNING, "stream.refused", extra=extra)


def code_of(error: TuplewireError) -> str:
    """Return the name of the wire's ErrorCode for an error."""
    return error.code if isinstance(error, RefusedError) else "MALFORMED"


def ended_to_wire(error: TuplewireError) -> pb.Ended:
    """Return the message that reports an error before the status does."""
    ended = pb.Ended(code=f"ERROR_CODE_{code_of(error)}", detail=encodable(str(error))[:MAX_DETAIL_LENGTH])
    if isinstance(error, RefusedError):
        ended.owner_address, ended.owner_id = error.owner, error.worker_id
    return ended


def parse(read: Callable[[bytes], _Message], data: bytes, name: str) -> _Message:
    """Return the message that `read` parses. Raises MalformedError for bytes that are not a `name`."""
    try:
        return read(data)
    except DecodeError as error:
        raise MalformedError(f"{len(data)} bytes are not a {name}: {error}") from error


def check_id(name: str, value: str) -> None:
    """Raise MalformedError for a peer's id that is empty or too long."""
    if not 0 < len(value) <= MAX_ID_LENGTH:
        raise MalformedError(f"a {name} has 1 to {MAX_ID_LENGTH} characters, not {len(value)}")


def check_receiver(worker_id: str, topology: str, peer: str, request: Any) -> None:
    """Raise RefusedError if a peer's message has an `expected_worker_id` or `topology` of another worker."""
    # The id comes first: after WRONG_WORKER, the peer tries again; WRONG_TOPOLOGY is final. See
    # docs/design/moves.md (hops and worker identity).
    if request.expected_worker_id not in {"", worker_id}:
        raise WrongWorkerError(
            f"this is worker {worker_id!r}, but the {peer} expects {request.expected_worker_id!r}: one of "
            "the two has a wrong id, or the assignment a wrong address"
        )
    if request.topology != topology:
        raise WrongTopologyError(
            f"this worker serves topology {topology!r}, the {peer} belongs to {request.topology!r}; "
            "set the option topology (--topology)"
        )


async def finish_writing(writer: asyncio.Task[None]) -> None:
    """Let a stopping stream writer finish its current write; raise its error.

    After a cancelled write, gRPC sends no status: the peer would wait until the connection ends. Only a peer
    that does not read is left in that state.
    """
    try:
        # After the timeout, wait() does not cancel the write.
        await asyncio.wait([writer], timeout=_FINAL_WRITE_SECONDS)
    finally:
        writer.cancel()
        with contextlib.suppress(asyncio.CancelledError, StreamBroken):
            await writer
