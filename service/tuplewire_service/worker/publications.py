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
from tuplewire_service.worker.assignment import MOST_AHEAD
from tuplewire_service.worker.staging import Sink, Stage, StagedGroup

MAX_REMEMBERED = 100_000
"""Maximum number of sinks, tasks and attempts that are remembered for an owner; the oldest are forgotten."""
_SHOWN_TASKS = 10


@dataclass(slots=True, eq=False)
class LastEpoch:
    """The last epoch of a sink.

    Attributes:
        number: The epoch; -1 if none is known.
        run: The query run that published it.
        begun: A later run that has begun, and may publish; empty if there is none.
        tasks: The content of each task that has the epoch, on any worker.
        attempts: The attempts that were chosen here.
        waiting: Number of its messages that are not in queues yet.
    """

    number: int
    run: str = ""
    begun: str = ""
    tasks: dict[int, TaskContent] = field(default_factory=dict)
    attempts: set[str] = field(default_factory=set)
    waiting: int = 0


Chosen = tuple[StagedGroup, LastEpoch]
"""Messages of a task, and their epoch."""


@dataclass(slots=True, eq=False)
class _Line:
    """The messages that wait for a task's queue, and the amount in the queue."""

    waiting: deque[Chosen] = field(default_factory=deque)
    unreleased_messages: int = 0
    unreleased_bytes: int = 0


class Publications:
    """The last epoch of each sink, and the messages that wait for space. Call only from the event loop.

    Args:
        queue_messages, queue_bytes: Limits of a task's unconsumed messages, which one group may exceed.
        has_holder: Returns True if a worker owns a task.
        on_room: Called when take() may return messages again.

    The object is the inbound session of all published messages; see InboundSession.
    """

    sender_id = "sink"
    worker_number = 0
    needs_release_acks = False

    def __init__(
        self,
        queue_messages: int,
        queue_bytes: int,
        has_holder: Callable[[int], bool],
        on_room: Callable[[], None],
    ) -> None:
        self.on_room = on_room
        self._most_messages = queue_messages
        self._most_bytes = queue_bytes
        self._has_holder = has_holder
        self._last: dict[Sink, LastEpoch] = {}
        self._lines: dict[int, _Line] = {}
        self._ready: dict[int, None] = {}
        self.waiting_messages = 0
        """Chosen messages of all sinks that are not in their queues yet."""

    def check(self, sink: Sink, epoch: int) -> None:
        """Raise StaleEpochError for a number below the sink's last epoch, or too far above it."""
        last = self._last.get(sink)
        number = 0 if last is None else max(0, last.number)
        if epoch < number:
            raise StaleEpochError(
                f"sink {sink[1]!r} has published epoch {number} already, which is after epoch {epoch}: its "
                "rows would be taken for seen; give the sink another name (a query: another "
                "checkpointLocation)"
            )
        if epoch > number + MOST_AHEAD:
            raise StaleEpochError(
                f"sink {sink[1]!r}: epoch {epoch} is too far ahead of {number}, the last one: all lower ones "
                "would be lost from then on"
            )

    def has_chosen(self, sink: Sink, epoch: int, attempt: str) -> bool:
        """Return True if an attempt was chosen before."""
        last = self._of(sink, epoch)
        return last is not None and attempt in last.attempts

    def _of(self, sink: Sink, epoch: int) -> LastEpoch | None:
        last = self._last.get(sink)
        return last if last is not None and last.number == epoch else None

    def knows(self, sink: Sink, run: str) -> bool:
        """Return True if a run has begun here, and no other one since."""
        last = self._last.get(sink)
        return last is not None and (last.begun or last.run) == run

    def continues(self, sink: Sink, epoch: int, run: str) -> bool:
        """Return True if a run has published an earlier epoch: then no earlier run has this epoch."""
        last = self._last.get(sink)
        return last is not None and last.run == run and last.number < epoch

    def compare(
        self, sink: Sink, epoch: int, stages: Iterable[Stage], published: Mapping[int, TaskContent]
    ) -> dict[int, TaskContent]:
        """Return tasks' staged content. Raises StaleEpochError if one has the epoch with other messages."""
        last = self._of(sink, epoch)
        before = {**published, **(last.tasks if last is not None else {})}
        staged = _contents(stages)
        for task, now in staged.items():
            got = before.get(task, now)
            # A content without messages is unknown; see TaskContent.
            if got.messages and got != now:
                raise StaleEpochError(
                    f"sink {sink[1]!r}: task {task} has got epoch {epoch} already, with other messages: "
                    f"{got.messages} of {got.size_bytes} bytes in all, and now there are {now.messages} of "
                    f"{now.size_bytes}. Nothing was published. The query's checkpoint is older than what was "
                    "published, or it computes other rows each time: continue from a newer checkpoint, or "
                    "choose another checkpointLocation"
                )
        return staged

    def begin(self, sink: Sink, epoch: int, run: str) -> dict[int, TaskContent]:
        """Register a run; return the content of tasks that already have the epoch from an earlier run."""
        last = self._last.get(sink) or LastEpoch(-1)
        last.begun = run
        self._remember(sink, last)
        return dict(last.tasks if last.number == epoch else {})

    def choose(
        self,
        sink: Sink,
        epoch: int,
        attempts: Iterable[str],
        stages: Iterable[Stage],
        run: str = "",
        published: Mapping[int, TaskContent] | None = None,
    ) -> tuple[int, list[StagedGroup]]:
        """Publish staged messages in this order, except for tasks that already have the epoch.

        Args:
            run: The run that publishes.
            published: The content of tasks that have the epoch from other workers.

        Returns:
            The number of chosen messages, and the groups that were skipped.
        """
        last = self._of(sink, epoch) or LastEpoch(epoch)
        last.run = run
        last.tasks.update(published or {})
        self._remember(sink, last)
        last.attempts.update(attempts)
        before = last.tasks.copy()
        stages = list(stages)
        # A task that has the epoch gets none of these messages, so its content stays.
        last.tasks = _contents(stages) | before
        chosen = 0
        omitted: list[StagedGroup] = []
        for stage in stages:
            for staged in stage.groups:
                # A task gets an epoch once, possibly from an earlier run.
                if staged.task in before:
                    omitted.append(staged)
                    continue
                self._lines.setdefault(staged.task, _Line()).waiting.append((staged, last))
                self._ready[staged.task] = None
                chosen += staged.messages
            stage.groups = []
        last.waiting += chosen
        self.waiting_messages += chosen
        return chosen, omitted

    def _remember(self, sink: Sink, last: LastEpoch) -> None:
        # Moved to the end, because the sink that was used least recently is forgotten first.
        self._last.pop(sink, None)
        self._last[sink] = last
        sinks = {each: last for each, last in self._last.items() if each[0] == sink[0]}
        remembered = sum(1 + len(each.tasks) + len(each.attempts) for each in sinks.values())
        for each, gone in list(sinks.items())[:-1]:
            if remembered <= MAX_REMEMBERED:
                break
            # An epoch with waiting messages is never forgotten: it still counts them.
            if not gone.waiting:
                del self._last[each]
                remembered -= 1 + len(gone.tasks) + len(gone.attempts)

    def known(self) -> list[SinkEpoch]:
        """Return the epochs that another run may request; at the limit, the latest sinks."""
        found: list[SinkEpoch] = []
        room = MAX_REMEMBERED
        for (owner, name), last in reversed(self._last.items()):
            # Without a run, no other run ever publishes the epoch.
            if last.number < 0 or not (last.run or last.begun):
                continue
            room -= len(last.tasks)
            if room >= 0:
                epoch = SinkEpoch(owner=owner, sink=name, epoch=last.number, tasks=last.tasks, run=last.run)
                epoch.contents.extend(contents_to_wire(last.tasks))
                found.append(epoch)
        return found

    def learn(self, sinks: Iterable[SinkEpoch]) -> None:
        """Adopt the epochs that a departed worker reported."""
        for each in sinks:
            sink, tasks = (each.owner, each.sink), contents_from_wire(each.tasks, each.contents)
            last = self._last.get(sink)
            if last is None or last.number < each.epoch:
                begun = "" if last is None else last.begun
                self._remember(sink, LastEpoch(each.epoch, each.run, begun, tasks))
            elif last.number == each.epoch:
                # The content that was published here has priority.
                last.tasks = {**tasks, **last.tasks}

    def unpublished(self) -> dict[int, int]:
        """Return the number of chosen messages by task that are not in its queue."""
        lines = self._lines.items()
        return {task: sum(each.messages for each, _ in line.waiting) for task, line in lines if line.waiting}

    def waiting(self, sink: Sink, epoch: int) -> tuple[int, list[int]] | None:
        """Return the number of an epoch's waiting messages, and some tasks; None: none was chosen here."""
        last = self._of(sink, epoch)
        if last is None or not last.attempts:
            return None
        tasks = [
            task
            for task, line in self._lines.items()
            if last.waiting and line.waiting and any(epoch is last for _, epoch in line.waiting)
        ]
        return last.waiting, sorted(tasks)[:_SHOWN_TASKS]

    def take(self, read_bytes: int) -> list[Chosen]:
        """Remove and return messages with space in their queue, in order; about `read_bytes` from files."""
        taken: list[Chosen] = []
        for task in list(self._ready):
            line = self._lines[task]
            while line.waiting and self._has_room(line) and self._has_holder(task):
                staged, last = chosen = line.waiting[0]
                if staged.group is None:
                    # The task stays ready: the next call continues to read its files.
                    if read_bytes <= 0:
                        break
                    read_bytes -= staged.length
                line.waiting.popleft()
                self._count(line, last, staged, 1)
                taken.append(chosen)
            else:
                # choose(), release() and retry_full_tasks() make the task ready again.
                del self._ready[task]
        return taken

    def _has_room(self, line: _Line) -> bool:
        return line.unreleased_messages < self._most_messages and line.unreleased_bytes < self._most_bytes

    def _count(self, line: _Line, last: LastEpoch, staged: StagedGroup, sign: int) -> None:
        line.unreleased_messages += sign * staged.messages
        line.unreleased_bytes += sign * (staged.group_bytes + LENGTH_BYTES * staged.messages)
        last.waiting -= sign * staged.messages
        self.waiting_messages -= sign * staged.messages

    def put_back(self, refused: Sequence[Chosen]) -> None:
        """Make messages wait again, as the first of their tasks, because no worker owns the tasks."""
        # In reverse, which restores the order.
        for staged, last in reversed(refused):
            line = self._lines[staged.task]
            line.waiting.appendleft((staged, last))
            self._count(line, last, staged, -1)

    def retry_full_tasks(self) -> bool:
        """Check every task again, because its owner may have changed. Return True if messages wait."""
        self._ready = {task: None for task, line in self._lines.items() if line.waiting}
        return bool(self._ready)

    def release(self, task: int, messages: int, size_bytes: int) -> None:
        """See InboundSession.release."""
        line = self._lines[task]
        line.unreleased_messages -= messages
        line.unreleased_bytes -= size_bytes + LENGTH_BYTES * messages
        if line.waiting:
            self._ready[task] = None
            self.on_room()
        elif not line.unreleased_messages:
            del self._lines[task]


def _contents(stages: Iterable[Stage]) -> dict[int, TaskContent]:
    found: dict[int, TaskContent] = {}
    for stage in stages:
        for each in stage.groups:
            content = TaskContent(each.messages, each.group_bytes, each.checksum)
            found[each.task] = found.get(each.task, TaskContent()).plus(content)
    return found
