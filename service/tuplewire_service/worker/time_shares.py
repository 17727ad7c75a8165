"""Where a worker's time goes: busy, idle, or held back and by what; together exactly the time that passes.

Source: the times busy, idle and backpressured of Flink's tasks (`busyTimeMsPerSecond` and the like); here
of a whole worker, and by cause.
"""

from __future__ import annotations

import enum

from tuplewire.session.pressure import HELD_SECONDS


class TimeState(enum.StrEnum):
    """What a worker is at. It waits in all of them but the first; the first that holds counts."""

    BUSY = "busy"
    """Its event loop works, or waits for a processor."""
    BACKPRESSURED_QUEUE = "backpressured_queue"
    """Some sender has used up its window for a task here: the task's consumer is behind."""
    BACKPRESSURED_SOCKET = "backpressured_socket"
    """Something is for a worker whose connection takes nothing: it is down, or its socket is full, or as many
    frames as may be on the way are not acknowledged."""
    BACKPRESSURED_CREDIT = "backpressured_credit"
    """Something is for a task for which another worker gives no room, here or with a sender."""
    IDLE = "idle"
    """Nothing is held up."""


class TimeShares:
    """Adds the waits of an event loop up by what they were for; all other time is busy.

    The clock comes from outside. Belongs to the event loop.
    """

    __slots__ = ("_began", "_waited")

    def __init__(self, now: float) -> None:
        self._began = now
        self._waited = dict.fromkeys(TimeState, 0.0)

    def waited(
        self, began: float, ended: float, *, full_here: bool, full_there: bool, held_since: float | None
    ) -> None:
        """Account for one wait of the loop, during which nothing changed.

        full_here: a window for a task here is used up. full_there: so it is for a task of another worker.
        held_since: since when a connection takes nothing; None when all do.
        """
        waited = self._waited
        if full_here:
            waited[TimeState.BACKPRESSURED_QUEUE] += ended - began
            return
        state = TimeState.BACKPRESSURED_CREDIT if full_there else TimeState.IDLE
        usual_until = ended if held_since is None else min(ended, max(began, held_since + HELD_SECONDS))
        waited[state] += usual_until - began
        waited[TimeState.BACKPRESSURED_SOCKET] += ended - usual_until

    def seconds(self, now: float) -> dict[str, float]:
        """Return the seconds in each state since the beginning; their sum is what has passed since then."""
        shares = {state.value: waited for state, waited in self._waited.items()}
        shares[TimeState.BUSY] = now - self._began - sum(shares.values())
        return shares
