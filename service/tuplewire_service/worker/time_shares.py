"""Where a worker's time goes: busy, idle, or held back and by what; together exactly the time that passes.

Source: the times busy, idle and backpressured of Flink's tasks (`busyTimeMsPerSecond` and the like); here
of a whole worker, and by cause.
"""

from __future__ import annotations

import enum

from tuplewire.session.pressure import HELD_SECONDS


class TimeState(enum.StrEnum):
    """What a worker is at; where several causes hold it back at once, the first of them counts."""

    BUSY = "busy"
    """Its event loop works, or waits for a processor."""
    BACKPRESSURED_CREDIT = "backpressured_credit"
    """It waits, and has something for a task for which another worker grants no credit."""
    BACKPRESSURED_QUEUE = "backpressured_queue"
    """It waits, and a sender has used up its window for a task here: the task's queue is full for it."""
    BACKPRESSURED_SOCKET = "backpressured_socket"
    """It waits, and has something for a worker whose connection takes nothing: it is down, or its socket is
    full, or as many frames as may be on the way are not acknowledged."""
    IDLE = "idle"
    """It waits, and nothing is held up."""


class TimeShares:
    """Adds the waits of an event loop up by what they were for; all other time is busy.

    The clock comes from outside. Belongs to the event loop.
    """

    __slots__ = ("_began", "_waited")

    def __init__(self, now: float) -> None:
        self._began = now
        self._waited = dict.fromkeys(TimeState, 0.0)

    def waited(
        self, began: float, ended: float, *, starved: bool, exhausted: bool, held_since: float | None
    ) -> None:
        """Account for one wait of the loop, during which nothing changed.

        starved: something waits for another worker's credit. exhausted: a sender's window here is used up.
        held_since: since when a connection takes nothing; None when all do.
        """
        waited = self._waited
        if starved:
            waited[TimeState.BACKPRESSURED_CREDIT] += ended - began
        elif exhausted:
            waited[TimeState.BACKPRESSURED_QUEUE] += ended - began
        elif held_since is None:
            waited[TimeState.IDLE] += ended - began
        else:
            usual_until = min(ended, max(began, held_since + HELD_SECONDS))
            waited[TimeState.IDLE] += usual_until - began
            waited[TimeState.BACKPRESSURED_SOCKET] += ended - usual_until

    def seconds(self, now: float) -> dict[str, float]:
        """Return the seconds in each state since the beginning; their sum is what has passed since then."""
        shares = {state.value: waited for state, waited in self._waited.items()}
        shares[TimeState.BUSY] = now - self._began - sum(shares.values())
        return shares
