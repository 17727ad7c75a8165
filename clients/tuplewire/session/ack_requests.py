"""The choice of frames that request an immediate acknowledgement, which costs as much as a message.

When frames follow each other quickly, waiting for acknowledgements merges many small messages into few large
frames. Design: docs/design/credit.md.
"""

from __future__ import annotations

from collections import deque

QUICK_FRAMES = 4
"""The last of this many frames within QUICK_SECONDS requests an acknowledgement."""
QUICK_SECONDS = 0.002
REQUEST_EVERY_FRAMES = 32
"""Every 32nd frame in a row requests an acknowledgement. At most two requests are outstanding: 64 frames."""


class AckRequestPolicy:
    """Chooses the frames of a session or delivery stream that request an acknowledgement. Not thread-safe."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=QUICK_FRAMES - 1)
        self._frames_since_request = 0

    def ack_wanted(self, now: float, *, urgent: bool = False) -> bool:
        """Return True if the next frame must request an acknowledgement. Call this once for each frame.

        `now` is in seconds, from any monotonic clock. `urgent`: a caller waits for it, or space is short.
        """
        times = self._times
        quick = len(times) == QUICK_FRAMES - 1 and now - times[0] <= QUICK_SECONDS
        times.append(now)
        self._frames_since_request += 1
        if not (urgent or quick or self._frames_since_request >= REQUEST_EVERY_FRAMES):
            return False
        # A new series starts. Otherwise each later frame within the same 2 ms would request one, too.
        times.clear()
        self._frames_since_request = 0
        return True
