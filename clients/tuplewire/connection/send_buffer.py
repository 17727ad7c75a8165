"""The messages of a sending end: a send session behind a lock. Only the event loop changes the session.

Callers on other threads submit messages in one step. So an interrupt, or a signal handler that sends, in
the middle of a call leaves no work half done. Used by the clients, SendingEnd and AckHandler. Owns the send
session and the queue of submitted messages. Thread-safe, unless a method needs the lock or the loop.
Design: docs/design/forks-and-interrupts.md.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from tuplewire import errors
from tuplewire.connection.receiver_reports import RefusedMessages
from tuplewire.connection.submission_queue import (
    MAX_SMALL_BYTES,
    InterruptSafeCondition,
    Offer,
    SubmissionQueue,
    batches_of,
)
from tuplewire.errors import MAX_TASK, TuplewireError
from tuplewire.session.ledger import DropReason, LedgerSnapshot
from tuplewire.session.send import SendSession
from tuplewire.session.send_events import SendEvents
from tuplewire.settings.config import Overflow, SessionSettings
from tuplewire.text.formatting import counted
from tuplewire.values.group import TaskGroup, check_sizes

_ANSWER_SECONDS = 10.0
"""The longest wait for the loop's answer to an offer; the answer takes one turn of the loop."""
_MAX_CLOSE_AFTER_ERROR_SECONDS = 10.0
"""The maximum wait for acknowledgements when an error ends a `with` block."""


class SendBuffer:
    """Stores messages until they are settled. Thread-safe, unless a method needs the lock or the loop."""

    def __init__(
        self,
        address: str,
        settings: SessionSettings,
        events: SendEvents,
        wake: Callable[[], None],
        get_problem_suffix: Callable[[], str],
    ) -> None:
        """Start empty.

        wake: called from any thread when there is something to write or to report. get_problem_suffix:
        returns the end of an error's text if the receiver is unreachable; otherwise an empty string.
        """
        self.address = address
        self._settings = settings
        self._events = events
        self.wake = wake
        self._problem = get_problem_suffix
        self.closing = self.ended = False
        """True if no more messages are accepted; true if pending ones were also dropped or withdrawn."""
        self.close_reason = ""
        """Why it is closed, as the end of a sentence; empty if its owner has closed it."""
        self.failure: TuplewireError | None = None
        """The error that closed the session."""
        self.lock = threading.RLock()  # a signal handler may send while this thread sends
        self.changed = InterruptSafeCondition(self.lock)
        self.session = SendSession(settings)
        self.refused = RefusedMessages(address)
        self.wants_acks = False
        """True if a caller waits for acknowledgements."""
        self.loop_thread_id = 0
        """The identifier of the event loop's thread, once the session has started."""
        self.submitted = SubmissionQueue()
        self.offers: list[Offer] = []

    def __repr__(self) -> str:
        state = "ended" if self.ended else "closing" if self.closing else "open"
        return f"{state} pending={self.session.messages} pending_bytes={self.session.size_bytes}"

    # --- for callers ----------------------------------------------------------------------------

    def offer(self, groups: Sequence[TaskGroup], inbound: Any = None, *, retain: bool = False) -> bool:
        """Accept all messages; return False if they do not fit and the setting `overflow` drops none.

        inbound, retain: see SendSession.offer(); they have an effect only on the event loop. Raises
        ClosedError, MessageTooLargeError, or the error that closed the session.
        """
        with self.lock:
            accepted = self._accept(groups, inbound, retain=retain)
        if accepted:
            self.wake()
        return accepted

    def send(self, groups: Sequence[TaskGroup], /, *, timeout: float | None = None) -> None:
        """Accept all messages; the setting `overflow` decides whether to wait for free space.

        Do not call this on the event loop. Raises BufferFullError, and the errors of offer().
        """
        if len(groups) == 1:
            (group,) = groups
            is_plain = group.count == 1 and group.payload_only
            if is_plain and self.try_send_one(group.task, group.data, group.source):  # it needs no lock
                return
        wait_seconds = self._settings.send_timeout(timeout)
        with self.lock:
            if not self.changed.wait_for(lambda: self._accept(groups), wait_seconds):
                raise self._full_error(wait_seconds)
        self.wake()

    async def send_async(self, groups: Sequence[TaskGroup], timeout: float | None = None) -> None:
        """Do the same as send, on any event loop. A cancelled call accepts no messages."""
        wait_seconds = self._settings.send_timeout(timeout)
        if not await self.changed.wait_for_async(lambda: self._accept(groups), wait_seconds):
            with self.lock:
                raise self._full_error(wait_seconds)
        self.wake()

    def _full_error(self, waited: float | None) -> errors.BufferFullError:
        return errors.BufferFullError(
            f"no space {f'for {waited:g} s' if waited else 'now'}: {self._pending_text} pending; "
            f"the receiver is slow or unreachable{self._problem()}"
        )

    @property
    def _pending_text(self) -> str:
        size = self.session.size_bytes + self.submitted.size_bytes
        return f"{counted(self.pending_messages, 'message')} ({counted(size, 'byte')})"

    def try_send_one(self, task: Any, payload: Any, source: int | None = None) -> bool:
        """Accept one message without waiting for space; return False if it does not fit.

        Also return False for an invalid task or payload: then call offer(). Raises the errors of offer().
        """
        submitted = self.submitted
        entries = submitted.entries
        if (
            type(payload) is bytes
            and type(task) is int
            and 0 <= task <= MAX_TASK
            and len(payload) <= submitted.max_small_bytes
            # 1. and 2. in SubmissionQueue. It explains why the number of entries is read first.
            and (len(entries) < submitted.any_task_entry_limit or self._has_space_for(task))
        ):
            entries.append((task, source, payload))
            # After an interrupt at this point, notified_pass is unchanged, and the next call wakes the loop.
            if submitted.notified_pass != submitted.pass_number:
                self.wake()
            return True
        # 3. in SubmissionQueue: there is no published space, or the message is not small.
        return self._send_one_counted(task, payload, source)

    def _has_space_for(self, task: int) -> bool:
        """Return True if a small message fits in total, and its task is below its own limit."""
        submitted, entries = self.submitted, len(self.submitted.entries)
        return (
            entries < submitted.total_entry_limit
            and entries + submitted.extra_messages + self.session.held_of(task)
            < self._settings.max_pending_task_messages
        )

    def _send_one_counted(self, task: Any, payload: Any, source: int | None) -> bool:
        """Accept one message if it fits together with all submitted messages."""
        if type(payload) is not bytes or type(task) is not int or not 0 <= task <= MAX_TASK:
            return False
        settings, session, submitted = self._settings, self.session, self.submitted
        size = len(payload)
        with self.lock:
            if self.closing or self.failure is not None:
                self._raise_closed()
            submitted.update_counts()
            if (
                size > session.max_message_bytes
                or session.messages + submitted.messages >= settings.max_pending_messages
                or session.size_bytes + submitted.size_bytes + size > settings.max_pending_bytes
                or session.held_of(task) + submitted.by_flow.get(task, 0)
                >= settings.max_pending_task_messages
            ):
                return False
            if size <= MAX_SMALL_BYTES:
                self._publish_space()
            else:
                submitted.publish_no_space()
            submitted.entries.append((task, source, payload))
        self.wake()
        return True

    def _publish_space(self) -> None:
        """Set how many messages may be appended after the counted ones; with the lock."""
        settings, session, submitted = self._settings, self.session, self.submitted
        if self.closing or self.failure is not None:  # the next caller takes the lock and gets the error
            submitted.publish_no_space()
            return
        messages = session.messages + submitted.messages
        submitted.publish_space(
            settings.max_pending_messages - messages,
            settings.max_pending_bytes - session.size_bytes - submitted.size_bytes,
            settings.max_pending_task_messages - messages,
            session.max_message_bytes,
        )

    def _raise_closed(self, suffix: str = "") -> NoReturn:
        text = f"the connection to {self.address} is closed{self.close_reason}{suffix}"
        raise errors.fresh_copy(self.failure) if self.failure else errors.ClosedError(text)

    def _accept(self, groups: Sequence[TaskGroup], inbound: Any = None, *, retain: bool = False) -> bool:
        """Do the same as offer; with the lock, and without waking the loop.

        1. On the event loop, the session decides, after it has accepted all submitted messages.
        2. Another thread submits the messages if the bounds allow it.
        3. Otherwise, with `drop_oldest`, the loop decides.
        """
        if self.closing or self.failure is not None:
            self._raise_closed()
        check_sizes(groups, self.session.max_message_bytes)
        if not groups:
            return True
        # 1. The session accepts messages directly, so less space is free than was published to other threads.
        if threading.get_ident() == self.loop_thread_id:
            if self.submitted.entries or self.offers:
                self.move_submitted()
            if self.submitted.total_entry_limit:
                self.submitted.publish_no_space()
            return self.session.offer(groups, inbound, retain=retain, now_micros=time.time_ns() // 1000)
        # 2. Only the loop changes the session, so an interrupt never leaves the session half changed.
        if self._submit(groups):
            return True
        if self._settings.overflow is not Overflow.DROP_OLDEST:
            return False
        # 3. Only the loop knows which messages were never written, and can be dropped.
        if self._offer_on_loop(Offer(groups)):
            return True
        # Free space may have appeared since the loop's answer, and this thread was not notified of it.
        return self._submit(groups)

    def _submit(self, groups: Sequence[TaskGroup]) -> bool:
        submitted = self.submitted
        submitted.update_counts()
        if not self.session.fits(groups, submitted.messages, submitted.size_bytes, submitted.by_flow):
            return False
        submitted.add(groups)
        return True

    def _offer_on_loop(self, offer: Offer) -> bool:
        try:
            self.offers.append(offer)
            self._wake_now()
            self.changed.wait_for(lambda: offer.accepted is not None, _ANSWER_SECONDS)
        finally:  # no answer in time, or the caller is interrupted: the loop must not accept it later
            offer.accepted = bool(offer.accepted)
        return offer.accepted

    def _wake_now(self) -> None:
        """Wake the loop even if it was woken before, because it may wait for more messages."""
        self.submitted.notified_pass = -1
        self.wake()

    def flush(self, timeout: float | None = None) -> None:
        """Wait until no message is pending. Do not call this on the event loop.

        Raises FlushTimeoutError, RefusedMessagesError, ClosedError, or the error that closed the session.
        """
        self._request_acks()
        with self.lock:
            self.changed.wait_for(lambda: self._all_settled, timeout)
        self._raise_flush_error(timeout)

    async def flush_async(self, timeout: float | None = None) -> None:
        """Do the same as flush, on any event loop. A cancelled call changes nothing."""
        await self.wait_settled(timeout)
        self._raise_flush_error(timeout)

    async def wait_settled(self, timeout: float | None) -> None:
        """Do the same as flush_async, without an error."""
        self._request_acks()
        await self.changed.wait_for_async(lambda: self._all_settled, timeout)

    def _request_acks(self) -> None:
        """Request acknowledgements immediately, because a caller waits for them."""
        if self.pending_messages:
            self.wants_acks = True
            self._wake_now()

    @property
    def _all_settled(self) -> bool:
        return not self.pending_messages or self.failure is not None

    def _raise_flush_error(self, timeout: float | None) -> None:
        with self.lock:
            refused, dropped = self.refused.take_texts(), self.ledger().dropped[DropReason.CLOSED]
            if refused and self.failure is None:
                raise errors.RefusedMessagesError(refused)
            if dropped or self.failure is not None:
                self._raise_closed(f"; {counted(dropped, 'message')} not acknowledged, and dropped")
            if not self._all_settled:
                text = f"{self._pending_text} not acknowledged after {timeout} s{self._problem()}"
                raise errors.FlushTimeoutError(text)

    def close_seconds_after(self, error: type[BaseException]) -> float:
        """Return the time in seconds that the end of a `with` block waits after an error."""
        # Do not wait for an unreachable receiver a second time, after a flush has timed out.
        if issubclass(error, errors.FlushTimeoutError) and self._problem():
            return 0.0
        return min(self._settings.flush_timeout_seconds, _MAX_CLOSE_AFTER_ERROR_SECONDS)

    def raise_if_dropped(self, waited: float) -> None:
        """Raise FlushTimeoutError if the end of the session, after waiting, has dropped messages."""
        messages = self.ledger().dropped.get(DropReason.CLOSED, 0)
        if messages and waited:  # without a wait, they are dropped without an error
            text = f"{counted(messages, 'message')} not acknowledged after {waited:g} s"
            raise errors.FlushTimeoutError(f"{text}{self._problem()}; dropped, but may still arrive")

    @property
    def pending_messages(self) -> int:
        """The number of messages that are accepted but not settled."""
        return self.session.messages + self.submitted.submitted_messages

    def ledger(self) -> LedgerSnapshot:
        """Return the balance of this session."""
        with self.lock:
            ledger, submitted = self.session.ledger(), self.submitted.submitted_messages
            return replace(ledger, accepted=ledger.accepted + submitted, pending=ledger.pending + submitted)

    # --- for the event loop ---------------------------------------------------------------------

    def move_submitted(self) -> None:
        """Move the submitted messages to the session, then decide offers; with the lock."""
        submitted = self.submitted
        submitted.pass_number += 1
        now_micros = time.time_ns() // 1000
        # The loop works on a copy, because callers append entries without the lock.
        if entries := submitted.entries[:]:
            for batch in batches_of(entries):
                self.session.accept(batch, now_micros=now_micros)
            submitted.reset_counts()
            self._publish_space()
            # After _publish_space(), which excludes them: a message is never missing in both counts.
            del submitted.entries[: len(entries)]
            if self.ended or self.failure is not None:  # submitted while the buffer was being closed
                self.drop_all(DropReason.CLOSED if self.failure is None else DropReason.REFUSED)
        # Offers follow the entries, because earlier messages of the same caller are among the entries.
        if self.offers:
            offers, self.offers = self.offers, []
            submitted.publish_no_space()
            for offer in offers:
                if offer.accepted is None:
                    offer.accepted = self.failure is None and self.session.offer(
                        offer.groups, now_micros=now_micros
                    )
            self.changed.notify_all()

    def notify(self) -> None:
        """Wake all callers that wait; with the lock."""
        # Without published space, the next caller takes the lock and gets the error.
        if self.closing or self.failure is not None:
            self.submitted.publish_no_space()
        self.changed.notify_all()

    def run_callbacks(self) -> None:
        """Report settled and released messages; from one thread at a time, without the lock."""
        with self.lock:
            settled = self.session.take_settled()
            released = self.session.take_released()
        if settled:
            self._events.on_settled(settled)
        if released:
            self._events.on_released(released)

    def stop_accepting(self) -> None:
        """Accept no more messages."""
        with self.lock:
            self.closing = True
            self.submitted.publish_no_space()

    def drop_all(self, reason: DropReason) -> None:
        """Drop all pending messages; with the lock."""
        self.session.drop_all(reason)
        self.notify()

    def fail(self, error: TuplewireError) -> None:
        """Drop all pending messages, and raise this error to callers from now on."""
        with self.lock:
            # The submitted messages are moved first, so that they are dropped and counted, too.
            self.move_submitted()
            self.failure = error
            self.drop_all(DropReason.REFUSED)

    def mark_ended(self) -> bool:
        """Accept no more messages, and return True; False at a second call. With the lock."""
        if self.ended:
            return False
        # withdraw() must also return messages that are only submitted.
        self.move_submitted()
        self.closing = self.ended = True
        return True
