"""A sending end whose window belongs to an event loop; callers on other threads only hand over to it.

So an interrupt, or a signal handler that sends, in the middle of a call finds nothing half done.
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from tuplewire.connection.handover import SMALL_BYTES, HandOver, Offer, batches_of
from tuplewire.connection.sending_end import SendingEnd
from tuplewire.errors import MAX_TASK
from tuplewire.session.ledger import DropReason, LedgerSnapshot
from tuplewire.settings.config import Overflow, SessionSettings
from tuplewire.values.group import TaskGroup

_Result = TypeVar("_Result")
_ANSWER_SECONDS = 10.0
"""How long a caller waits for the loop to say whether there is room; it takes a turn of the loop."""


class LoopSendingEnd(SendingEnd):
    """Keeps what is sent until it is settled. Thread-safe; what carries it runs on its loop."""

    event_loop: asyncio.AbstractEventLoop

    def __init__(self, address: str, settings: SessionSettings) -> None:
        """See SendingEnd."""
        super().__init__(address, settings)
        self._handed = HandOver()
        self._offers: list[Offer] = []
        self._loop_thread = 0
        self._running: set[asyncio.Task[Any]] = set()

    @abstractmethod
    async def close_async(self, timeout: float = 10.0) -> None:
        """Wait for acknowledgements as long as the timeout, say goodbye, and drop the rest; on the loop."""

    def run(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        """Run a coroutine on the loop and return its result; from any other thread.

        It waits as flush() does: a signal handler's thread may have the lock that the loop needs. A Future's
        lock would be left taken by an interrupt, and the loop would wait for it for ever.
        """
        if threading.get_ident() == self._loop_thread:
            coroutine.close()
            raise RuntimeError("a blocking call was made on the messaging loop; await the coroutine instead")
        done: list[asyncio.Task[_Result]] = []

        def begin() -> None:
            task = self.event_loop.create_task(coroutine)
            self._running.add(task)
            task.add_done_callback(end)

        def end(task: asyncio.Task[_Result]) -> None:
            self._running.discard(task)
            with self._lock:
                done.append(task)
                self._moved.notify_all()

        self.event_loop.call_soon_threadsafe(begin)
        with self._lock:
            self._moved.wait_for(lambda: bool(done), None)
        return done[0].result()

    def send_one(self, task: Any, payload: Any, source: int | None = None) -> bool:
        handed = self._handed
        entries = handed.entries
        if (
            type(payload) is bytes
            and type(task) is int
            and 0 <= task <= MAX_TASK
            and len(payload) <= handed.small_bytes
            and (len(entries) < handed.room or self._has_room_for(task))
        ):
            entries.append((task, source, payload))
            if handed.told != handed.look:
                self._wake()
            return True
        return self._send_one_counted(task, payload, source)

    def _has_room_for(self, task: int) -> bool:
        """Whether a small message fits because its task has less than others."""
        handed, entries = self._handed, len(self._handed.entries)
        return (
            entries < handed.room_elsewhere
            and entries + handed.beyond_entries + self._window.held_of(task)
            < self._settings.max_pending_task_messages
        )

    def _send_one_counted(self, task: Any, payload: Any, source: int | None) -> bool:
        """Accept one message if there is room for it when all that was handed over is counted."""
        if type(payload) is not bytes or type(task) is not int or not 0 <= task <= MAX_TASK:
            return False
        settings, window, handed = self._settings, self._window, self._handed
        size = len(payload)
        with self._lock:
            self._check_open()
            handed.count()
            if (
                size > window.max_message_bytes
                or window.messages + handed.messages >= settings.max_pending_messages
                or window.size_bytes + handed.size_bytes + size > settings.max_pending_bytes
                or window.held_of(task) + handed.of_flow.get(task, 0) >= settings.max_pending_task_messages
            ):
                return False
            if size <= SMALL_BYTES:
                self._make_room()
            else:
                handed.shut()
            handed.entries.append((task, source, payload))
        self._wake()
        return True

    def _make_room(self) -> None:
        """Say how much room there is beside what is counted; with the lock."""
        settings, window, handed = self._settings, self._window, self._handed
        if self.closing or self.failed is not None:
            handed.shut()
            return
        messages = window.messages + handed.messages
        handed.make_room(
            settings.max_pending_messages - messages,
            settings.max_pending_bytes - window.size_bytes - handed.size_bytes,
            settings.max_pending_task_messages - messages,
            window.max_message_bytes,
        )

    def send(self, groups: Sequence[TaskGroup], /, *, timeout: float | None = None) -> None:
        if not self._sent_as_one(groups):
            super().send(groups, timeout=timeout)

    def _sent_as_one(self, groups: Sequence[TaskGroup]) -> bool:
        """Hand over a batch that is one plain message as such; False if it is none, or send() must decide."""
        if len(groups) != 1:
            return False
        group = groups[0]
        if len(group) > 1 or not group.plain:
            return False
        return LoopSendingEnd.send_one(self, group.task, group.data, group.source)

    def _offer(self, groups: Sequence[TaskGroup], token: Any = None, *, retain: bool = False) -> bool:
        self._check_open()
        self._window.check(groups)
        if not groups:
            return True
        if threading.get_ident() == self._loop_thread:
            self._take_in()
            self._handed.shut()
            return self._offer_to_window(groups, token, retain=retain)
        if self._hand_over(groups, token, retain=retain):
            return True
        if self._settings.overflow is not Overflow.DROP_OLDEST:
            return False
        if self._offer_on_loop(Offer(groups, token, retain)):
            return True
        # Room that has come since the loop answered was told to those who waited then: this thread did not.
        return self._hand_over(groups, token, retain=retain)

    def _hand_over(self, groups: Sequence[TaskGroup], token: Any, *, retain: bool) -> bool:
        handed = self._handed
        handed.count()
        if not self._window.fits(groups, handed.messages, handed.size_bytes, handed.of_flow):
            return False
        handed.add(groups, token, retain=retain)
        return True

    def _offer_on_loop(self, offer: Offer) -> bool:
        """Let the loop decide, which knows what may be given up."""
        try:
            self._offers.append(offer)
            self.event_loop.call_soon_threadsafe(self._woken)
            self._moved.wait_for(lambda: offer.accepted is not None, _ANSWER_SECONDS)
        finally:  # the loop may have had no time for it, or the caller is interrupted
            offer.accepted = bool(offer.accepted)
        return offer.accepted

    def _take_in(self) -> None:
        if threading.get_ident() != self._loop_thread:
            return
        handed = self._handed
        handed.look += 1
        if entries := handed.entries[:]:
            now_micros = time.time_ns() // 1000
            for batch in batches_of(entries):
                self._window.accept(batch.groups, batch.token, retain=batch.retain, now_micros=now_micros)
            handed.start_count()
            self._make_room()
            handed.forget(len(entries))
            if self.ended or self.failed is not None:  # it came while another thread, or its own, closed this
                reason = DropReason.CLOSED if self.failed is None else DropReason.REFUSED
                self._settle(self._window.abandon(reason))
                self._notify()
        if self._offers:
            offers, self._offers = self._offers, []
            handed.shut()
            for offer in offers:
                if offer.accepted is None:
                    offer.accepted = self.failed is None and self._offer_to_window(
                        offer.groups, offer.token, retain=offer.retain
                    )
            self._moved.notify_all()

    def stop_accepting(self) -> None:
        with self._lock:
            super().stop_accepting()
            self._handed.shut()

    def _notify(self) -> None:
        if self.closing or self.failed is not None:
            self._handed.shut()
        super()._notify()

    @property
    def pending_messages(self) -> int:
        return self._window.messages + self._handed.pending

    def ledger(self) -> LedgerSnapshot:
        with self._lock:
            ledger, handed = self._window.ledger(), self._handed.pending
            return replace(ledger, accepted=ledger.accepted + handed, pending=ledger.pending + handed)

    def _wake(self) -> None:
        """See SendingEnd; from any thread, once there is what the loop is to see."""
        handed = self._handed
        look = handed.look
        if handed.told != look:
            self._call_soon(self._woken)
            handed.told = look  # after the call: an interrupt before it leaves the next one to tell
        if self._settled:
            self._call_soon(self.tell)

    def _ask(self) -> None:
        self._handed.told = -1  # the loop was told of what is handed over, and may wait for more
        super()._ask()

    def _call_soon(self, callback: Callable[[], None]) -> None:
        """Call it on the loop, which needs to be told only by other threads."""
        inside = threading.get_ident() == self._loop_thread
        (self.event_loop.call_soon if inside else self.event_loop.call_soon_threadsafe)(callback)

    @abstractmethod
    def _woken(self) -> None:
        """Take in what was handed over, and have it carried; on the loop."""
