"""Publications of sinks: chosen messages on their way into queues, as these have room, once for each task.

A sink that does not know whether its last epoch came through publishes it again. No message is seen twice.
Pure state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tuplewire.errors import StaleEpochError
from tuplewire.session.departure import SinkEpoch, TaskContent
from tuplewire.session.pieces import LENGTH_BYTES
from tuplewire_service.worker.staging import Sink, Stage, StagedGroup

MAX_REMEMBERED = 100_000
"""Of an owner's sinks the last epoch is remembered; with so many tasks and attempts in all, the latest."""
MOST_AHEAD = 2**32
"""So far an epoch may be ahead of the last one. A count of batches does not jump by more; a slip may."""
_SHOWN_TASKS = 10


@dataclass(slots=True, eq=False)
class LastEpoch:
    """The last epoch of a sink: -1 if none is known.

    run: of the sink's query, which has published last. tasks: what those got that have the epoch, wherever
    they got it. attempts: those that were chosen here. waiting: how many of their messages are not in queues.
    """

    number: int
    run: str = ""
    tasks: dict[int, TaskContent] = field(default_factory=dict)
    attempts: set[str] = field(default_factory=set)
    waiting: int = 0


Chosen = tuple[StagedGroup, LastEpoch]
"""Messages of a task, and the epoch that they belong to."""


@dataclass(slots=True, eq=False)
class _Line:
    """What waits for a task's queue, and what is in it."""

    waiting: deque[Chosen] = field(default_factory=deque)
    unreleased_messages: int = 0
    unreleased_bytes: int = 0


class Publications:
    """The last epoch of each sink, and the messages that wait for room. Belongs to the event loop.

    queue_messages, queue_bytes: what may be published to a task and not consumed; one group more may be.
    has_holder: returns whether anybody holds a task. on_room: called when take() may return something again.

    The object is the inbound session of all published messages: see InboundSession.
    """

    source = sender_id = "sink"
    worker_number = 0
    wants_releases = False

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
        self._last: dict[str, dict[str, LastEpoch]] = {}
        self._lines: dict[int, _Line] = {}
        self._ready: dict[int, None] = {}
        self.waiting_messages = 0
        """Chosen messages, of all sinks, that are not in their queues yet."""

    def check(self, sink: Sink, epoch: int) -> None:
        """Raise StaleEpochError for a number that is below the sink's last one, or far above."""
        owner, name = sink
        last = self._last.get(owner, {}).get(name)
        number = 0 if last is None else max(0, last.number)
        if epoch < number:
            raise StaleEpochError(
                f"sink {name!r} has published epoch {number} already, which is after epoch {epoch}: its rows "
                "would be taken for seen; give the sink another name (a query: another checkpointLocation)"
            )
        if epoch > number + MOST_AHEAD:
            raise StaleEpochError(
                f"sink {name!r}: epoch {epoch} is too far ahead of {number}, the last one: all lower ones "
                "would be lost from then on"
            )

    def has_chosen(self, sink: Sink, epoch: int, attempt: str) -> bool:
        """Whether an attempt was chosen before."""
        last = self._of(sink, epoch)
        return last is not None and attempt in last.attempts

    def _of(self, sink: Sink, epoch: int) -> LastEpoch | None:
        last = self._last.get(sink[0], {}).get(sink[1])
        return last if last is not None and last.number == epoch else None

    def knows(self, sink: Sink, run: str) -> bool:
        """Whether a run has begun here."""
        last = self._last.get(sink[0], {}).get(sink[1])
        return last is not None and last.run == run

    def compare(
        self, sink: Sink, epoch: int, stages: Iterable[Stage], published: Mapping[int, TaskContent]
    ) -> dict[int, TaskContent]:
        """Return the staged content of each task.

        Raises StaleEpochError where a task has the epoch with other messages, here or by `published`.
        """
        last = self._of(sink, epoch)
        before = {**published, **(last.tasks if last is not None else {})}
        staged = _contents(stages)
        for task, now in staged.items():
            got = before.get(task, now)
            if got.messages and got != now:
                raise StaleEpochError(
                    f"sink {sink[1]!r}: task {task} has got epoch {epoch} already, with other messages: "
                    f"{got.messages} of {got.size_bytes} bytes in all, and now there are {now.messages} of "
                    f"{now.size_bytes}. Nothing was published. The query's checkpoint is older than what was "
                    "published, or it computes other rows each time: go on from a newer checkpoint, or "
                    "choose another checkpointLocation"
                )
        return staged

    def begin(self, sink: Sink, epoch: int, run: str) -> dict[int, TaskContent]:
        """Make a run known; return the content of tasks that have the epoch already, from an earlier run."""
        last = self._last.get(sink[0], {}).get(sink[1]) or LastEpoch(-1)
        last.run = run
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
        """Publish what was staged, in this order, but for tasks that have the epoch.

        run: that publishes. published: the content of tasks that have the epoch from other workers. Returns
        how many messages were chosen, and the groups that are left out.
        """
        last = self._of(sink, epoch) or LastEpoch(epoch)
        last.run = run
        last.tasks.update(published or {})
        self._remember(sink, last)
        last.attempts.update(attempts)
        before = last.tasks.copy()
        stages = list(stages)
        last.tasks = _contents(stages) | before
        chosen = 0
        left_out: list[StagedGroup] = []
        for stage in stages:
            for staged in stage.groups:
                if staged.task in before:
                    left_out.append(staged)
                    continue
                self._lines.setdefault(staged.task, _Line()).waiting.append((staged, last))
                self._ready[staged.task] = None
                chosen += staged.messages
            stage.groups = []
        last.waiting += chosen
        self.waiting_messages += chosen
        return chosen, left_out

    def _remember(self, sink: Sink, last: LastEpoch) -> None:
        owner, name = sink
        sinks = self._last.setdefault(owner, {})
        sinks.pop(name, None)
        sinks[name] = last
        remembered = sum(1 + len(each.tasks) + len(each.attempts) for each in sinks.values())
        for name in list(sinks)[:-1]:
            if remembered <= MAX_REMEMBERED:
                break
            if not sinks[name].waiting:
                gone = sinks.pop(name)
                remembered -= 1 + len(gone.tasks) + len(gone.attempts)

    def known(self) -> list[SinkEpoch]:
        """Return what another run may ask for; with very many tasks in all, of each owner's latest sinks."""
        found: list[SinkEpoch] = []
        room = MAX_REMEMBERED
        for owner, sinks in self._last.items():
            for name, last in reversed(sinks.items()):
                if last.number < 0 or not last.run:
                    continue
                room -= len(last.tasks)
                if room >= 0:
                    found.append(SinkEpoch(owner, name, last.number, dict(last.tasks), last.run))
        return found

    def learn(self, sinks: Iterable[SinkEpoch]) -> None:
        """Take for ours what a worker has remembered that has ended."""
        for each in sinks:
            sink = each.owner, each.name
            last = self._last.get(each.owner, {}).get(each.name)
            if last is None or last.number < each.epoch:
                self._remember(sink, LastEpoch(each.epoch, each.run, dict(each.tasks)))
            elif last.number == each.epoch:
                last.tasks = {**each.tasks, **last.tasks}

    def unpublished(self) -> dict[int, int]:
        """Return for each task how many chosen messages are not in its queue."""
        lines = self._lines.items()
        return {task: sum(each.messages for each, _ in line.waiting) for task, line in lines if line.waiting}

    def waiting(self, sink: Sink, epoch: int) -> tuple[int, list[int]] | None:
        """Return how many messages of an epoch wait, and some of their tasks; None: none was chosen here."""
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
        """Take out, in order for each task, what has room; of what is in files, about so many bytes."""
        taken: list[Chosen] = []
        for task in list(self._ready):
            line = self._lines[task]
            while line.waiting and self._has_room(line) and self._has_holder(task):
                staged, last = chosen = line.waiting[0]
                if staged.group is None:
                    if read_bytes <= 0:
                        break
                    read_bytes -= staged.length
                line.waiting.popleft()
                self._count(line, last, staged, 1)
                taken.append(chosen)
            else:
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
        """Have messages wait again, before all others of their tasks: nobody holds these any more."""
        for staged, last in reversed(refused):
            line = self._lines[staged.task]
            line.waiting.appendleft((staged, last))
            self._count(line, last, staged, -1)

    def look_again(self) -> bool:
        """Look at every task again: who holds it may have changed. Return whether anything waits."""
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
    """Return the content of each task in some attempts."""
    found: dict[int, TaskContent] = {}
    for stage in stages:
        for each in stage.groups:
            content = TaskContent(each.messages, each.group_bytes, each.checksum)
            found[each.task] = found.get(each.task, TaskContent()).plus(content)
    return found
