"""Keeps account of a worker's time: what its loop does, who makes whom wait, how long messages take."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator

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
        self,
        queues: ReceiveQueues,
        connections: Connections,
        servers: Servers,
        place_of: Callable[[int], str],
        blocking_limit: int,
    ) -> None:
        """Begin now.

        place_of: where a task is, LOCAL or a worker's id. blocking_limit: how many pairs of task and place
        are told apart.
        """
        self._queues = queues
        self._connections = connections
        self._servers = servers
        self._place_of = place_of
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
        full_here = full_there = False
        for task in self._servers.longest_exhausted():
            if self._place_of(task) == LOCAL:
                full_here = True
            else:
                full_there = True
        self._shares.waited(
            began,
            ended,
            full_here=full_here,
            full_there=full_there or pressure.starved > 0,
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
            self._blocking.look(set(self._blocked()), now - self._looked)
            self._looked = now
            await asyncio.sleep(self._lag.probe(now))

    def _blocked(self) -> Iterator[tuple[int, str]]:
        for task in self._servers.exhausted():
            yield task, self._place_of(task)
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
