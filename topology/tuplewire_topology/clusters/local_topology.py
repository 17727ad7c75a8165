"""A topology of a local cluster, with all workers in this process. Source: Storm's `ILocalTopology`.

Used by cluster.py. Owns the workers, the acker and the assignment. Thread-safe: changes of workers and of the
spouts' state exclude each other. Design: docs/design/topologies.md (changes in a local cluster).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuplewire.errors import ClosedError, TopologyError, TuplewireError
from tuplewire.session.ledger import LedgerSnapshot
from tuplewire.text.events import event_logger
from tuplewire.wire import control_pb2 as pb
from tuplewire_service.process.embedded_worker import EmbeddedWorker, check_conf
from tuplewire_topology.acking.acker import Acker, Root
from tuplewire_topology.authoring.component import DeadLetter, TaskError
from tuplewire_topology.authoring.description import Topology, shares_of
from tuplewire_topology.authoring.topology_settings import TopologySettings
from tuplewire_topology.authoring.tuples import AddressedTuples
from tuplewire_topology.clusters.capture import Captured
from tuplewire_topology.clusters.local_worker import LocalWorker, rests
from tuplewire_topology.coordination.executor_metrics import metric_families
from tuplewire_topology.running.executor import Executor
from tuplewire_topology.running.heartbeat import ExecutorBeat
from tuplewire_topology.running.statistics import ExecutorStatistics
from tuplewire_topology.running.timer import SimulatedTimer

logger = event_logger(__name__)

WAIT_SECONDS = 60.0
KILL_SECONDS = 10.0
_USER_CODE_SECONDS = 1.0
"""The time that a killed worker's executors have to return from user code."""

_LOOK_SECONDS = 0.005
"""The poll interval of a wait, because connections do not notify waiting threads."""

_REMEMBERED = 1000


@dataclass(frozen=True, slots=True)
class TopologyStatus:
    """A snapshot of a topology. state: ACTIVE, INACTIVE or FAILED, as Storm's."""

    name: str
    state: str
    executors: Sequence[ExecutorStatistics]


class LocalTopology:
    """A running topology. Created by LocalCluster.submit.

    `captured` has the emitted and received tuples; with `collect`, only tuples emitted by these components.
    `errors` and `dead_letters` have the last thousand of each. `timer` is set if time is simulated.
    """

    def __init__(
        self,
        name: str,
        conf: Mapping[str, Any],
        topology: Topology,
        timer: SimulatedTimer | None,
        collect: Sequence[str] | None = None,
    ) -> None:
        self.name = name
        self.topology = topology
        self.captured = Captured(collect)
        self._collects_all = collect is None
        self.errors: deque[TaskError] = deque(maxlen=_REMEMBERED)
        self.dead_letters: deque[DeadLetter] = deque(maxlen=_REMEMBERED)
        self._conf = conf
        self.timer = timer
        self._active = False
        self._moved = threading.Condition()
        self._changing = threading.RLock()
        self._changes = 0
        self._version = 0
        self._acker = Acker(self._tell)
        self._workers: list[LocalWorker] = []
        self._worker_of: dict[int, LocalWorker] = {}
        self._dead: list[Executor[Any]] = []
        try:
            portions = shares_of(topology, TopologySettings.from_conf(conf).workers)
            # Also for one worker, which has no transport, so that invalid settings always raise an error.
            check_conf(conf, name)
            self._several = len(portions) > 1
            for number, portion in enumerate(portions):
                self._workers.append(self._make_worker(number, portion))
            self._assign()
        except BaseException:
            self.close(0.0)
            raise

    def __repr__(self) -> str:
        state = "active" if self._active else "inactive"
        return f"<LocalTopology {self.name} {state} workers={len(self._workers)} {self.topology!r}>"

    def _repr_html_(self) -> str:
        """Return the topology's table, for notebooks."""
        return self.topology._repr_html_()

    def _make_worker(self, number: int, tasks: Collection[int]) -> LocalWorker:
        worker_id = f"{self.name}-worker-{number}"
        return LocalWorker(
            self.topology,
            tasks,
            EmbeddedWorker(worker_id, self.name, self._conf) if self._several else None,
            self._moved,
            topology_id=self.name,
            conf=self._conf,
            timer=self.timer,
            acker=self._acker,
            error=self.errors.append,
            dead_letter=self.dead_letters.append,
            emitted=self.captured.add,
            received=self.captured.receive if self._collects_all else None,
        )

    def _assign(self) -> None:
        """Send the owners of all tasks to every worker, if there are several."""
        self._worker_of = {task: worker for worker in self._workers for task in worker.tasks}
        if self._several:
            self._version += 1
            shares = {each.peer: sorted(tasks) for each, tasks in self._hosted()}
            dead = [worker.hosted.peer for worker in self._workers if worker.hosted and worker.dead]
            for hosted, _ in self._hosted():
                hosted.assign(self._version, shares, dead)

    def _hosted(self) -> Iterator[tuple[EmbeddedWorker, Collection[int]]]:
        """Yield the embedded worker of each living worker, with its tasks; nothing for a single worker."""
        for worker in self._living():
            if worker.hosted is not None:
                yield worker.hosted, worker.tasks

    def _tell(self, column: AddressedTuples) -> None:
        worker = self._worker_of[column.task]
        try:
            worker.transfer.tell(column)
        except ClosedError:
            if not worker.dead:  # a killed worker loses outcomes, as a crashed one does
                raise

    # --- life -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open every task, then activate the spouts; TaskError if a task cannot be opened."""
        try:
            for worker in self._workers:
                worker.start()
        except BaseException:
            self.close(0.0)
            raise
        self.activate()

    def activate(self) -> None:
        """Start to request tuples from the spouts. Source: Storm's `activate`."""
        with self._changing:
            self._active = True
            for worker in self._workers:
                worker.activate()

    def deactivate(self) -> None:
        """Stop requesting tuples; tuples in flight are still processed. Source: Storm's `deactivate`."""
        with self._changing:
            self._active = False
            for worker in self._workers:
                worker.deactivate()

    def wait(self, timeout: float = WAIT_SECONDS) -> None:
        """Wait until the topology has finished: all spouts exhausted or inactive, and no tuple in flight.

        Raises TaskError if the topology has failed. Raises TimeoutError, with the names of spouts that are
        not exhausted, after `timeout` seconds.
        """
        self._rest(timeout, changes=0)

    def _rest(self, timeout: float, changes: int) -> None:
        idle = self._wait_idle(timeout, changes)
        if self.failure is not None:
            raise self.failure
        if not idle:
            raise TimeoutError(self._unfinished(timeout))

    def _unfinished(self, timeout: float) -> str:
        spouts = [spout for worker in self._living() for spout in worker.spouts if not spout.finished()]
        names = sorted({repr(spout.component.id) for spout in spouts})
        why = f": {', '.join(names)} may emit more; let `exhausted` say so, or deactivate()" if names else ""
        return f"topology {self.name!r} still had something to do after {timeout} s{why}"

    def _wait_idle(self, timeout: float, changes: int = 0) -> bool:
        """Wait until all workers are idle or one has failed; return False after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        epochs: dict[LocalWorker, int] = {}
        while True:
            for worker in self._living():
                if worker not in epochs:  # also workers that were started during the wait
                    epochs[worker] = worker.new_epoch()
            # A topology that is paused for a change is idle for this change only, not for other callers.
            if self.failure is not None or (self._changes <= changes and rests(epochs)):
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            with self._moved:
                self._moved.wait(min(left, _LOOK_SECONDS))

    def finish(self, timeout: float = WAIT_SECONDS) -> Captured:
        """Wait until the topology has finished, send the final ticks, wait, and return the recorded tuples.

        A bolt that aggregates can emit its result on the final tick. Bolts get this tick after the results of
        earlier bolts; the bolts of a cycle get it together. Raises the errors of wait().
        """
        self.wait(timeout)
        for level in self.topology.tick_levels(self._conf):
            for worker in self._living():
                worker.tick(level)
            self.wait(timeout)
        return self.captured

    @property
    def failure(self) -> TuplewireError | None:
        """The error that made the topology fail, if any."""
        failures = (worker.failure for worker in self._living())
        return next((failure for failure in failures if failure is not None), None)

    def status(self) -> TopologyStatus:
        """Return a snapshot."""
        state = "FAILED" if self.failure is not None else "ACTIVE" if self._active else "INACTIVE"
        return TopologyStatus(
            self.name, state, [each for worker in self._workers for each in worker.statistics()]
        )

    def ledgers(self) -> dict[str, LedgerSnapshot]:
        """Return the ledger of each worker, in messages; empty for a single worker."""
        return {hosted.peer[0]: hosted.ledger() for hosted, _ in self._hosted()}

    def beats(self) -> list[ExecutorBeat]:
        """Return the activity of every executor at its worker's last heartbeat."""
        return [beat for worker in self._living() for beat in worker.heartbeat.executors]

    def metrics(self) -> list[pb.MetricFamily]:
        """Return the metrics of all executors, for a ProgramCollector in a registry of prometheus_client."""
        return metric_families(self.status().executors, self.beats())

    def close(self, timeout: float = KILL_SECONDS) -> None:
        """Deactivate the topology, wait up to `timeout` seconds until it has finished, and end all workers.

        A failed topology ends immediately. Idempotent.
        """
        deadline = time.monotonic() + timeout
        self.deactivate()
        self._wait_idle(timeout)
        with contextlib.ExitStack() as stack:
            if self.timer is not None:
                stack.callback(self.timer.close)
            for worker in self._workers:
                rest = 0.0 if self.failure is not None else max(0.0, deadline - time.monotonic())
                stack.callback(worker.close, rest)
            for executor in self._dead:
                stack.callback(executor.join, max(0.0, deadline - time.monotonic()))

    # --- changes of workers -----------------------------------------------------------------------------

    def worker_of(self, task: int) -> int:
        """Return the number, from 0, of the worker that owns a task; TopologyError for an unknown task."""
        self.topology.component_of(task)
        return self._workers.index(self._worker_of[task])

    def move_task(self, task: int, worker: int, timeout: float = WAIT_SECONDS) -> None:
        """Move the executor of a task to another worker while tuples flow. Source: Storm's `rebalance`.

        Pauses spouts until all tuples in flight are executed. Then closes the executor's tasks, and opens
        them on the other worker. No tuple is lost, duplicated or reordered, except that unacked tuples of a
        moved bolt fail, and a moved spout starts again without outcomes of its earlier tuples.

        Raises TopologyError for an unknown task or worker, and TimeoutError if tuples are still in flight
        after `timeout` seconds; nothing has moved then. Raises TaskError if a task cannot be opened.
        """
        component = self.topology.component_of(task)
        tasks = next(each for each in self.topology.executors_of(component.id) if task in each)
        target = self._worker(worker)
        with self._changing, self._paused(timeout):
            source = self._worker_of[task]
            if source is target:
                return
            source.remove(tasks, timeout)
            self._settle(tasks)
            target.tasks |= frozenset(tasks)
            self._assign()  # first, because a link can receive only for tasks that its worker owns
            target.add(tasks)

    def kill_worker(self, worker: int, timeout: float = WAIT_SECONDS) -> None:
        """Crash a worker, then start it again like Storm's supervisor, while tuples flow.

        Its executors stop without closing spouts and bolts, and tuples in queues and connections are lost.
        On other workers, spout tuples with a lost copy fail immediately, and no others; in Storm, after
        topology.message.timeout.secs. Its own spouts start again without outcomes of their earlier tuples.

        Raises TopologyError for an unknown worker, and TaskError if a task cannot be opened. Raises
        TimeoutError if tuples are still in flight after `timeout` seconds; the topology then continues
        without the worker, until it is killed again.
        """
        dead = self._worker(worker)
        with self._changing:
            self._dead += dead.kill(_USER_CODE_SECONDS)
            self._assign()  # other workers drop messages for the dead one, so the pause can end
            with self._paused(timeout):
                self._settle(())
                self._workers[worker] = self._make_worker(worker, dead.tasks)
                self._assign()
                self._workers[worker].start()

    def _worker(self, number: int) -> LocalWorker:
        if not 0 <= number < len(self._workers):
            raise TopologyError(
                f"there is no worker {number}: topology {self.name!r} has {len(self._workers)}, from 0; "
                "topology.workers sets the number"
            )
        return self._workers[number]

    @contextlib.contextmanager
    def _paused(self, timeout: float) -> Iterator[None]:
        """Pause spouts and ticks, and wait until no tuple is in flight. Raises the errors of wait()."""
        self._changes += 1
        with contextlib.ExitStack() as stack:
            for worker in self._living():
                worker.pause()
                stack.callback(worker.resume)
            stack.callback(self._go_on)
            self._rest(timeout, self._changes)
            yield

    def _go_on(self) -> None:
        self._changes -= 1
        if self._active:
            self.activate()

    def _living(self) -> list[LocalWorker]:
        return [worker for worker in self._workers if not worker.dead]

    def _settle(self, gone: Collection[int]) -> None:
        """Fail lost tuples at their spouts, while none is in flight. `gone` are tasks that are moving."""
        dead = {task for worker in self._workers if worker.dead for task in worker.tasks}
        spouts = dead.union(gone)
        held: Counter[Root] = Counter()  # bolts hold the only copies left, so a tree with more has lost some
        for worker in self._living():
            for bolt in worker.bolts:
                held += bolt.held(spouts)
        self._acker.lose(held, spouts)
