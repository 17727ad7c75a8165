"""Keeps account of a worker's time: what its loop does, who makes whom wait, how long messages take."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator

from tuplewire.session.delivery import Done
from tuplewire.session.durations import Durations
from tuplewire_service.worker.blocking import LOCAL, Blocking
from tuplewire_service.worker.connections import Connections
from tuplewire_service.worker.loop_lag import LoopLag
from tuplewire_service.worker.receive_queues import ReceiveQueues
from tuplewire_service.worker.servers import Servers
from tuplewire_service.worker.status import Timings
from tuplewire_service.worker.time_shares import TimeShares


class Timekeeper:
    """Looks at the parts of a worker. Belongs to the event loop."""

    def __init__(
        self, queues: ReceiveQueues, connections: Connections, servers: Servers, blocking_limit: int
    ) -> None:
        """Begin now. blocking_limit: how many pairs of task and place are told apart."""
        self._queues = queues
        self._connections = connections
        self._servers = servers
        self._clock = asyncio.get_running_loop().time
        now = self._clock()
        self._shares = TimeShares(now)
        self._blocking = Blocking(blocking_limit)
        self._lag = LoopLag(now)
        self._looked = now
        self._end_to_end = Durations()

    def waited(self, began: float, ended: float) -> None:
        """Account for a wait of the loop; see EventLoopThread.on_wait."""
        pressure = self._connections.pressure
        self._shares.waited(
            began,
            ended,
            starved=pressure.starved > 0,
            exhausted=self._servers.exhausted,
            held_since=pressure.held_since,
        )

    def done(self, done: Iterable[Done]) -> None:
        """Account for messages that a consumer has acknowledged."""
        now_micros = time.time_ns() // 1000
        for each in done:
            if each.accepted_micros:
                self._end_to_end.add((now_micros - each.accepted_micros) / 1e6, each.messages)

    async def look_around(self) -> None:
        """Look ten times a second how late the loop is, and who blocks whom."""
        while True:
            now = self._clock()
            self._blocking.look(self._blocked(), now - self._looked)
            self._looked = now
            await asyncio.sleep(self._lag.probe(now))

    def _blocked(self) -> Iterator[tuple[int, str]]:
        for task in self._servers.exhausted_tasks:
            if task in self._queues:
                yield task, LOCAL
        yield from self._connections.blocked()

    def timings(self) -> Timings:
        """Return what there is by now."""
        return Timings(
            self._shares.seconds(self._clock()),
            self._blocking.seconds(),
            self._queues.wait.copy(),
            self._connections.pressure.send_to_ack.copy(),
            self._end_to_end.copy(),
            self._lag.lag.copy(),
        )
