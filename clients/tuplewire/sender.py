"""The driver of a sending session: keeps a Send stream up and the window moving.

The window is pure state behind a lock: any thread may hand messages over; the loop writes frames and reads
acknowledgements. Whatever has queued up while a frame was being written goes into the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tuplewire.config import PROTOCOL_VERSION, AckMode, SessionSettings
from tuplewire.errors import (
    BufferFullError,
    ClosedError,
    DrainingError,
    FlushTimeoutError,
    ProtocolVersionError,
    RefusedMessagesError,
    TuplewireError,
    refused,
)
from tuplewire.group import TaskGroup
from tuplewire.refused_messages import RefusedMessages
from tuplewire.resumable import Resumable
from tuplewire.session.ledger import DropReason, LedgerSnapshot, Settled
from tuplewire.session.loads import ReportedLoads
from tuplewire.session.probe import ProbeTimer
from tuplewire.session.send import SendWindow
from tuplewire.session.sending_pressure import SendingPressure
from tuplewire.stream import ClientStream, Dial, StreamBroken
from tuplewire.wire import messaging_pb2 as pb
from tuplewire.wire.codec import encode_frame
from tuplewire.wire.translate import code_name, hello_to_wire, opened_from_wire, update_from_wire

logger = logging.getLogger(__name__)

_GOODBYE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Identity:
    """Who sends: fences and resumes sessions.

    incarnation: grows with every start of the same sender id. worker: whether it is a worker.
    """

    topology: str
    sender_id: str
    incarnation: int
    worker: bool = False


@dataclass(slots=True)
class SendCounts:
    """What was written, including what was written again."""

    messages: int = 0
    frames: int = 0
    bytes: int = 0
    connections: int = 0


class Sender(Resumable):
    """One session to one worker. Thread-safe unless a method says that it belongs to the loop."""

    method = "Send"

    def __init__(
        self,
        address: str,
        identity: Identity,
        settings: SessionSettings,
        loop: asyncio.AbstractEventLoop,
        dial: Dial,
        on_settled: Callable[[list[Settled], list[Settled]], None] | None = None,
    ) -> None:
        """Describe a session.

        dial: opens streams to the address. on_settled: told, on the loop, what has settled, and what the
        receiver is done with (released).
        """
        super().__init__(address, settings, loop, dial)
        self.identity = identity
        self._admitted = identity.worker  # a worker never gives another one up for its certificate
        self.counts = SendCounts()
        self._loads = ReportedLoads(settings.load_expires_seconds)
        self.congested: frozenset[int] = frozenset()
        self.assignment_version: Callable[[], int] = lambda: 0
        self.draining: Callable[[], bool] = lambda: False
        self._on_settled = on_settled
        self._lock = threading.Lock()
        self._moved = threading.Condition(self._lock)
        self._window = SendWindow(settings)
        self.pressure = SendingPressure(self._window, loop.time)
        self._wake = asyncio.Event()
        self._waking = False
        self._followed: set[int] = set()
        self._follow_told = True
        self._probing = False
        self._asking = False
        self._silence = ProbeTimer(0.0)
        self._closing = False
        self._leaving = False
        self._ended = False
        self._dismissed = False
        self._refused = RefusedMessages(address)
        self._changed = asyncio.Event()

    # --- for whoever sends ---------------------------------------------------------------------

    def try_send(self, groups: Sequence[TaskGroup], token: Any = None, *, retain: bool = False) -> bool:
        """Accept all messages if there is room for them now, or can be made as the setting `overflow` says.

        retain: keep these until they are processed, whatever the mode of the session.
        Raises ClosedError, MessageTooLargeError, or the error for which the session has ended.
        """
        with self._lock:
            return self._offer(groups, token, retain=retain)

    def send(self, groups: Sequence[TaskGroup], timeout: float | None = None) -> None:
        """Accept all messages, waiting for room as the setting `overflow` says; never call it on the loop.

        Raises BufferFullError too.
        """
        patience = self._settings.patience(timeout)
        with self._lock:
            if not self._moved.wait_for(lambda: self._offer(groups), patience):
                raise self._full(patience)

    async def sent(self, groups: Sequence[TaskGroup], timeout: float | None = None) -> None:
        """Do the same as send, on the loop."""
        patience = self._settings.patience(timeout)
        try:
            async with asyncio.timeout(patience):
                while not self.try_send(groups):
                    await self.changed()
        except TimeoutError:
            with self._lock:
                raise self._full(patience) from None

    def _full(self, waited: float | None) -> BufferFullError:
        window = self._window
        where = "" if self.connected else f"; {self.address} is not connected: {self._last_problem}"
        return BufferFullError(
            f"no room {f'for {waited} s' if waited else 'now'}: "
            f"{window.messages} messages ({window.size_bytes} bytes) are pending, "
            f"the receiver is slow or gone{where}"
        )

    def _offer(self, groups: Sequence[TaskGroup], token: Any = None, *, retain: bool = False) -> bool:
        if self._error is not None:
            raise self._error
        if self._closing:
            raise ClosedError(f"the connection to {self.address} is closed")
        self._window.check(groups)
        if not groups:
            return True
        if not self._window.offer(groups, token, retain=retain, now_micros=time.time_ns() // 1000):
            return False
        if (given_up := self._window.overflowed()) and self._on_settled is not None:
            self._loop.call_soon_threadsafe(self._settle, given_up)
        if not self.connected:
            self.pressure.look(connected=False)
        if not self._waking:
            self._waking = True
            self._loop.call_soon_threadsafe(self._wake.set)
        return True

    def wait_flushed(self, timeout: float | None = None) -> None:
        """Wait until nothing is pending; never call it on the loop.

        Raises FlushTimeoutError, RefusedMessagesError for what was refused since the last call, or the error
        for which the session has ended.
        """
        with self._lock:
            self._ask()
            done = self._moved.wait_for(lambda: not self._window.messages or self._error is not None, timeout)
            self._raise_flush(done=done, timeout=timeout)

    async def flushed(self, timeout: float | None = None) -> None:
        """Do the same as wait_flushed, on the loop."""
        self._ask()
        try:
            async with asyncio.timeout(timeout):
                while self.pending_messages and self._error is None:
                    await self.changed()
        except TimeoutError:
            pass
        with self._lock:
            self._raise_flush(done=not self._window.messages or self._error is not None, timeout=timeout)

    def _ask(self) -> None:
        """Let the receiver acknowledge at once what it has: somebody waits for it here."""
        if self._window.messages:
            self._asking = True
            self._loop.call_soon_threadsafe(self._wake.set)

    def _raise_flush(self, *, done: bool, timeout: float | None) -> None:
        refused = self._refused.take()
        if self._error is not None:
            raise self._error
        if refused:
            raise RefusedMessagesError(refused)
        if not done:
            window = self._window
            where = "" if self.connected else f"; {self.address} is not connected: {self._last_problem}"
            raise FlushTimeoutError(
                f"{window.messages} messages ({window.size_bytes} bytes) are not acknowledged "
                f"after {timeout} s{where}; they stay pending"
            )

    async def changed(self) -> None:
        """Wait on the loop until something has settled, or the connection has come or gone."""
        self._changed.clear()
        await self._changed.wait()

    @property
    def pending_messages(self) -> int:
        """Messages that are accepted and not settled."""
        return self._window.messages

    @property
    def failed(self) -> TuplewireError | None:
        """The error for which the session has ended, if it has."""
        return self._error

    def loads(self, tasks: Iterable[int]) -> dict[int, float]:
        """Return the last reported load of those tasks of which the worker has reported lately."""
        return self._loads.of(tasks, time.monotonic())

    def ledger(self) -> LedgerSnapshot:
        """Return the balance of this session."""
        with self._lock:
            return self._window.ledger()

    def follow(self, tasks: Collection[int]) -> None:
        """Ask to hear of every release of these tasks' messages, and not only once it is worth a grant."""
        with self._lock:
            if self._followed.issuperset(tasks):
                return
            self._followed.update(tasks)
            self._follow_told = False
        self._loop.call_soon_threadsafe(self._wake.set)

    def quiet(self, task: int) -> bool:
        """Whether all messages to a task that were handed over are done with at the receiver."""
        with self._lock:
            return self._window.quiet(task)

    def follows(self, task: int, workers: Collection[int], position: int) -> bool:
        """See SendWindow.follows."""
        with self._lock:
            return self._window.follows(task, workers, position)

    def blocked_tasks(self) -> Collection[int]:
        """Return the tasks that have something which is not taken at the moment; on the loop."""
        with self._lock:
            return self.pressure.blocked_tasks()

    # --- life, on the loop -----------------------------------------------------------------------

    async def close(self, timeout: float) -> list[Settled]:
        """Wait for acknowledgements as long as the timeout, say goodbye, give up the rest and return it."""
        await self._finish(timeout)
        return await self._end()

    async def take_back(self, timeout: float) -> list[tuple[TaskGroup, Any]]:
        """Close, and return what is not acknowledged by then, with its tokens, as if never accepted."""
        await self._finish(timeout)
        self._ended = True
        await self._stop()
        with self._lock:
            left = self._window.take_back()
            self._moved.notify_all()
        self._settle([])
        return left

    async def _finish(self, timeout: float) -> None:
        with self._lock:
            self._closing = True
        if self._error is None:
            with contextlib.suppress(TimeoutError):
                self._ask()
                async with asyncio.timeout(timeout):
                    while self._window.messages and self._error is None:
                        await self.changed()
        if self.connected and not self._window.messages and self._task is not None:
            self._leaving = True
            self._wake.set()
            await asyncio.wait([self._task], timeout=_GOODBYE_SECONDS)

    async def abort(self) -> list[Settled]:
        """Give up everything now, and return it."""
        with self._lock:
            self._closing = True
        return await self._end()

    async def _end(self) -> list[Settled]:
        self._ended = True
        await self._stop()
        with self._lock:
            left = self._window.abandon(DropReason.CLOSED)
            self._moved.notify_all()
        self._settle(left)
        return left

    def resume(self) -> None:
        """Go on after a fork."""
        if not self._ended and self._error is None:  # a close() may be waiting for acknowledgements
            self.start()

    @property
    def _over(self) -> bool:
        return self._leaving

    def _lost(self, error: TuplewireError) -> None:
        if self.connected or str(error) != self._last_problem:
            logger.info("connection.lost", extra={"peer": self.address, "reason": str(error)})
        self._last_problem = str(error)
        self.connected = False
        self.pressure.look(connected=False)
        self._notify()

    def _failed(self, error: TuplewireError) -> None:
        with self._lock:
            self._error = error
            left = self._window.abandon(DropReason.REFUSED)
            self._moved.notify_all()
        logger.error("connection.refused", extra={"peer": self.address, "reason": str(error)})
        self._settle(left)
        self._notify()

    def _notify(self) -> None:
        self._changed.set()

    def _dismissed_because(self) -> TuplewireError | None:
        if self._dismissed:
            return DrainingError(f"{self.address} is draining; it takes nothing new")
        return None

    def _beside(self, stream: ClientStream) -> Sequence[Coroutine[Any, Any, None]]:
        return self._write(stream), self._probe()

    async def _open(self, stream: ClientStream) -> None:
        self._dismissed = False
        window = self._window
        hello = hello_to_wire(
            topology=self.identity.topology,
            sender_id=self.identity.sender_id,
            incarnation=self.identity.incarnation,
            worker=self.identity.worker,
            processed=self._settings.ack_mode is AckMode.PROCESSED,
            assignment_version=self.assignment_version(),
            acknowledged=window.acknowledged,
            receiver_incarnation=window.receiver_incarnation,
            draining=self.draining(),
        )
        await stream.write(pb.SendRequest(hello=hello).SerializeToString())
        data = await stream.read()
        if data is None:
            raise StreamBroken
        welcome = pb.SendResponse.FromString(data).welcome
        if welcome.protocol_version != PROTOCOL_VERSION:
            raise ProtocolVersionError(
                f"{self.address} speaks protocol {welcome.protocol_version}, this side {PROTOCOL_VERSION}: "
                "bring both to one release"
            )
        with self._lock:
            settled = window.opened(opened_from_wire(welcome))
            self._refused.add_too_large(settled, window.max_message_bytes)
            self._refused.add(update_from_wire(0, (), welcome.refusals).refusals)
            self._moved.notify_all()
        self._silence.heard(self._loop.time())
        self._take_load(welcome.load)
        self.counts.connections += 1
        self.connected = True
        self.pressure.opened()
        logger.info("connection.ready", extra={"peer": self.address, "receiver": welcome.receiver_id})
        self._settle(settled)
        self._wake.set()
        self._notify()

    async def _probe(self) -> None:
        """Ask to be told everything again when there is no news of what we wait for: it may be lost."""
        while True:
            await asyncio.sleep(self._silence.wait(self._loop.time()))
            now = self._loop.time()
            if self._silence.wait(now):
                continue
            self._silence.heard(now)
            with self._lock:
                self._probing = self._window.waiting
            if self._probing:
                self._wake.set()

    async def _write(self, stream: ClientStream) -> None:
        counts = self.counts
        pressure = self.pressure
        while True:
            self._wake.clear()
            if self._dismissed:
                await stream.done_writing()  # the peer acknowledges what it has, and ends the stream
                return
            if self._probing:
                self._probing = False
                probe = pb.Probe(acknowledged=self._window.acknowledged)
                await stream.write(pb.SendRequest(probe=probe).SerializeToString())
            with self._lock:
                self._waking = False
                follow = () if self._follow_told else tuple(self._followed)
                self._follow_told = True
                frame = self._window.next_frame()
            pressure.look(connected=True)
            if follow:
                await stream.write(pb.SendRequest(follow=pb.Follow(tasks=follow)).SerializeToString())
            if frame is None:
                if self._asking:
                    self._asking = False
                    await stream.write(pb.SendRequest(probe=pb.Probe(brief=True)).SerializeToString())
                    continue
                if self._leaving:
                    await stream.write(pb.SendRequest(goodbye=pb.Goodbye()).SerializeToString())
                    await stream.done_writing()
                    return
                pressure.idles()
                await self._wake.wait()
                pressure.goes_on()
                continue
            data = encode_frame(
                frame.sequence,
                frame.runs,
                accepted_micros=frame.accepted_micros,
                assignment_version=self.assignment_version(),
            )
            pressure.writes(frame)
            await stream.write(data)
            pressure.goes_on()
            counts.messages += frame.messages
            counts.frames += 1
            counts.bytes += frame.size_bytes

    async def _read(self, stream: ClientStream) -> None:
        while (data := await stream.read()) is not None:
            response = pb.SendResponse.FromString(data)
            kind = response.WhichOneof("kind")
            if kind == "ack":
                ack = response.ack
                update = update_from_wire(ack.sequence, ack.credits, ack.refusals, ack.after)
                if self._window.missed(update):
                    self._probing = True
                    self._wake.set()
                    continue
                self._silence.heard(self._loop.time())
                with self._lock:
                    settled = self._window.update(update)
                    self._refused.add(update.refusals)
                    self._moved.notify_all()
                self.pressure.acknowledged()
                self._settle(settled)
                self._wake.set()
                self._changed.set()
            elif kind == "load":
                self._take_load(response.load)
            elif kind == "backpressure":
                status = response.backpressure
                self.congested = self.congested.union(status.congested).difference(status.relieved)
            elif kind == "drain":
                logger.info("peer.draining", extra={"peer": self.address})
                self._dismissed = True
                self._wake.set()
            elif kind == "ended":
                raise refused(code_name(response.ended.code), response.ended.detail)

    def _take_load(self, report: pb.LoadReport) -> None:
        self._loads.take({entry.task: entry.load for entry in report.tasks}, time.monotonic())

    def _settle(self, settled: list[Settled]) -> None:
        self.pressure.look(connected=self.connected)
        if self._on_settled is None:
            return
        with self._lock:
            released = self._window.released()
        if settled or released:
            self._on_settled(settled, released)
