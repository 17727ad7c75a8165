"""The driver of a sending session: keeps a Send stream up and the window moving.

Any thread may hand messages over to the sending end; the loop writes frames and reads acknowledgements.
Whatever has queued up while a frame was being written goes into the next one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tuplewire.connection.loop_sending_end import LoopSendingEnd
from tuplewire.connection.pacer import Pacer
from tuplewire.connection.resumable import Resumable
from tuplewire.connection.stream import ClientStream, Dial
from tuplewire.errors import DrainingError, ProtocolVersionError, TuplewireError, refused
from tuplewire.session.ledger import DropReason
from tuplewire.session.pressure import SendingPressure
from tuplewire.session.retry import ProbeTimer
from tuplewire.settings.config import PROTOCOL_VERSION, AckMode, SessionSettings
from tuplewire.text.events import event_logger
from tuplewire.values.group import TaskGroup
from tuplewire.wire import messaging_pb2 as pb
from tuplewire.wire.translate import (
    code_name,
    departure_from_wire,
    departure_to_wire,
    loads_from_wire,
    opened_from_wire,
    update_from_wire,
)

logger = event_logger(__name__)

_GOODBYE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Identity:
    """Who sends, or consumes: fences and resumes sessions.

    incarnation: grows with every start of the same sender id. worker: whether it is a worker.
    """

    topology: str
    sender_id: str
    incarnation: int
    worker: bool = False


class Sender(LoopSendingEnd, Resumable):
    """One session to one worker. Thread-safe unless a method says that it belongs to the loop."""

    method = "Send"

    def __init__(
        self,
        address: str,
        identity: Identity,
        settings: SessionSettings,
        loop: asyncio.AbstractEventLoop,
        dial: Dial,
    ) -> None:
        """Describe a session. dial: opens streams to the address."""
        Resumable.__init__(self, address, settings, loop, dial)
        LoopSendingEnd.__init__(self, address, settings)
        self.identity = identity
        self._admitted = identity.worker  # a worker never gives another one up for its certificate
        self.pressure = SendingPressure(self._window, loop.time)
        self._due = asyncio.Event()
        """Set when the writer should look."""
        self._probing = False
        self._silence = ProbeTimer(0.0)
        self._pacer = Pacer(settings.gather_seconds)
        self._dismissed = False
        """Whether the receiver has ended the stream in good order, once it had no more to say."""

    # --- for whoever sends -----------------------------------------------------------------------

    def start(self) -> None:
        self._loop_thread = threading.get_ident()
        super().start()

    async def send_async(self, groups: Sequence[TaskGroup], timeout: float | None = None) -> None:
        """Do the same as send, on any event loop. A cancelled call has accepted nothing."""
        patience = self._settings.patience(timeout)
        if not await self._moved.wait_for_async(lambda: self._offer(groups), patience):
            with self._lock:
                raise self._full(patience)
        self._wake()

    def _wake(self) -> None:
        """See SendingEnd. On the loop the writer is told at once: a worker's message waits a turn less."""
        if threading.get_ident() != self._loop_thread:
            super()._wake()
            return
        self._tell_writer()
        if self._settled:
            self._loop.call_soon(self.tell)

    def _woken(self) -> None:
        if self._pacer.gathers and self.connected and not (self._asking or self._offers):
            return  # it is taken in with what else comes until the next frame
        self._pacer.press()
        with self._lock:
            self._take_in()
        self._tell_writer()

    def _tell_writer(self) -> None:
        self._due.set()
        if not self.connected:  # nobody writes
            self.pressure.look(connected=False)

    @property
    def max_message_bytes(self) -> int:
        """The size of the largest message, as far as known: the receiver may take less than the settings."""
        return self._window.max_message_bytes

    def blocked_tasks(self) -> Collection[int]:
        """Return the tasks that have something which is not taken at the moment; on the loop."""
        with self._lock:
            return self.pressure.blocked_tasks()

    # --- life, on the loop -----------------------------------------------------------------------

    # Whichever of close, take_back and abort first stops waiting says what becomes of the rest. A cancelled
    # call leaves a session that accepts nothing more, and that is still to be ended by another call.

    async def close_async(self, timeout: float = 10.0) -> None:
        """Wait for acknowledgements as long as the timeout, say goodbye, and drop the rest."""
        await self._finish(timeout)
        await self._end()

    async def take_back_async(self, timeout: float) -> list[tuple[TaskGroup, Any]]:
        """Close, and return what is not acknowledged by then, with its tokens, as if never accepted."""
        await self._finish(timeout)
        if self.ended:
            return []
        await self.suspend()
        left = self._take_back()
        self._tell()
        return left or []

    async def _finish(self, timeout: float) -> None:
        self.stop_accepting()
        await self.wait_settled_async(timeout)
        if self.connected and not self.pending_messages and self._task is not None:
            self.over = True
            self._due.set()
            await asyncio.wait([self._task], timeout=_GOODBYE_SECONDS)

    async def abort_async(self) -> None:
        """Drop everything that is pending, now."""
        self.stop_accepting()
        await self._end()

    async def _end(self) -> None:
        if not self.ended:
            await self.suspend()
            self.give_up(DropReason.CLOSED)
            self._tell()

    def resume(self) -> None:
        """Go on after a fork."""
        if not self.ended and self.failed is None:  # a close() may be waiting for acknowledgements
            self.start()

    def _lost(self, error: TuplewireError) -> None:
        about = {"peer": self.address, "reason": str(error)}
        if self.over:
            logger.info("connection.closed", extra={"peer": self.address})
        elif self.connected:
            logger.info("connection.lost", extra=about)
        elif str(error) != self._last_problem:
            logger.info("connection.failed", extra=about)
        self._last_problem = str(error)
        self.lost(answers=self.over or isinstance(error, DrainingError))
        self.pressure.look(connected=False)

    def _failed(self, error: TuplewireError) -> None:
        self.fail(error)
        logger.error("connection.refused", extra={"peer": self.address, "reason": str(error)})
        self._tell()

    def _tell(self) -> None:
        self.pressure.look(connected=self.connected)
        self.tell()

    def _may_try_again(self, error: TuplewireError) -> bool:
        # Between workers nothing is final: the other one may be mended, or replaced, while messages wait.
        return self.identity.worker or super()._may_try_again(error)

    def _dismissed_because(self) -> TuplewireError | None:
        if self._dismissed:  # over ZeroMQ the last message of a receiver that ends may be lost
            return DrainingError(f"{self.address} is draining; it takes nothing new")
        return None

    def _beside(self, stream: ClientStream) -> Sequence[Coroutine[Any, Any, None]]:
        return self._write(stream), self._probe()

    async def _open(self, stream: ClientStream) -> None:
        self._dismissed = False
        identity, processed = self.identity, self._settings.ack_mode is AckMode.PROCESSED
        hello = pb.Hello(
            protocol_version=PROTOCOL_VERSION,
            topology=identity.topology,
            sender_id=identity.sender_id,
            incarnation=identity.incarnation,
            kind=pb.PEER_KIND_WORKER if identity.worker else pb.PEER_KIND_CLIENT,
            ack_mode=pb.ACK_MODE_PROCESSED if processed else pb.ACK_MODE_QUEUED,
            acknowledged=self._window.acknowledged,
            receiver_incarnation=self._window.receiver_incarnation,
            draining=self.draining(),
            receiver_id=self.receiver_id,
        )
        answer = await self._exchange(stream, pb.SendRequest(hello=hello))
        welcome = pb.SendResponse.FromString(answer).welcome
        if welcome.protocol_version != PROTOCOL_VERSION:
            raise ProtocolVersionError(
                f"{self.address} speaks protocol {welcome.protocol_version}, this side {PROTOCOL_VERSION}: "
                "bring both to one release"
            )
        self._hear(welcome.departures)
        self.opened(opened_from_wire(welcome), loads_from_wire(welcome.load))
        self._silence.heard(self._loop.time())
        self.pressure.opened()
        logger.info("connection.ready", extra={"peer": self.address, "receiver": welcome.receiver_id})
        self._tell()
        self._due.set()

    def _hear(self, departures: Iterable[pb.Departure]) -> None:
        if told := [departure_from_wire(each) for each in departures]:
            self.heard(told)

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
            if self._probing or self.close_unused_due:
                self._due.set()

    async def _write(self, stream: ClientStream) -> None:
        pressure = self.pressure
        asked = False
        while True:
            self._due.clear()
            if self._dismissed:
                await stream.done_writing()  # the peer acknowledges what it has, and ends the stream
                return
            if self._probing:
                self._probing = False
                probe = pb.Probe(acknowledged=self._window.acknowledged)
                await stream.write(pb.SendRequest(probe=probe).SerializeToString())
            if watched := self.next_watched():
                request = pb.SendRequest(watch_releases=pb.WatchReleases(tasks=watched))
                await stream.write(request.SerializeToString())
            frame = self.next_frame()
            pressure.look(connected=True)
            if frame is None:
                if self._asking:
                    self._asking = False
                    if not asked:
                        await stream.write(pb.SendRequest(probe=pb.Probe(brief=True)).SerializeToString())
                    continue
                if self.over:
                    goodbye = pb.Goodbye(departures=map(departure_to_wire, self.departures()))
                    await stream.write(pb.SendRequest(goodbye=goodbye).SerializeToString())
                    await stream.done_writing()
                    return
                pressure.idles()
                await self._due.wait()
                pressure.goes_on()
                asked = False
                continue
            asked = frame.asks
            pressure.writes(frame)
            await stream.write_frame(frame, self.assignment_version())
            pressure.goes_on()
            if wait := self._pacer.wrote(frame.size_bytes):
                await self._pacer.gather(wait)

    async def _read(self, stream: ClientStream) -> None:
        while (data := await stream.read()) is not None:
            response = pb.SendResponse.FromString(data)
            kind = response.WhichOneof("kind")
            if kind == "ack":
                ack = response.ack
                update = update_from_wire(ack.sequence, ack.credits, ack.refusals, ack.after)
                if self._window.missed(update):
                    self._probing = True
                    self._due.set()
                    continue
                self._silence.heard(self._loop.time())
                self.update(update)
                self._pacer.press()
                self.pressure.acknowledged()
                self._tell()
                self._due.set()
            elif kind == "load":
                self.take_load(loads_from_wire(response.load))
            elif kind == "backpressure":
                self.take_status(response.backpressure.congested, response.backpressure.relieved)
            elif kind == "drain":
                logger.info("peer.draining", extra={"peer": self.address})
                self._dismissed = True
                self._due.set()
            elif kind == "departures":
                self._hear(response.departures.departures)
            elif kind == "ended":
                raise refused(code_name(response.ended.code), response.ended.detail)
