"""How many TLS handshakes begin, and how many connections then bring a call: gRPC tells no more of them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

_MINUTE = 60.0
_MOST_PEERS = 10_000


class Handshakes:
    """Counts them, and logs once a minute that many were begun in vain.

    Workers, and programs that list the names of workers, look at the certificate in a handshake of its own
    before they connect. So two for each connection are in good order.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.begun = 0
        """Also those that failed, or are under way."""
        self.connections = 0
        """Those that have brought a call. Off by those that came from a port of an earlier one."""
        self._clock = clock
        self._lock = threading.Lock()
        self._peers: dict[str, None] = {}
        self._since = clock()
        self._reported = (0, 0)

    def begin(self) -> None:
        """Count one; from any thread."""
        with self._lock:
            self.begun += 1

    def called(self, peer: str) -> None:
        """Take note of a call from ADDRESS:PORT over TLS."""
        if peer not in self._peers:
            if len(self._peers) >= _MOST_PEERS:
                del self._peers[next(iter(self._peers))]
            self._peers[peer] = None
            self.connections += 1

    def report(self) -> None:
        """Write a line if a minute is over and there is something to tell."""
        if self._clock() - self._since < _MINUTE:
            return
        begun, connections = self.begun - self._reported[0], self.connections - self._reported[1]
        self._since, self._reported = self._clock(), (self.begun, self.connections)
        if begun > 2 * connections:
            logger.warning("tls.handshakes_in_vain", extra={"handshakes": begun, "connections": connections})
