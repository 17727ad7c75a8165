"""The sending end of a session, but for the I/O: a window behind a lock, and those who wait for it.

Whatever carries it, streams on a loop or threads, says when a connection is there, asks for frames, takes
acknowledgements in, and tells whoever has attached what has become of the messages.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from tuplewire.connection.handover import HandOverCondition
from tuplewire.connection.receiver_reports import ReceiverReports, RefusedMessages, warn_of_lost
from tuplewire.errors import (
    BufferFullError,
    ClosedError,
    FlushTimeoutError,
    RefusedMessagesError,
    TuplewireError,
)
from tuplewire.session.departure import Departure
from tuplewire.session.flow import OutFrame
from tuplewire.session.ledger import DropReason, LedgerSnapshot, SendCounts, Settled, Told
from tuplewire.session.receive import AckUpdate, Opened
from tuplewire.session.send import SendWindow
from tuplewire.settings.config import SessionSettings
from tuplewire.values.group import TaskGroup

CLOSE_UNUSED_SECONDS = 10.0
"""How long a flow is not used before both sides forget it, or up to twice as long."""


class SendingEnd(ReceiverReports, ABC):
    """Keeps what is sent until it is settled. From any thread. address: the receiver's, for errors."""

    def __init__(self, address: str, settings: SessionSettings) -> None:
        super().__init__(settings.load_expires_seconds)
        self.address = address
        self.connected = False
        self.writes = True  # else no frame is written any more, as all that is left will be taken back
        self.closing = self.ended = False
        """Whether nothing more is accepted; whether all that was left has been given up or taken back."""
        self.counts = SendCounts()
        self.receiver_assignment_version = 0
        """That of the receiver, as of its last welcome; 0: it has none."""
        self.assignment_version: Callable[[], int] = lambda: 0
        self.draining: Callable[[], bool] = lambda: False
        self._settings = settings
        self.failed: TuplewireError | None = None
        """The error for which the session has ended, if it has."""
        self._last_problem = "not connected yet"
        self._lock = threading.RLock()  # a signal handler may send while this thread sends
        self._moved = HandOverCondition(self._lock)
        self._window = SendWindow(settings)
        self._asking = False
        self._out_of_reach = False
        self._watched: set[int] = set()
        self._watched_told = True
        self._close_unused_at = time.monotonic() + CLOSE_UNUSED_SECONDS
        self._settled: list[Settled] = []
        self._attached: tuple[Told, Told] | None = None
        self.departures: Callable[[], Sequence[Departure]] = tuple
        self.heard: Callable[[Sequence[Departure]], None] = lambda _: None
        self._refused = RefusedMessages(address)

    def __repr__(self) -> str:
        state = "ended" if self.ended else "closing" if self.closing else "open"
        connection = "connected" if self.connected else f"not connected: {self._last_problem}"
        pending = f"pending={self._window.messages} pending_bytes={self._window.size_bytes}"
        return f"<{type(self).__name__} {self.address} {state} {pending} {connection}>"

    @abstractmethod
    def _wake(self) -> None:
        """Carry and tell what there is, or see that it is done; called without the lock."""

    # --- for whoever sends ---------------------------------------------------------------------

    def offer(self, groups: Sequence[TaskGroup], token: Any = None, *, retain: bool = False) -> bool:
        """Accept all messages if there is room for them now, or can be made as the setting `overflow` says.

        retain: keep these until they are processed, whatever the mode of the session.
        Raises ClosedError, MessageTooLargeError, or the error for which the session has ended.
        """
        with self._lock:
            accepted = self._offer(groups, token, retain=retain)
        if accepted:
            self._wake()
        return accepted

    def send(self, groups: Sequence[TaskGroup], /, *, timeout: float | None = None) -> None:
        """Accept all messages, waiting for room as the setting `overflow` says; never call it on the loop.

        Raises BufferFullError too.
        """
        patience = self._settings.patience(timeout)
        with self._lock:
            if not self._moved.wait_for(lambda: self._offer(groups), patience):
                raise self._full(patience)
        self._wake()

    def send_one(self, task: Any, payload: Any, source: int | None = None) -> bool:
        """Accept one message if that is an append and a few comparisons; otherwise False, and send() decides.

        What is no task id or not bytes is send()'s, too. Raises what offer() raises.
        """
        del task, payload, source
        return False

    closed_because = ""
    """Why, to end a sentence with; empty where its owner has closed it."""

    def _check_open(self) -> None:
        if self.failed is not None:
            raise self.failed
        if self.closing:
            raise ClosedError(f"the connection to {self.address} is closed{self.closed_because}")

    def _offer(self, groups: Sequence[TaskGroup], token: Any = None, *, retain: bool = False) -> bool:
        self._check_open()
        self._window.check(groups)
        return not groups or self._offer_to_window(groups, token, retain=retain)

    def _take_in(self) -> None:
        """Take in what callers have handed over meanwhile; with the lock, where the I/O runs."""

    def _offer_to_window(self, groups: Sequence[TaskGroup], token: Any, *, retain: bool) -> bool:
        if not self._window.offer(groups, token, retain=retain, now_micros=time.time_ns() // 1000):
            return False
        self._settle(self._window.take_overflowed())
        return True

    def _full(self, waited: float | None) -> BufferFullError:
        return BufferFullError(
            f"no room {f'for {waited} s' if waited else 'now'}: {self._pending} are pending, "
            f"the receiver is slow or gone{self.trouble}"
        )

    @property
    def _pending(self) -> str:
        return f"{self.pending_messages} messages ({self._window.size_bytes} bytes)"

    @property
    def trouble(self) -> str:
        """Why the receiver is out of reach, to end a sentence with; empty if not so before we closed."""
        in_reach = self.connected or (self.counts.connections and not self._out_of_reach)
        return "" if in_reach else f"; {self.address} is not connected: {self._last_problem}"

    def flush(self, timeout: float | None = None) -> None:
        """Wait until nothing is pending; never call it on the loop.

        Raises FlushTimeoutError, RefusedMessagesError for what was refused since the last call, or the error
        for which the session has ended.
        """
        self.wait_settled(timeout)
        self._raise_flush(timeout)

    async def flush_async(self, timeout: float | None = None) -> None:
        """Do the same as flush, on a loop. A cancelled call changes nothing."""
        await self.wait_settled_async(timeout)
        self._raise_flush(timeout)

    def wait_settled(self, timeout: float | None) -> None:
        """Wait until nothing is pending, or the session has ended; at most so long. Not on the loop."""
        self._ask()
        with self._lock:
            self._moved.wait_for(lambda: self._all_settled, timeout)

    async def wait_settled_async(self, timeout: float | None) -> None:
        """Do the same on a loop, without a thread; a cancelled call changes nothing."""
        self._ask()
        await self._moved.wait_for_async(lambda: self._all_settled, timeout)

    @property
    def _all_settled(self) -> bool:
        return not self.pending_messages or self.failed is not None

    def _ask(self) -> None:
        """Let the receiver acknowledge at once what it has: somebody waits for it here."""
        if self.pending_messages:
            self._asking = True
            self._wake()

    def _raise_flush(self, timeout: float | None) -> None:
        with self._lock:
            refused = self._refused.take()
            if self.failed is not None:
                raise self.failed
            if refused:
                raise RefusedMessagesError(refused)
            if not self._all_settled:
                raise FlushTimeoutError(
                    f"{self._pending} are not acknowledged after {timeout} s{self.trouble}; they stay pending"
                )

    @property
    def pending_messages(self) -> int:
        """Messages that are accepted and not settled."""
        return self._window.messages

    def ledger(self) -> LedgerSnapshot:
        """Return the balance of this session."""
        with self._lock:
            return self._window.ledger()

    @property
    def unkept_messages(self) -> int:
        """See HeldMessages.unkept."""
        with self._lock:
            return self._window.unkept()

    # --- for a worker that passes on -------------------------------------------------------------

    def attach(
        self,
        on_settled: Told,
        on_released: Told,
        assignment_version: Callable[[], int] = lambda: 0,
        draining: Callable[[], bool] = lambda: False,
    ) -> None:
        """Say whom to tell, and whom to ask; before the first message. See RelayClient."""
        self._attached = on_settled, on_released
        self.assignment_version, self.draining = assignment_version, draining

    def tell_departures(
        self, departures: Callable[[], Sequence[Departure]], heard: Callable[[Sequence[Departure]], None]
    ) -> None:
        """Say whom to ask for the workers that have ended in good order, and whom to tell of them."""
        self.departures, self.heard = departures, heard

    def watch_releases(self, tasks: Collection[int]) -> None:
        """Ask to hear of every release of these tasks' messages, and not only once it is worth a grant."""
        with self._lock:
            if self._watched.issuperset(tasks):
                return
            self._watched.update(tasks)
            self._watched_told = False
        self._wake()

    def all_released(self, task: int) -> bool:
        """Whether all messages to a task that were handed over are done with at the receiver."""
        with self._lock:
            self._take_in()
            return self._window.all_released(task)

    def route_before(self, task: int, workers: Collection[int], entry_sequence: int) -> int | None:
        """See SendWindow.route_before."""
        with self._lock:
            self._take_in()
            return self._window.route_before(task, workers, entry_sequence)

    # --- for whatever carries it -------------------------------------------------------------------

    def opened(self, opened: Opened, loads: Mapping[int, float]) -> None:
        """Go on over a new connection, as the receiver's welcome says."""
        self.take_load(loads)
        with self._lock:
            if self.ended:
                return
            known = self._window.acknowledged
            settled = self._window.opened(opened)
            lost = self._take_perhaps_lost()
            self._refused.add_too_large(settled, self._window.max_message_bytes)
            self._watched_told = not self._watched
            self.receiver_assignment_version = opened.assignment_version
            self.counts.connections += 1
            self.connected = True
            self._out_of_reach = False
            self._take_outcome(settled, opened.update, known)
        warn_of_lost(self.address, lost)
        self._refused.log()

    def _take_perhaps_lost(self) -> int:
        lost = self._window.take_perhaps_lost()
        self.counts.perhaps_lost += lost
        return lost

    def lost(self, *, answers: bool = False) -> None:
        """Take account of a connection that has broken, or whose receiver is gone.

        answers: whether the receiver has said that it is about to end, and will account for what it has.
        """
        with self._lock:
            self.connected = False
            self._out_of_reach = True
            self._window.receiver_answers |= answers
            self._notify()

    def next_frame(self) -> OutFrame | None:
        """Return what to write next; None when there is nothing, or no connection."""
        with self._lock:
            if not (self.connected and self.writes):
                return None
            self._take_in()
            if self.close_unused_due:
                self._watched.difference_update(self._window.close_unused())
                self._close_unused_at = time.monotonic() + CLOSE_UNUSED_SECONDS
            frame = self._window.next_frame(time.monotonic(), pressing=self._asking)
            if frame is not None:
                self.counts.messages += frame.messages
                self.counts.frames += 1
                self.counts.bytes += frame.size_bytes
            return frame

    @property
    def close_unused_due(self) -> bool:
        """Whether it is time to look for flows that are not used, and to close them with the next frame."""
        return time.monotonic() >= self._close_unused_at

    def next_watched(self) -> Collection[int]:
        """Return the tasks whose releases the receiver is to tell; none when it knows."""
        if self._watched_told:
            return ()
        with self._lock:
            self._watched_told = True
            return tuple(self._watched)

    def update(self, update: AckUpdate) -> None:
        """Take an acknowledgement in."""
        with self._lock:
            if not self.ended:
                known = self._window.acknowledged
                self._take_outcome(self._window.update(update), update, known)
        self._refused.log()

    def _take_outcome(self, settled: list[Settled], update: AckUpdate, known: int) -> None:
        """Note what has settled, and what was refused in frames after the known: others were told before."""
        self._settle(settled)
        self._refused.add(each for each in update.refusals if each.sequence > known)
        self._notify()

    def tell(self) -> None:
        """Tell whoever has attached what has settled, and what is released; from one thread at a time."""
        with self._lock:
            settled, self._settled = self._settled, []
            released = self._window.take_released()
        if self._attached is not None:
            on_settled, on_released = self._attached
            if settled:
                on_settled(settled)
            if released:
                on_released(released)

    def _settle(self, settled: list[Settled]) -> None:
        """Keep what tell() is to tell; with the lock."""
        if self._attached is not None:
            self._settled += settled

    def fail(self, error: TuplewireError) -> None:
        """Drop what is pending, and raise this error to whoever sends or waits."""
        with self._lock:
            self._take_in()
            self.failed = error
            self._settle(self._window.abandon(DropReason.REFUSED))
            self._notify()

    def stop_accepting(self) -> None:
        """Accept nothing more."""
        with self._lock:
            self.closing = True

    def give_up(self, reason: DropReason) -> bool:
        """End, and drop what is pending; False when it had ended before."""
        with self._lock:
            if not self._begin_to_end():
                return False
            self._settle(self._window.abandon(reason))
            self._notify()
            return True

    def _begin_to_end(self) -> bool:
        """Take in and accept nothing more; False when it had ended before. With the lock."""
        if self.ended:
            return False
        self._take_in()
        self.closing = self.ended = True
        return True

    def _take_back(self) -> list[tuple[TaskGroup, Any]] | None:
        """End, and return what is pending as if it had never been accepted; None when it had ended before."""
        lost = 0
        with self._lock:
            if not self._begin_to_end():
                return None
            if self._out_of_reach:
                self._window.receiver_gone()
                lost = self._take_perhaps_lost()
            left = self._window.take_back()
            self._notify()
        warn_of_lost(self.address, lost)
        return left

    def _notify(self) -> None:
        """Wake all who wait; with the lock."""
        self._moved.notify_all()
