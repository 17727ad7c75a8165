"""Taps: copies of a sample of the messages that pass through a worker, for operators.

Used by router.py and control/servicers.py. Owns the open taps and the copies that wait for a reader.
Independent of gRPC. Call only from the event loop. Design: docs/design/traces.md.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate

from tuplewire.errors import NotReadyError, RefusedError, ResourceLimitError
from tuplewire.text.events import event_logger
from tuplewire.values.group import TaskGroup
from tuplewire.wire import control_pb2 as pb
from tuplewire_service.messaging.base import ReceivedBatch

logger = event_logger(__name__)

MAX_TAPS = 8
"""Maximum number of taps at a worker: each costs the time for its copies."""
MAX_MESSAGES_PER_SECOND = 1000
MAX_COPY_BYTES = 1 << 16
_MAX_WAITING_MESSAGES = 1000
_MAX_WAITING_BYTES = 4 << 20
_MAX_RESPONSE_BYTES = 1 << 20
"""Limit of one response: gRPC accepts responses of 4 MiB."""


class Tap:
    """One open tap. Call only from the event loop.

    Guarantee: it never waits, and holds a bounded number of messages and bytes. `passed_messages` counts the
    messages of its tasks; `omitted_messages` counts sampled messages beyond its limits.
    """

    def __init__(self, request: pb.TapRequest, wake: Callable[[], None]) -> None:
        """Open a tap. `wake` is called when take() has messages, or the tap has an error."""
        self.tasks = frozenset(request.tasks)
        self._request = request
        self.passed_messages = self.omitted_messages = self.shown_messages = 0
        self.error: RefusedError | None = None
        self.wake = wake
        self._random = random.Random()  # noqa: S311 - a sample is not a secret
        self._sample_carry = 0.0
        self._tokens = float(request.max_per_second)
        self._refilled_at = time.monotonic()
        self._waiting: deque[pb.TappedMessage] = deque()
        self._waiting_bytes = 0

    def offer(self, group: TaskGroup, batch: ReceivedBatch, place: str) -> None:
        """Copy the sampled messages of a group."""
        count = group.count
        self.passed_messages += count
        # Carries the fraction over, so small groups are sampled correctly.
        self._sample_carry += count * self._request.sample
        uncopied = min(count, int(self._sample_carry))
        self._sample_carry -= uncopied
        if not uncopied:
            return
        now = time.monotonic()
        # After a pause, the messages of at most one second are copied together.
        per_second = self._request.max_per_second
        self._tokens = min(float(per_second), self._tokens + (now - self._refilled_at) * per_second)
        self._refilled_at = now
        taken = min(uncopied, int(self._tokens), _MAX_WAITING_MESSAGES - len(self._waiting))
        self._tokens -= taken
        if taken > 0:
            indexes = range(count) if taken == count else sorted(self._random.sample(range(count), taken))
            for message in _copy_messages(group, indexes, batch, place, self._request.max_bytes):
                if self._waiting_bytes >= _MAX_WAITING_BYTES:
                    break
                self._waiting.append(message)
                self._waiting_bytes += message.ByteSize()
                self.shown_messages += 1
                uncopied -= 1
        self.omitted_messages += uncopied
        self.wake()

    def end(self, error: RefusedError) -> None:
        """End the tap with an error."""
        self.error = error
        self.wake()

    def take(self) -> pb.TapResponse:
        """Return new messages up to the limit of a response, and wake the reader for the rest."""
        taken = pb.TapResponse(passed_messages=self.passed_messages, omitted_messages=self.omitted_messages)
        size = 0
        while self._waiting and size < _MAX_RESPONSE_BYTES:
            taken.messages.append(self._waiting.popleft())
            size += taken.messages[-1].ByteSize()
        self._waiting_bytes -= size
        if self._waiting:
            self.wake()
        return taken


def _copy_messages(
    group: TaskGroup, indexes: Iterable[int], batch: ReceivedBatch, place: str, max_bytes: int
) -> Iterator[pb.TappedMessage]:
    """Copy messages of a group. The time grows with the group, once, and with the copied messages."""
    sizes, header_sizes = group.payload_sizes(), group.header_sizes()
    begins = [0, *accumulate(sizes)]
    header_begins = [0, *accumulate(header_sizes)] if header_sizes else []
    inbound, now_micros = batch.inbound, time.time_ns() // 1000
    for index in indexes:
        headers = b""
        # Truncated headers could not be decoded.
        if header_begins and header_sizes[index] <= max_bytes:
            headers = group.header_data[header_begins[index] : header_begins[index + 1]]
        yield pb.TappedMessage(
            task=group.task,
            source=group.source,
            payload=group.data[begins[index] : begins[index] + min(sizes[index], max_bytes)],
            payload_bytes=sizes[index],
            headers=headers,
            headers_bytes=header_sizes[index] if header_begins else 0,
            sender_id=inbound.sender_id,
            from_worker=bool(inbound.worker_number),
            place=place,
            redelivered=group.redelivered,
            accepted_unix_micros=group.accepted_micros,
            seen_unix_micros=now_micros,
        )


class Taps:
    """The taps of one worker."""

    def __init__(self) -> None:
        self.open_taps: list[Tap] = []
        self._closed_counts = pb.TapStatus()

    def open_tap(self, request: pb.TapRequest, wake: Callable[[], None]) -> Tap:
        """Open a tap with the tasks (empty: all) and limits of `request`. Raises ResourceLimitError."""
        if len(self.open_taps) >= MAX_TAPS:
            raise ResourceLimitError(f"{MAX_TAPS} taps are open at this worker already: end one of them")
        tap = Tap(request, wake)
        self.open_taps.append(tap)
        return tap

    def close_tap(self, tap: Tap) -> None:
        """End a tap."""
        if tap in self.open_taps:  # a failed one was removed before
            self.open_taps.remove(tap)
        self._closed_counts.shown_messages += tap.shown_messages
        self._closed_counts.omitted_messages += tap.omitted_messages

    def offer(self, batch: ReceivedBatch, place_of: Callable[[int], str]) -> None:
        """Copy a routed batch, without refused messages, to the taps. Raises nothing, even if a tap fails."""
        refused = {id(group) for group, _ in batch.refusals}
        groups: Sequence[TaskGroup] = [group for group in batch.groups if id(group) not in refused]
        for tap in tuple(self.open_taps):
            try:
                for group in groups:
                    if not tap.tasks or group.task in tap.tasks:
                        tap.offer(group, batch, place_of(group.task))
            except Exception:
                logger.exception("tap.failed")
                self.open_taps.remove(tap)
                tap.end(NotReadyError("the tap has a defect, which is in the worker's log: report it"))

    def status(self) -> pb.TapStatus:
        """Return the counts, including closed taps."""
        taps, ended = self.open_taps, self._closed_counts
        return pb.TapStatus(
            open_taps=len(taps),
            shown_messages=ended.shown_messages + sum(tap.shown_messages for tap in taps),
            omitted_messages=ended.omitted_messages + sum(tap.omitted_messages for tap in taps),
        )
