"""The Tap call: streams copies of messages from a worker's taps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Collection

from tuplewire.errors import DrainingError, MalformedError, NotReadyError, RefusedError
from tuplewire.text.events import event_logger
from tuplewire.values.group import check_task
from tuplewire.wire import control_pb2 as pb
from tuplewire_service.control.control_messages import distinct
from tuplewire_service.messaging.server_stream import IAccess
from tuplewire_service.worker.taps import MOST_BYTES, MOST_PER_SECOND, TapFilter
from tuplewire_service.worker.worker import Worker

logger = event_logger(__name__)

_TOGETHER_SECONDS = 0.05
"""Messages within this time are sent in one response, which limits the wakeups of a reader."""
_MOST_SHOWN = 20
"""Maximum number of tasks in a log entry."""
_DEFAULTS = TapFilter(frozenset())


def filter_of(request: pb.TapRequest) -> TapFilter:
    """Read a reader's request. Raises MalformedError or InvalidTaskError."""
    if not 0 <= request.sample <= 1:  # also False for NaN
        raise MalformedError(f"a tap's sample is a share, 0 to 1, not {request.sample}")
    return TapFilter(
        frozenset(map(check_task, distinct(request.tasks, "tasks"))),
        request.sample or _DEFAULTS.sample,
        min(request.max_per_second or _DEFAULTS.per_second, MOST_PER_SECOND),
        min(request.max_bytes or _DEFAULTS.max_bytes, MOST_BYTES),
    )


def _shown(tasks: Collection[int]) -> str:
    shown = ",".join(map(str, sorted(tasks)[:_MOST_SHOWN])) or "*"
    return shown + ",..." if len(tasks) > _MOST_SHOWN else shown


class TapService:
    """The taps of one worker, as streams. Call only from the event loop."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._ending: dict[asyncio.Event, RefusedError | None] = {}

    def end(self) -> None:
        """End every stream, because the worker drains."""
        for woken in self._ending:
            self._end(woken, DrainingError("the worker is draining, and the tap has ended"))

    def _end(self, woken: asyncio.Event, error: RefusedError) -> None:
        self._ending[woken] = error
        woken.set()

    async def tap(self, request: pb.TapRequest, access: IAccess, peer: str) -> AsyncGenerator[pb.TapResponse]:
        """Yield copies of messages. The first response is empty, and shows that the tap is open.

        Raises PermissionDeniedError, also if the right is withdrawn later, ResourceLimitError if there are
        too many taps, and DrainingError.
        """
        wanted = filter_of(request)
        access.tap(self._worker.settings.topology, wanted.tasks)
        woken = asyncio.Event()
        taps = self._worker.router.taps
        tap = taps.begin(wanted, woken.set)
        self._ending[woken] = None
        who = {"client": peer, "identity": access.owner, "tasks": _shown(wanted.tasks)}
        logger.info("tap.began", extra={**who, "sample": wanted.sample, "per_second": wanted.per_second})
        began = time.monotonic()
        try:
            with access.standing(lambda error: self._end(woken, error)):
                while True:
                    woken.clear()
                    yield pb.TapResponse(messages=tap.take(), passed=tap.passed, omitted=tap.omitted)
                    await woken.wait()
                    if (error := self._ending[woken]) is not None:
                        raise error
                    if tap.failed:
                        raise NotReadyError("the tap has a defect, which is in the worker's log: report it")
                    await asyncio.sleep(_TOGETHER_SECONDS)
        finally:
            del self._ending[woken]
            taps.end(tap)
            counts = {"shown": tap.shown, "omitted": tap.omitted, "passed": tap.passed}
            logger.info("tap.ended", extra={**who, **counts, "seconds": round(time.monotonic() - began, 1)})
