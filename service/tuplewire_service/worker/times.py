"""Where a worker's time goes: its loop's states, tasks that make others wait, messages' durations.

Source: the times busy, idle and backpressured of Flink's tasks (`busyTimeMsPerSecond`), here of a whole
worker and by cause; Heron's `__time_spent_back_pressure_by_compid`.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TypeVar

from tuplewire.session.durations import BOUNDS, Durations
from tuplewire.session.pressure import HELD_SECONDS
from tuplewire.wire import control_pb2 as pb
from tuplewire_service.messaging.reception import OTHER
from tuplewire_service.worker.assignment import Assignment
from tuplewire_service.worker.router import Router
from tuplewire_service.worker.routing_table import LOCAL
from tuplewire_service.worker.servers import Servers

INTERVAL_SECONDS = 0.25
_MOST_PROBES = 1000
_SPAN_SECONDS = 5.0
_Key = TypeVar("_Key")


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

    __slots__ = ("_began", "_idle", "_waited")

    def __init__(self, now: float) -> None:
        self._began = now
        self._idle = 0.0
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

    def idled(self, began: float, ended: float) -> None:
        """Account for a wait of the loop while nothing held anything up."""
        self._idle += ended - began

    def seconds(self, now: float) -> dict[str, float]:
        """Return the seconds in each state since the beginning; their sum is what has passed since then."""
        shares = {state.value: waited for state, waited in self._waited.items()}
        shares[TimeState.IDLE] += self._idle
        shares[TimeState.BUSY] = now - self._began - sum(shares.values())
        return shares


class Blocking:
    """How long each task has made others wait, and where: seconds by task and place, sampled by look().

    At most `limit` pairs have a number of their own. The first pairs keep theirs until keep() forgets them: a
    pair never changes between its own number and the common one.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._seconds: dict[tuple[str, str], float] = {}
        self._gone: Callable[[int, str], bool] = lambda _task, _where: False

    def look(self, blocked: Iterable[tuple[int, str]], elapsed: float) -> None:
        """Add the time since the last look, in seconds, to each task and place that blocks now.

        What is gone may block for a moment more, and is not counted: nobody would forget it.
        """
        seconds = self._seconds
        for task, where in blocked:
            if self._gone(task, where):
                continue
            pair = (str(task), where)
            if pair not in seconds and len(seconds) >= self._limit:
                pair = (OTHER, OTHER)
            seconds[pair] = seconds.get(pair, 0.0) + elapsed

    def keep(self, tasks: Container[int], places: Container[str]) -> None:
        """Forget the pairs of tasks and places other than these, which are gone; the common one stays."""
        self._gone = lambda task, where: task not in tasks or where not in places
        for pair in [each for each in self._seconds if each != (OTHER, OTHER)]:
            task, where = pair
            if self._gone(int(task), where):
                del self._seconds[pair]

    def seconds(self) -> dict[tuple[str, str], float]:
        """Return the seconds by (task, where)."""
        return self._seconds.copy()


@dataclass(frozen=True, slots=True)
class WorkerTotals:
    """The counts of a worker up to a time, or within some seconds."""

    seconds: float
    """The time, or how many seconds these are."""
    accepted: int = 0
    acknowledged: int = 0
    dropped: int = 0
    state_seconds: Mapping[str, float] = field(default_factory=dict)
    """The seconds in each TimeState."""
    blocking_seconds: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """See Blocking."""


class Recent:
    """What the last seconds have brought, by totals that only grow. The clock comes from outside.

    It compares with a mark that is between one and two spans old, once so much time has passed.
    """

    __slots__ = ("_before", "_mark")

    def __init__(self, totals: WorkerTotals) -> None:
        """Begin at these totals; their `seconds` are the time, as of all those that follow."""
        self._before = self._mark = totals

    def due(self, now: float) -> bool:
        """Whether it is time for look()."""
        return now - self._mark.seconds >= _SPAN_SECONDS

    def look(self, totals: WorkerTotals) -> None:
        """Compare with the mark before this one from now on."""
        self._before, self._mark = self._mark, totals

    def since(self, totals: WorkerTotals) -> WorkerTotals:
        """Return what has come since the older mark."""
        before = self._before
        return WorkerTotals(
            totals.seconds - before.seconds,
            totals.accepted - before.accepted,
            totals.acknowledged - before.acknowledged,
            totals.dropped - before.dropped,
            _grown(before.state_seconds, totals.state_seconds),
            _grown(before.blocking_seconds, totals.blocking_seconds),
        )


def _grown(before: Mapping[_Key, float], now: Mapping[_Key, float]) -> dict[_Key, float]:
    """Return by how much each has grown; what was forgotten meanwhile has begun anew."""
    grown = {key: value - min(value, before.get(key, 0.0)) for key, value in now.items()}
    return {key: value for key, value in grown.items() if value > 0}


class LoopLag:
    """How late an event loop is: how long a due callback waits. The clock comes from outside.

    While a loop is blocked for two seconds, twenty probes are due, and one runs. All of them count, each with
    its own lateness, so a rare long block shows as what it is.
    """

    __slots__ = ("_due", "lag")

    def __init__(self, now: float) -> None:
        self.lag = Durations()
        self._due = now + INTERVAL_SECONDS

    def probe(self, now: float) -> float:
        """Note that the loop runs the probe now; return the seconds until the next."""
        late = now - self._due
        probes = int(max(0.0, late) / INTERVAL_SECONDS) + 1
        for missed in range(min(probes, _MOST_PROBES)):
            self.lag.add(late - missed * INTERVAL_SECONDS)
        self._due += probes * INTERVAL_SECONDS
        return self._due - now


class Timekeeper:
    """Looks at the parts of a worker. Belongs to the event loop."""

    def __init__(self, router: Router, servers: Servers, blocking_limit: int) -> None:
        """Begin now. blocking_limit: how many pairs of task and place have a number of their own."""
        self._router = router
        self._servers = servers
        self._clock = asyncio.get_running_loop().time
        now = self._clock()
        self._shares = TimeShares(now)
        self._blocking = Blocking(blocking_limit)
        self._lag = LoopLag(now)
        self._looked = now
        self._recent = Recent(self._totals(now))

    def waited(self, began: float, ended: float) -> None:
        """Account for a wait of the loop; see EventLoopThread.on_wait."""
        pressure = self._router.pressure
        since = pressure.held_since
        if (since is None or ended - since <= HELD_SECONDS) and not (
            pressure.without_credit or self._servers.any_exhausted
        ):
            self._shares.idled(began, ended)  # nearly always, and for each message that comes alone
            return
        here = {self._router.place_of(task) == LOCAL for task in self._servers.longest_exhausted()}
        full_there = False in here or pressure.without_credit > 0
        self._shares.waited(began, ended, full_here=True in here, full_there=full_there, held_since=since)

    def assigned(self, assignment: Assignment) -> None:
        """Forget what tasks and workers have blocked that are not in the assignment."""
        self._blocking.keep(assignment.owner_of, {LOCAL, *(each.worker_id for each in assignment.workers)})

    async def look_around(self) -> None:
        """Sample four times a second how late the loop is, and which tasks block others."""
        while True:
            now = self._clock()
            blocked = {(task, self._router.place_of(task)) for task in self._servers.exhausted()}
            self._blocking.look(blocked.union(self._router.connections.blocked()), now - self._looked)
            self._looked = now
            if self._recent.due(now):
                self._recent.look(self._totals(now))
            await asyncio.sleep(self._lag.probe(now))

    def _totals(self, now: float) -> WorkerTotals:
        ledger = self._router.ledger()
        return WorkerTotals(
            now,
            ledger.accepted,
            ledger.acknowledged,
            sum(ledger.dropped.values()),
            self._shares.seconds(now),
            self._blocking.seconds(),
        )

    @property
    def holding(self) -> Mapping[tuple[str, str], float]:
        """For how long tasks have held others up within the last seconds, by (task, where)."""
        return self._recent.since(self._totals(self._clock())).blocking_seconds

    def add_to(self, status: pb.GetStatusResponse) -> None:
        """Add all times up to now to a worker's status; of the tasks that hold others up, the worst first."""
        totals = self._totals(self._clock())
        recent = self._recent.since(totals)
        status.state_seconds.update(totals.state_seconds)
        status.recent.CopyFrom(
            pb.Recent(
                seconds=recent.seconds,
                accepted=recent.accepted,
                acknowledged=recent.acknowledged,
                dropped=recent.dropped,
                state_seconds=recent.state_seconds,
            )
        )
        lately = recent.blocking_seconds
        blocking = ((lately.get(at, 0.0), took, *at) for at, took in totals.blocking_seconds.items())
        for recently, took, task, where in sorted(blocking, reverse=True):
            status.blocking.add(task=task, where=where, seconds=took, recent_seconds=recently)
        status.queue_wait.CopyFrom(_latency(self._router.queues.wait))
        status.send_to_ack.CopyFrom(_latency(self._router.pressure.send_to_ack))
        status.end_to_end.CopyFrom(_latency(self._router.end_to_end))
        status.loop_lag.CopyFrom(_latency(self._lag.lag))


def _latency(durations: Durations) -> pb.Latency:
    exemplars = {place: pb.Exemplar(**asdict(each)) for place, each in durations.exemplars.items()}
    return pb.Latency(
        bounds=BOUNDS, messages=durations.counts, seconds=durations.seconds, exemplars=exemplars
    )
