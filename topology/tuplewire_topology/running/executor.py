"""Executors: a thread that runs some tasks of one component, whichever it is. Source: Storm's `Executor`."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tuplewire.errors import ClosedError
from tuplewire.grouping.grouping import LoadSource, LocalitySource, nothing
from tuplewire.text.events import event_logger
from tuplewire_topology.acking.acker import News, TupleTracker
from tuplewire_topology.authoring.collector import Emitted, Outbox
from tuplewire_topology.authoring.component import DeadLetter, TaskError, TopologyContext
from tuplewire_topology.authoring.description import Topology
from tuplewire_topology.authoring.hooks import TaskHook
from tuplewire_topology.authoring.topology_settings import ErrorPolicy, TopologySettings
from tuplewire_topology.authoring.tuples import AddressedTuples, MessageId, Tuple
from tuplewire_topology.authoring.user_metrics import UserMetrics
from tuplewire_topology.running.idle import IdleWatch
from tuplewire_topology.running.outgoing import Outgoing
from tuplewire_topology.running.receive_queue import ReceiveQueue
from tuplewire_topology.running.statistics import Doing, ExecutorLoad, ExecutorStatistics, Pulse, Tally

if TYPE_CHECKING:
    from tuplewire.tracing.spans import Tracing

logger = event_logger(__name__)

BATCH = 1024
"""Tuples that are taken from the queue at once, or emitted by a task, before what was emitted goes out."""

Undeliverable = Callable[[Tuple, Exception], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What an executor has of the process that it runs in; it calls everything in its own thread.

    transfer: sends columns on their way, waiting for room; calls back for each tuple that has no form.
    failed: told of the error that ends an executor. error: told of every error that is raised or reported.
    dead_letter: gets the tuples that are given up, where the policy says so; returns False for one that has
    no place.
    track: returns what follows a task's tuples; None where nobody does: a spout's tuple then counts as
    processed once it is emitted, as in Storm without ackers. idle: told of what is done with.
    emitted: gets everything that is emitted, before it is on its way; None where nobody looks.
    received: gets every column, with its component, before it is executed; None where nobody looks.
    ready: whether spouts may be asked for their first tuples. context: returns that of a task. tracing: makes
    spans; None where it is off. serialize: see Outbox. metrics: what tasks register.
    """

    topology: Topology
    conf: Mapping[str, Any]
    context: Callable[[int], TopologyContext]
    transfer: Callable[[Sequence[AddressedTuples], Undeliverable], None]
    failed: Callable[[TaskError], None]
    error: Callable[[TaskError], None]
    dead_letter: Callable[[DeadLetter], object]
    track: Callable[[int], TupleTracker | None] = lambda _: None
    emitted: Callable[[Sequence[Emitted]], None] | None = None
    received: Callable[[str, Sequence[Tuple]], None] | None = None
    ready: Callable[[], bool] = lambda: True
    idle: IdleWatch = field(default_factory=IdleWatch)
    locality: LocalitySource = nothing
    loads: LoadSource = nothing
    tracing: Tracing | None = None
    serialize: Callable[[Tuple], bytes] | None = None
    metrics: UserMetrics = field(default_factory=UserMetrics)


@dataclass(slots=True, eq=False)
class Task:
    """What every task of an executor has; acked, failed: ids of tuples, for the acker to hear at the end."""

    id: int
    outbox: Outbox
    outgoing: Outgoing
    tracker: TupleTracker | None
    acked: list[MessageId] = field(default_factory=list)
    failed: list[MessageId] = field(default_factory=list)
    hooks: Sequence[TaskHook] = ()

    def observe(self, call: Callable[[TaskHook], None]) -> None:
        """Call the task's hooks."""
        for hook in self.hooks:
            call(hook)


TaskKind = TypeVar("TaskKind", bound=Task)


class Executor(ABC, Generic[TaskKind]):
    """Runs tasks of one component in a thread of its own, fed by one receive queue.

    tally: what it has done. pulse: what it is doing. opening, closing: what the user's code is called for.
    """

    opening = Doing.PREPARE
    closing = Doing.CLEANUP

    def __init__(self, tasks: range, surroundings: Surroundings) -> None:
        self.tasks = tasks
        self.component = surroundings.topology.component_of(tasks[0])
        self.conf = {**surroundings.conf, **self.component.configuration}
        self.settings = TopologySettings.from_conf(self.conf)
        self.queue = ReceiveQueue(self.settings.receive_queue_tuples)
        self.tally = Tally()
        self.pulse = Pulse(tasks[0])
        self._surroundings = surroundings
        self._tasks: dict[int, TaskKind] = {}
        self._load = ExecutorLoad()
        self._refresh_due = self._rotation_due = False
        self._stopping = self._finishing = self._abandoned = False
        self.opened = threading.Event()
        """Set once all tasks are open, or one has failed to."""
        name = f"executor {self.component.id} {tasks[0]}-{tasks[-1]}"
        self.thread = threading.Thread(target=self._main, name=name, daemon=True)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.component.id!r} tasks {self.tasks[0]}-{self.tasks[-1]}>"

    # --- for its worker, from any thread ------------------------------------------------------------

    def start(self) -> None:
        """Begin: open or prepare the tasks, then run them."""
        self.thread.start()

    def refresh(self) -> None:
        """Have the groupings look again at loads and distances, before the next tuples go out."""
        self._refresh_due = True

    def rotate(self) -> None:
        """Have half of the time pass that what a spout has emitted may take; what is older has failed."""
        self._rotation_due = True
        self.queue.wake()

    def stop(self) -> None:
        """Ask it to end after the tuple that it is at; what is queued then is left. Does not wait."""
        self._stopping = True
        self.queue.close()

    def finish(self) -> None:
        """Ask it to end once its queue is empty. Does not wait."""
        self._finishing = True
        self.queue.wake()

    def abandon(self) -> None:
        """End it as if its process were killed: nothing more goes out, and spouts and bolts are not told."""
        self._abandoned = True
        self.stop()

    def join(self, timeout: float) -> bool:
        """Wait until it has ended; False when the time is over first."""
        if self.thread.ident is not None:
            self.thread.join(timeout)
        return not self.thread.is_alive()

    def look_at_load(self) -> float:
        """Return the load of now, from 0 to 1; to be called once a second or so. See ExecutorLoad."""
        at_work = self.tally.at_work(self.pulse)
        executed = sum(at_work.executed_by.values())
        queue = self.queue.statistics()
        wait = self._load.look(queue.arrived, executed, at_work.busy_seconds + at_work.sending_seconds)
        return max(queue.fill, wait)

    @property
    def pending(self) -> int:
        """Tuples of its spouts that are on the way; bolts have none."""
        return 0

    def statistics(self, *, registered: bool = True) -> ExecutorStatistics:
        """Return a snapshot. registered: with the metrics of tasks; their gauges are the user's code."""
        metrics = self._surroundings.metrics
        return ExecutorStatistics(
            self.component.id,
            self.tasks,
            self.tally.snapshot(),
            self.queue.statistics(),
            self.pending,
            self.tally.at_work(self.pulse),
            metrics.samples(self.tasks) if registered else (),
            metrics.left_out(self.tasks),
        )

    # --- its thread -----------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            for task in self.tasks:
                self.pulse.enter(task, self.opening)
                self._tasks[task] = self._always(task, partial(self._open, task))
            self.pulse.doing = Doing.WAITING
            self.opened.set()
            while not self._stopping:
                self.pulse.turn()
                self._turn()
                if self._finishing and self.queue.close_if_unused():
                    break
        except TaskError as error:
            self._surroundings.failed(error)
        except ClosedError:
            # The executor of a task that this one sends to has ended, and whoever ended it knows why.
            logger.info("executor.cut_off", extra={"component": self.component.id, "tasks": str(self.tasks)})
        except BaseException as error:  # noqa: BLE001 - a user's sys.exit(), or a defect of ours
            self._surroundings.failed(self._told(self.pulse.task, error))
        finally:
            self.queue.close()
            self.opened.set()
            if not self._abandoned:
                self._close_all()
            self.pulse.doing = Doing.ENDED

    def _close_all(self) -> None:
        for task in self._tasks.values():
            self.pulse.enter(task.id, self.closing)
            try:
                self._close(task)
                task.observe(methodcaller("cleanup"))
            except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
                self._surroundings.failed(self._told(task.id, error))

    def _always(self, task: int, call: Callable[[], Any]) -> Any:
        """Call the user's code; what that raises ends the executor, whatever the policy."""
        try:
            return call()
        except Exception as error:
            raise self._told(task, error) from error

    @abstractmethod
    def _open(self, task: int) -> TaskKind:
        """Return a task whose spout or bolt is ready."""

    def _turn(self) -> None:
        """Do a batch of work, or wait for some."""
        self.pulse.doing = Doing.WAITING
        for column in self.queue.consume(BATCH, self._patience()):
            self._take(column)
        if self._rotation_due:
            self._rotation_due = False
            self._rotate()

    def _patience(self) -> float | None:
        """Return how long to wait for something, in seconds; None: there is nothing to do without."""
        return None

    @abstractmethod
    def _take(self, column: AddressedTuples) -> None:
        """Deal with what has arrived, and call _finished() with it."""

    def _finished(self, column: AddressedTuples) -> None:
        if column.done is not None:
            column.done()
        self._surroundings.idle.executed(len(column.tuples))

    def _rotate(self) -> None:
        """Give up what is too old; bolts know of nothing."""

    def _close(self, task: TaskKind) -> None:
        """Have a task's spout or bolt let go of what it holds; acker tasks hold nothing."""

    def _parts(self, task: int) -> tuple[int, Outbox, Outgoing, TupleTracker | None]:
        """Return what every task has."""
        around = self._surroundings
        outgoing = Outgoing(around.topology, task, around.locality, around.loads)
        outbox = Outbox(around.topology, task)
        outbox.serialize = around.serialize
        return task, outbox, outgoing, around.track(task)

    # --- errors -----------------------------------------------------------------------------------------

    def _told(self, task: int, error: BaseException, message: Tuple | None = None) -> TaskError:
        """Count, log and tell an error."""
        told = TaskError(self.component.id, task, error, message)
        self.tally.errors += 1
        logger.warning("task.error", extra={"reason": str(told)})
        self._surroundings.error(told)
        return told

    def _raised(self, task: int, error: Exception, message: Tuple | None = None, tries: int = 0) -> bool:
        """Deal with an error as the policy says: raises TaskError when the worker is to fail by it.

        tries: how often a bolt was given the message. Returns whether the message is a dead letter now.
        """
        told = self._told(task, error, message)
        policy = self.settings.error_policy
        if policy is ErrorPolicy.FAIL:
            raise told from error
        if policy is not ErrorPolicy.DEAD_LETTER or message is None:
            return False
        return self._surroundings.dead_letter(DeadLetter(message, told, tries)) is not False

    # --- what tasks emit ----------------------------------------------------------------------------------

    def _flush(self, task: TaskKind) -> list[Emitted]:
        """Send on what a task has emitted, and return it; tell the acker what is acked and failed.

        The acker hears of every copy before that is on its way. What cannot be sent has failed.
        """
        if self._abandoned:
            raise ClosedError("this executor's worker was killed")
        if self._refresh_due:
            self._refresh_due = False
            for each in self._tasks.values():
                each.outgoing.refresh()
        self.tally.count_acked()
        runs = task.outbox.take()
        began = self._began(task, runs)
        lost: list[Tuple] = []
        columns: list[AddressedTuples] = []
        for run in runs:
            copies = self._columns(task, run, lost)
            stream = run.source.stream.name
            self.tally.emitted[stream] += len(run.tuples)
            if task.hooks:
                self._always(task.id, partial(task.observe, methodcaller("emitted", run.tuples)))
            self.tally.transferred[stream] += sum(len(column.tuples) for column in copies)
            columns += copies
        columns += self._tell_acker(task, began, columns, lost)
        if runs and self._surroundings.emitted is not None:
            self._surroundings.emitted(runs)
        if columns:
            self._transfer(task, columns)
        if task.failed:  # copies that could not be sent
            self._transfer(task, self._tell_acker(task))
        return runs

    def _transfer(self, task: Task, columns: Sequence[AddressedTuples]) -> None:
        """Send columns on their way, waiting for room."""
        pulse = self.pulse
        doing, began = pulse.doing, pulse.clock()
        pulse.doing = Doing.SENDING
        self.tally.sends_since = began
        self._surroundings.transfer(columns, partial(self._undeliverable, task))
        pulse.enter(pulse.task, doing)
        self.tally.sends_since = None
        self.tally.sending_seconds += pulse.clock() - began

    def _columns(self, task: Task, run: Emitted, lost: list[Tuple]) -> list[AddressedTuples]:
        """Return what goes to each task; a tuple at which a grouping raises is lost, and no other."""
        if run.task is not None:
            return [AddressedTuples(run.task, run.tuples)]
        try:
            routes = task.outgoing.route(run.source.stream.name, run.tuples)
        except Exception as error:  # noqa: BLE001 - a grouping may be the user's code
            if len(run.tuples) > 1:
                singles = [Emitted(run.source, None, [message]) for message in run.tuples]
                return [column for single in singles for column in self._columns(task, single, lost)]
            lost += run.tuples
            self._raised(task.id, error, run.tuples[0])
            return []
        take = run.tuples.__getitem__
        return [AddressedTuples(target, list(map(take, positions))) for target, positions in routes.items()]

    def _tell_acker(
        self,
        task: Task,
        began: Sequence[Any] = (),
        columns: Sequence[AddressedTuples] = (),
        lost: Sequence[Tuple] = (),
    ) -> list[AddressedTuples]:
        acked, task.acked = task.acked, []
        failed, task.failed = task.failed, []
        if task.tracker is None:
            return []
        return task.tracker.tell(News(task.id, began, columns, lost, acked, failed))

    def _began(self, task: TaskKind, runs: Sequence[Emitted]) -> list[Any]:
        """Have what was emitted followed; return the keys of what spouts have emitted."""
        if task.tracker is not None:
            task.tracker.derive(runs)
        return []

    def _undeliverable(self, task: Task, message: Tuple, error: Exception) -> None:
        """Fail a copy that could not be sent."""
        if message.message_id:
            task.failed.append(message.message_id)
        self._raised(task.id, error, message)
