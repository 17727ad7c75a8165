"""Publications of sinks: chosen messages that wait for space in their queues, once for each task.

A sink that does not know whether its last epoch was published publishes it again, without duplicates.
Used by sinks.py. Owns the last epoch of each sink and its waiting messages. Pure state, without I/O.
Call only from the event loop. Design: docs/design/sinks.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tuplewire.errors import StaleEpochError
from tuplewire.session.pieces import LENGTH_BYTES
from tuplewire.wire.messaging_pb2 import SinkEpoch
from tuplewire.wire.translate import TaskContent, contents_from_wire, contents_to_wire
from tuplewire_service.worker.assignment import MAX_STEP
from tuplewire_service.worker.staging import Attempt, Sink, StagedGroup

MAX_OWNER_ENTRIES = 100_000
"""Maximum number of sinks, tasks and attempts that are remembered for an owner; the oldest are forgotten."""
_MAX_REPORTED_TASKS = 10


@dataclass(slots=True, eq=False)
class LastEpoch:
    """The last epoch of a sink."""

    epoch: int
    """The number of the epoch; -1 if none is known."""
    run: str = ""
    """The query run that published it."""
    started_run: str = ""
    """A later run that has begun, and may publish; empty if there is none."""
    contents: dict[int, TaskContent] = field(default_factory=dict)
    """The content of each task that has the epoch, on any worker."""
    attempt_ids: set[str] = field(default_factory=set)
    """The attempts that were chosen here."""
    waiting_messages: int = 0
    """Number of its messages that are not in queues yet."""


ChosenGroup = tuple[StagedGroup, LastEpoch]
"""Messages of a task, and their epoch."""


@dataclass(slots=True, eq=False)
class _Backlog:
    """The messages that wait for a task's queue, and the amount in the queue."""

    waiting: deque[ChosenGroup] = field(default_factory=deque)
    unreleased_messages: int = 0
    unreleased_bytes: int = 0


@dataclass(eq=False, repr=False)
class Publications:
    """The last epoch of each sink, and the messages that wait for space. Call only from the event loop.

    The object is the inbound session of all published messages; see InboundSession.
    """

    max_messages: int
    max_bytes: int
    """The limits of a task's unconsumed messages, which one group may exceed."""
    can_route: Callable[[int], bool]
    on_space_freed: Callable[[], None]
    """Called when pop_ready() may return messages again."""
    waiting_messages: int = 0
    """Chosen messages of all sinks that are not in their queues yet."""
    _last_epochs: dict[Sink, LastEpoch] = field(default_factory=dict)
    _backlogs: dict[int, _Backlog] = field(default_factory=dict)
    _ready_tasks: dict[int, None] = field(default_factory=dict)
    sender_id = "sink"
    worker_number = 0
    awaits_releases = False

    def check_epoch(self, sink: Sink, epoch: int) -> None:
        """Raise StaleEpochError for a number below the sink's last epoch, or too far above it."""
        number = max(0, self._last(sink).epoch)
        if epoch < number:
            raise StaleEpochError(
                f"sink {sink[1]!r} has published epoch {number} already, which is after epoch {epoch}: its "
                "rows would be skipped as published; give the sink another name (a query: another "
                "checkpointLocation)"
            )
        if epoch > number + MAX_STEP:
            raise StaleEpochError(
                f"sink {sink[1]!r}: epoch {epoch} is too far ahead of {number}, the last one: all lower ones "
                f"would be refused from then on; use at most {number + MAX_STEP}"
            )

    def has_chosen(self, sink: Sink, epoch: int, attempt_id: str) -> bool:
        """Return True if an attempt was chosen before."""
        return attempt_id in self._epoch(sink, epoch).attempt_ids

    def _last(self, sink: Sink) -> LastEpoch:
        return self._last_epochs.get(sink) or LastEpoch(-1)

    def _epoch(self, sink: Sink, epoch: int) -> LastEpoch:
        last = self._last(sink)
        return last if last.epoch == epoch else LastEpoch(epoch)

    def is_current_run(self, sink: Sink, run: str) -> bool:
        """Return True if a run has begun here, and no other one since."""
        last = self._last(sink)
        return (last.started_run or last.run) == run

    def has_earlier_epoch(self, sink: Sink, epoch: int, run: str) -> bool:
        """Return True if a run has published an earlier epoch: then no earlier run has this epoch."""
        last = self._last(sink)
        return last.run == run and last.epoch < epoch

    def check_contents(
        self, sink: Sink, epoch: int, attempts: Iterable[Attempt], remote_contents: Mapping[int, TaskContent]
    ) -> dict[int, TaskContent]:
        """Return tasks' staged content. Raises StaleEpochError if one has the epoch with other messages."""
        known_contents = {**remote_contents, **self._epoch(sink, epoch).contents}
        staged = _contents(attempts)
        for task, new in staged.items():
            old = known_contents.get(task, new)
            # A content without messages is unknown; see TaskContent.
            if old.messages and old != new:
                raise StaleEpochError(
                    f"sink {sink[1]!r}: task {task} has received epoch {epoch} already, with other messages: "
                    f"{old.messages} of {old.size_bytes} bytes in total, and now there are {new.messages} of "
                    f"{new.size_bytes}. Nothing was published. The query's checkpoint is older than what was "
                    "published, or it computes other rows each time: continue from a newer checkpoint, or "
                    "choose another checkpointLocation"
                )
        return staged

    def register_run(self, sink: Sink, epoch: int, run: str) -> dict[int, TaskContent]:
        """Register a run; return the content of tasks that already have the epoch from an earlier run."""
        last = self._last(sink)
        last.started_run = run
        self._remember(sink, last)
        return self._epoch(sink, epoch).contents.copy()

    def choose(
        self,
        sink: Sink,
        epoch: int,
        attempt_ids: Iterable[str],
        attempts: Sequence[Attempt],
        run: str = "",
        remote_contents: Mapping[int, TaskContent] | None = None,
    ) -> tuple[int, list[StagedGroup]]:
        """Queue staged messages for publication, in order, except for tasks that have the epoch.

        `remote_contents`: the content of tasks that have the epoch from other workers. Returns the number of
        chosen messages, and the groups that were skipped.
        """
        last = self._epoch(sink, epoch)
        last.run = run
        last.contents.update(remote_contents or {})
        self._remember(sink, last)
        last.attempt_ids.update(attempt_ids)
        earlier_contents = last.contents.copy()
        # A task that has the epoch gets none of these messages, so its content stays.
        last.contents = _contents(attempts) | earlier_contents
        chosen = 0
        already_published: list[StagedGroup] = []
        for attempt in attempts:
            for staged in attempt.groups:
                # A task gets an epoch once, possibly from an earlier run.
                if staged.task in earlier_contents:
                    already_published.append(staged)
                    continue
                self._backlogs.setdefault(staged.task, _Backlog()).waiting.append((staged, last))
                self._ready_tasks[staged.task] = None
                chosen += staged.messages
            attempt.groups = []
        last.waiting_messages += chosen
        self.waiting_messages += chosen
        return chosen, already_published

    def _remember(self, sink: Sink, last: LastEpoch) -> None:
        # Moved to the end, because the sink that was used least recently is forgotten first.
        self._last_epochs.pop(sink, None)
        self._last_epochs[sink] = last
        sinks = {each: last for each, last in self._last_epochs.items() if each[0] == sink[0]}
        remembered = sum(1 + len(each.contents) + len(each.attempt_ids) for each in sinks.values())
        for each, candidate in list(sinks.items())[:-1]:
            if remembered <= MAX_OWNER_ENTRIES:
                break
            # An epoch with waiting messages is never forgotten: it still counts them.
            if not candidate.waiting_messages:
                del self._last_epochs[each]
                remembered -= 1 + len(candidate.contents) + len(candidate.attempt_ids)

    def reportable_epochs(self) -> list[SinkEpoch]:
        """Return the epochs that another run may request; at the limit, the latest sinks."""
        epochs: list[SinkEpoch] = []
        remaining_entries = MAX_OWNER_ENTRIES
        for (owner, name), last in reversed(self._last_epochs.items()):
            # No other run ever publishes an epoch without a run, so no worker needs to know it.
            if last.epoch < 0 or not (last.run or last.started_run):
                continue
            remaining_entries -= len(last.contents)
            if remaining_entries >= 0:
                epochs.append(SinkEpoch(identity=owner, sink=name, epoch=last.epoch, run=last.run))
                epochs[-1].tasks.extend(last.contents)
                epochs[-1].contents.extend(contents_to_wire(last.contents))
        return epochs

    def merge(self, sinks: Iterable[SinkEpoch]) -> None:
        """Adopt the epochs that a departed worker reported."""
        for each in sinks:
            sink, tasks = (each.identity, each.sink), contents_from_wire(each.tasks, each.contents)
            last = self._last(sink)
            if last.epoch < each.epoch:
                self._remember(sink, LastEpoch(each.epoch, each.run, last.started_run, tasks))
            elif last.epoch == each.epoch:
                # The content that was published here has priority.
                last.contents = {**tasks, **last.contents}

    def unpublished_by_task(self) -> dict[int, int]:
        """Return the number of chosen messages by task that are not in its queue."""
        waiting = {task: each.waiting for task, each in self._backlogs.items() if each.waiting}
        return {task: sum(staged.messages for staged, _ in groups) for task, groups in waiting.items()}

    def progress_of(self, sink: Sink, epoch: int) -> tuple[int, list[int]] | None:
        """Return the number of an epoch's waiting messages, and some tasks; None: none was chosen here."""
        last = self._epoch(sink, epoch)
        if not last.attempt_ids:
            return None
        backlogs = self._backlogs.items() if last.waiting_messages else ()
        tasks = [task for task, each in backlogs if any(chosen is last for _, chosen in each.waiting)]
        return last.waiting_messages, sorted(tasks)[:_MAX_REPORTED_TASKS]

    def pop_ready(self, max_read_bytes: int) -> list[ChosenGroup]:
        """Remove and return messages with space in their queue, about `max_read_bytes` of them from files."""
        ready_groups: list[ChosenGroup] = []
        for task in list(self._ready_tasks):
            backlog = self._backlogs[task]
            while backlog.waiting and self._has_space(backlog) and self.can_route(task):
                staged, last = chosen = backlog.waiting[0]
                if staged.group is None:
                    # The task stays ready: the next call continues to read its files.
                    if max_read_bytes <= 0:
                        break
                    max_read_bytes -= staged.length
                backlog.waiting.popleft()
                self._account(backlog, last, staged, 1)
                ready_groups.append(chosen)
            else:
                # choose(), release() and retry_waiting_tasks() make the task ready again.
                del self._ready_tasks[task]
        return ready_groups

    def _has_space(self, backlog: _Backlog) -> bool:
        return backlog.unreleased_messages < self.max_messages and backlog.unreleased_bytes < self.max_bytes

    def _account(self, backlog: _Backlog, last: LastEpoch, staged: StagedGroup, sign: int) -> None:
        backlog.unreleased_messages += sign * staged.messages
        backlog.unreleased_bytes += sign * (staged.group_bytes + LENGTH_BYTES * staged.messages)
        last.waiting_messages -= sign * staged.messages
        self.waiting_messages -= sign * staged.messages

    def put_back(self, unroutable: Sequence[ChosenGroup]) -> None:
        """Make messages wait again, as the first of their tasks, because no worker owns the tasks."""
        # In reverse, which restores the order.
        for staged, last in reversed(unroutable):
            backlog = self._backlogs[staged.task]
            backlog.waiting.appendleft((staged, last))
            self._account(backlog, last, staged, -1)

    def retry_waiting_tasks(self) -> bool:
        """Check every task again, because its owner may have changed. Return True if messages wait."""
        self._ready_tasks = {task: None for task, backlog in self._backlogs.items() if backlog.waiting}
        return bool(self._ready_tasks)

    def release(self, task: int, messages: int, size_bytes: int) -> None:
        """See InboundSession.release."""
        backlog = self._backlogs[task]
        backlog.unreleased_messages -= messages
        backlog.unreleased_bytes -= size_bytes + LENGTH_BYTES * messages
        if backlog.waiting:
            self._ready_tasks[task] = None
            self.on_space_freed()
        elif not backlog.unreleased_messages:
            del self._backlogs[task]


def _contents(attempts: Iterable[Attempt]) -> dict[int, TaskContent]:
    found: dict[int, TaskContent] = {}
    for attempt in attempts:
        for each in attempt.groups:
            content = TaskContent(each.messages, each.group_bytes, each.checksum)
            found[each.task] = found.get(each.task, TaskContent()).plus(content)
    return found
