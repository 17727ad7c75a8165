"""A network link with a delay, for kernels without netem: two TAP devices and a thread between them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import selectors
import struct
import threading
import time
from collections import deque

_TUNSETIFF = 0x400454CA
_TAP_WITHOUT_HEADER = 0x0002 | 0x1000
_FRAME_BYTES = 65536
_MOST_FRAMES = 10_000


class DelayedLink:
    """Carries each Ethernet frame from one end to the other after a delay of `seconds`, in order."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._ends: list[int] = []
        self._stop_read, self._stop_write = os.pipe()
        self._thread = threading.Thread(target=self._carry, name="delayed-link")

    def attach(self, interface: str) -> None:
        """Create the next end as an interface in the network namespace of the current thread."""
        # The device belongs to the namespace in which its file is opened.
        self._ends.append(os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK))
        request = struct.pack("16sH22x", interface.encode(), _TAP_WITHOUT_HEADER)
        fcntl.ioctl(self._ends[-1], _TUNSETIFF, request)

    def start(self) -> None:
        """Start carrying frames."""
        self._thread.start()

    def close(self) -> None:
        """Stop, and remove both interfaces."""
        os.close(self._stop_write)
        if self._thread.ident is not None:
            self._thread.join()
        for descriptor in (*self._ends, self._stop_read):
            os.close(descriptor)

    def _carry(self) -> None:
        under_way: deque[tuple[float, int, bytes]] = deque()
        with selectors.DefaultSelector() as selector:
            for end in self._ends:
                selector.register(end, selectors.EVENT_READ)
            selector.register(self._stop_read, selectors.EVENT_READ)
            while True:
                wait = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
                for key, _ in selector.select(wait):
                    if key.fd == self._stop_read:
                        return
                    due = time.monotonic() + self._seconds
                    to = self._ends[1] if key.fd == self._ends[0] else self._ends[0]
                    with contextlib.suppress(BlockingIOError):
                        while len(under_way) < _MOST_FRAMES:
                            under_way.append((due, to, os.read(key.fd, _FRAME_BYTES)))
                while under_way and under_way[0][0] <= time.monotonic():
                    _, to, frame = under_way.popleft()
                    with contextlib.suppress(OSError):  # the link is down or full: the frame is lost
                        os.write(to, frame)
