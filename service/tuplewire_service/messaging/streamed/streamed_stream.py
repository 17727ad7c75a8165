"""The serving side of a stream, as a transport hands it to the services."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import abstractmethod
from typing import NoReturn

from tuplewire.connection.log_rate import LogRate
from tuplewire.connection.stream import MessageStream, StreamBroken
from tuplewire.errors import (
    MalformedError,
    PermissionDeniedError,
    RefusedError,
    TuplewireError,
    UnauthenticatedError,
)
from tuplewire.wire import messaging_pb2 as pb
from tuplewire_service.messaging.access import EVERYTHING, IAccess

logger = logging.getLogger(__name__)

MAX_ID_LENGTH = 256
MAX_DETAIL_LENGTH = 500
"""Errors quote what the peer said; gRPC drops a status whose metadata is over 8 KiB, name and all."""
_LAST_WRITE_SECONDS = 1.0
_log_rate = LogRate()
"""Of the whole process: what peers cause is not to fill its log."""


class ServerStream(MessageStream):
    """The serving side of a stream; it ends in good order when its handler returns."""

    @property
    @abstractmethod
    def peer(self) -> str:
        """Who is on the other side, for the log."""

    def admit(self) -> IAccess:
        """Return what the other side may do; RefusedError when it may not come in."""
        return EVERYTHING

    @abstractmethod
    async def refuse(self, error: TuplewireError) -> NoReturn:
        """End the stream with an error, of which the other side gets the code and the text."""


def log_refusal(peer: str, error: TuplewireError) -> None:
    """Log a refused stream, one line a minute for each reason; what a worker's guard refuses, that logs."""
    if isinstance(error, UnauthenticatedError | PermissionDeniedError):
        return
    if streams := _log_rate.due(code_of(error)):
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
