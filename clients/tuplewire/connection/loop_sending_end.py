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

from tuplewire.config import Overflow, SessionSettings
from tuplewire.connection.handover import HandOver, Offer
from tuplewire.connection.sending_end import SendingEnd
from tuplewire.group import TaskGroup
from tuplewire.session.ledger import DropReason, LedgerSnapshot

_Result = TypeVar("_Result")
_ANSWER_SECONDS = 10.0
"""How long a caller waits for the loop to say whether there is room; it takes a turn of the loop."""


class LoopSendingEnd(SendingEnd):
    """Keeps what is sent until it is settled. Thread-safe; what carries it runs on its loop."""

    event_loop: asyncio.AbstractEventLoop

    def __init__(self, address: str, settings: SessionSettings) -> None:
        """See SendingEnd."""
        super().__init__(address, settings)
        self._waking = False
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

    def send_one(self, task: int, source: int | None, payload: bytes) -> bool:
        """Accept one message if that is a matter of an append; otherwise False, and send() must decide."""
        settings, window, handed = self._settings, self._window, self._handed
        size = len(payload)
        with self._lock:
            self._check_open()
            if (
                size > window.max_message_bytes
                or window.messages + handed.messages >= settings.max_pending_messages
                or window.size_bytes + handed.size_bytes + size > settings.max_pending_bytes
                or window.held_of(task) + handed.of_flow.get(task, 0) >= settings.max_pending_task_messages
            ):
                return False
            handed.add_one(task, source, payload)
        self._wake()
        return True

    def _offer(self, groups: Sequence[TaskGroup], token: Any = None, *, retain: bool = False) -> bool:
        self._check_open()
        self._window.check(groups)
        if not groups:
            return True
        if threading.get_ident() == self._loop_thread:
            self._take_in()
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
        if self._handed:
            now_micros = time.time_ns() // 1000
            for groups, token, retain in self._handed.take():
                self._window.accept(groups, token, retain=retain, now_micros=now_micros)
            if self.ended:  # a signal handler has closed it in the middle of a send
                self._settle(self._window.abandon(DropReason.CLOSED))
                self._notify()
        if self._offers:
            offers, self._offers = self._offers, []
            for offer in offers:
                if offer.accepted is None:
                    offer.accepted = self.failed is None and self._offer_to_window(
                        offer.groups, offer.token, retain=offer.retain
                    )
            self._moved.notify_all()

    @property
    def pending_messages(self) -> int:
        return self._window.messages + self._handed.messages

    def ledger(self) -> LedgerSnapshot:
        with self._lock:
            ledger, handed = self._window.ledger(), self._handed.count()
            return replace(ledger, accepted=ledger.accepted + handed, pending=ledger.pending + handed)

    def _wake(self) -> None:
        """See SendingEnd; from any thread, once there is what the loop is to see."""
        if not self._waking:
            self._waking = True
            try:
                self._call_soon(self._woken)
            except BaseException:  # an interrupt: the next one wakes it
                self._waking = False
                raise
        if self._settled:
            self._call_soon(self.tell)

    def _call_soon(self, callback: Callable[[], None]) -> None:
        """Call it on the loop, which needs to be told only by other threads."""
        inside = threading.get_ident() == self._loop_thread
        (self.event_loop.call_soon if inside else self.event_loop.call_soon_threadsafe)(callback)

    def _ask(self) -> None:
        self._waking = False  # it may be set by whom this signal handler has interrupted, before the call
        super()._ask()

    @abstractmethod
    def _woken(self) -> None:
        """Take in what was handed over, and have it carried; on the loop."""
