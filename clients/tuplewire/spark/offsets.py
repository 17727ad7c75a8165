"""The position of a query in each task, as Spark's checkpoint stores it; pure functions on values.

The input is the state of the workers, the output the ranges to read. Used by the readers, range_reader.py,
task_workers.py, and programs that call tuplewire.spark.lag(). Owns no state. Thread-safe.
Design: docs/design/readers.md.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from tuplewire.errors import ConfigError, TuplewireError
from tuplewire.spark.entry_runs import EntryRuns, LastSequences, count_messages, filter_redeliverable, merge

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

LAG_KEY = "lag"
"""The key of a latest offset with the number of unplanned messages, by task; for display only."""


class DataLossError(TuplewireError):
    """Messages that a query has not read, or not committed, are no longer available."""


@dataclass(frozen=True, slots=True)
class TaskOffset:
    """A position in one task's sequence.

    Attributes:
        worker: The incarnation (a number) of the worker that assigns the sequence.
        sequence: The last message before the position; 0: none.
        address: That worker's address.
        entries: Messages before the position that were not acknowledged at that worker, by entry worker.
        before: Messages that were read at other workers and may be redelivered at this one.
        messages: The number of messages since the previous position.
        first: The position before these messages: Spark may repeat the first micro-batch from a later start.
    """

    worker: int
    sequence: int
    address: str = ""
    entries: LastSequences = field(default_factory=dict)
    before: LastSequences = field(default_factory=dict)
    messages: int = 0
    first: int | None = None

    @property
    def passed(self) -> dict[int, int]:
        """The messages that were read, by entry worker: these numbers are valid on every worker."""
        return merge(self.before, self.entries)

    def to_json(self) -> dict[str, Any]:
        """Return the value that Spark stores as JSON, without empty fields."""
        values = ((each.name, getattr(self, each.name)) for each in fields(self))
        return {name: value for name, value in values if value not in ("", {}, None)}

    @classmethod
    def from_json(cls, offset: Mapping[str, Any]) -> TaskOffset:
        """Return the object for a value of to_json(), in which JSON has made the keys strings."""
        last_sequences = {
            name: {int(worker): last for worker, last in offset.get(name, {}).items()}
            for name in ("entries", "before")
        }
        return cls(**{**offset, **last_sequences})


@dataclass(frozen=True, slots=True)
class QueueState:
    """The messages of a task on a worker: those after `acknowledged`, up to `tail`.

    worker: the worker's incarnation. congested: True if the queue is nearly full. start: the sequence after
    which the task's messages start there. consumer: the subscribed consumer; empty: none.
    """

    worker_id: str
    address: str
    worker: int
    acknowledged: int
    tail: int
    size_bytes: int
    congested: bool = False
    start: int = 0
    consumer: str = ""


QueueStates: TypeAlias = Mapping[int, QueueState]


@dataclass(frozen=True, slots=True)
class ReadRange:
    """Messages of one task that one Spark task must read: after the sequence `start`, up to `end`.

    worker_id: the id of the worker of `end`. after: by entry worker, the messages read before them. runs:
    their numbers at the worker; None: the worker no longer has them.
    """

    task: int
    worker_id: str
    start: int
    end: TaskOffset
    after: LastSequences
    runs: EntryRuns | None


@dataclass(frozen=True, slots=True)
class Offset:
    """A position in each task."""

    offsets: Mapping[int, TaskOffset]

    def to_json(self) -> dict[str, Any]:
        """Return the value that Spark stores."""
        return {"tasks": {str(task): offset.to_json() for task, offset in self.offsets.items()}}

    @classmethod
    def from_json(cls, offset: Mapping[str, Any]) -> Offset:
        """Return the object for a value of to_json()."""
        return cls({int(task): TaskOffset.from_json(each) for task, each in offset["tasks"].items()})

    def relocate_to(self, states: QueueStates) -> Offset:
        """Return the position in only these tasks, at their current workers.

        A new task starts as in initial_offset(). A task that has moved starts at the start of its messages on
        the new worker; `before` contains its messages that were read.
        """
        offsets = {}
        for task, each in states.items():
            offset = self.offsets.get(task)
            if offset is None:
                offset = TaskOffset(each.worker, each.acknowledged, each.address, first=each.acknowledged)
            elif has_moved(offset, each):
                passed = offset.passed
                offset = TaskOffset(each.worker, each.start, each.address, before=passed, first=each.start)
            offsets[task] = offset
        return Offset(offsets)


def has_moved(offset: TaskOffset, state: QueueState) -> bool:
    """Return True if a task has moved since the offset, perhaps there and back."""
    if offset.worker != state.worker or offset.sequence < state.start:
        return True
    # Messages were read before the start of the task's messages here: the task has been away and come back.
    return offset.sequence == state.start and bool(offset.entries)


def initial_offset(states: QueueStates, latest: Container[int] = ()) -> Offset:
    """Return the position before all unacknowledged messages; in the tasks `latest`, after them."""
    after = {task: each.tail if task in latest else each.acknowledged for task, each in states.items()}
    return Offset({task: TaskOffset(each.worker, after[task], each.address) for task, each in states.items()})


def end_offsets(states: QueueStates) -> dict[int, TaskOffset]:
    """Return the position after all messages."""
    return {task: TaskOffset(each.worker, each.tail, each.address) for task, each in states.items()}


def check_not_consumed(start: Offset, states: QueueStates) -> None:
    """Raise DataLossError if another consumer has acknowledged messages after `start`; see relocate_to()."""
    for task, each in states.items():
        offset = start.offsets[task]
        if each.acknowledged > offset.sequence or each.tail < offset.sequence:
            raise DataLossError(
                f"task {task} is acknowledged up to {each.acknowledged} of {each.tail}, and this query "
                f"is at {offset.sequence}: another program consumes the task, or the checkpoint is an "
                "old copy. Give each query tasks of its own, and start it from its newest checkpoint; or set "
                "failOnDataLoss=false to continue with the rest"
            )


@dataclass(frozen=True, slots=True)
class PreviousOwner:
    """The final state of a task at a previous owner, which no longer forwards messages.

    dropped_messages: at its clean shutdown. exited_uncleanly: it has exited without a known clean shutdown.
    """

    dropped_messages: int = 0
    exited_uncleanly: bool = False

    @property
    def has_lost(self) -> bool:
        """True if messages were lost with this worker."""
        return self.exited_uncleanly or self.dropped_messages > 0


def loss_error(task: int, offset: TaskOffset, previous_owner: PreviousOwner, unread: int) -> DataLossError:
    """Return the error for messages lost with a previous owner; unread: the number at the last poll."""
    if previous_owner.dropped_messages:
        why = "shut down while no worker could accept its messages"
        loss = f"up to {previous_owner.dropped_messages} messages"
    else:
        why = "restarted or failed without a clean shutdown"
        loss = f"{unread} unread messages and any that arrived after the last poll"
    return DataLossError(
        f"task {task} was at a worker ({offset.address}) that {why}: {loss} are lost or redelivered. "
        "Set failOnDataLoss=false to continue with the rest"
    )


def check_still_assigned(tasks: Iterable[int], states: QueueStates) -> None:
    """Raise DataLossError if a task that a query has to read is no longer assigned."""
    if lost := sorted(task for task in tasks if task not in states)[:10]:
        raise DataLossError(
            f"task {', '.join(map(str, lost))} is no longer assigned, and its unread messages are lost. Set "
            "failOnDataLoss=false to continue without them"
        )


def check_removed(start: Offset, states: QueueStates) -> None:
    """Raise ConfigError if a query stops reading tasks (`states`) that still have unread messages."""
    unread = {}
    for task, each in states.items():
        offset = start.offsets[task]
        read = 0 if has_moved(offset, each) else offset.sequence
        if (count := each.tail - max(each.acknowledged, read)) > 0:
            unread[task] = count
    if unread:
        shown = ", ".join(f"task {task} holds {count}" for task, count in sorted(unread.items())[:10])
        raise ConfigError(
            f"the query stops reading {len(unread)} of the tasks in its checkpoint, and has not read "
            f"{sum(unread.values())} of their messages: {shown}. Read them first (start the query with these "
            "tasks as well), let another program consume them, or set "
            "failOnDataLoss=false to leave them where they are"
        )


def next_offset(
    start: Offset,
    states: QueueStates,
    *,
    target: Mapping[int, TaskOffset] | None = None,
    min_messages: int = 1,
    max_messages: int | None = None,
    max_bytes: int | None = None,
) -> Offset:
    """Return the end of a micro-batch that starts at `start`; `start` itself if it reads nothing.

    target: the last position to read in each task; tasks that were assigned later are not read. With fewer
    than min_messages in all tasks together, nothing is read, unless a queue is nearly full. max_messages,
    max_bytes: limits for all tasks together, divided in proportion to their waiting messages. Bytes are
    estimated from the mean size of a task's messages at its worker; at least one message is read.
    """
    begins = {task: each.acknowledged for task, each in states.items()}
    for task, offset in start.offsets.items():
        if task in states and offset.worker == states[task].worker:  # another incarnation has a new numbering
            begins[task] = max(begins[task], offset.sequence)
    bounds = end_offsets(states) if target is None else {**start.offsets, **target}
    ends = {
        task: min(each.tail, bounds[task].sequence) if bounds[task].worker == each.worker else each.tail
        for task, each in states.items()
    }
    waiting = {task: max(0, ends[task] - begins[task]) for task in states}
    # With a congested queue, senders wait, so fewer messages than min_messages may be all that can arrive.
    if sum(waiting.values()) < min_messages and not any(each.congested for each in states.values()):
        return start
    if max_bytes is not None:
        sizes = {task: now.size_bytes / max(1, now.tail - now.acknowledged) for task, now in states.items()}
        total = sum(waiting[task] * sizes[task] for task in states)
        if total > max_bytes:
            fitting = int(sum(waiting.values()) * max_bytes / total)
            max_messages = max(1, fitting if max_messages is None else min(fitting, max_messages))
    counts = waiting if max_messages is None else divide_limit(waiting, max_messages)
    if not any(counts.values()):
        return start
    offsets = {
        task: TaskOffset(each.worker, begins[task] + counts[task], each.address)
        if counts[task]
        else start.offsets[task]
        for task, each in states.items()
    }
    return Offset(offsets)


def divide_limit(waiting: Mapping[int, int], limit: int) -> dict[int, int]:
    """Divide a limit in proportion to the waiting messages; if they are fewer, return all of them."""
    total = sum(waiting.values())
    if total <= limit:
        return dict(waiting)
    shares = {task: count * limit // total for task, count in waiting.items()}
    remainder = limit - sum(shares.values())
    # The largest remainders get one more, so that a task with few messages is not skipped indefinitely.
    for task in sorted(waiting, key=lambda task: waiting[task] * limit % total, reverse=True)[:remainder]:
        shares[task] += 1
    return shares


def add_entry_sequences(start: Offset, end: Offset, runs: Mapping[int, EntryRuns]) -> Offset:
    """Return the end of a micro-batch with the numbers of entry workers, which stay valid after a move.

    start: the start of the micro-batch at the current workers. end: also one with these numbers, which was
    planned from another start, perhaps before a move. runs: the entry runs, by task.
    """
    offsets = dict(end.offsets)
    for task, each in runs.items():
        offset, last = start.offsets[task], end.offsets[task]
        is_here = last.worker == offset.worker and last.sequence >= offset.sequence
        entries = each.last_sequences(last.sequence) if is_here and last.first is None else last.entries
        bound = last.sequence if is_here else sys.maxsize
        messages = count_messages(each.unread_ranges(offset.sequence, bound, offset.before, entries))
        offsets[task] = replace(
            last,
            entries=entries,
            before=filter_redeliverable(offset.before, entries),
            messages=messages,
            first=max(each.first_sequence - 1, offset.sequence) if is_here else last.sequence - messages,
        )
    return Offset(offsets)


def task_ends(start: Offset, end: Offset) -> dict[int, TaskOffset]:
    """Return the end of each task from which a micro-batch reads messages."""
    return {
        task: last
        for task, last in end.offsets.items()
        if last != (first := start.offsets.get(task)) and last.sequence > _start(first, last)
    }


def _start(first: TaskOffset | None, last: TaskOffset) -> int:
    """Return the sequence after which a micro-batch reads, at the worker that owns its end."""
    if last.first is not None:
        return last.first
    return 0 if first is None else first.sequence


def ranges(start: Offset, end: Offset, states: QueueStates, runs: Mapping[int, EntryRuns]) -> list[ReadRange]:
    """Return the ranges of a micro-batch.

    states: the states of tasks; a task that is no longer assigned is skipped. runs: the messages' numbers at
    the workers of the end. A task without runs has moved since: its messages are found by these numbers.
    """
    planned = []
    for task, last in task_ends(start, end).items():
        if (each := states.get(task)) is not None:
            first = start.offsets.get(task) or TaskOffset(each.worker, 0)
            begin = _start(first, last)
            current_runs = runs.get(task) if each.worker == last.worker else None
            planned.append(ReadRange(task, each.worker_id, begin, last, first.passed, current_runs))
    return planned


def lag(query: StreamingQuery | StreamingQueryProgress | Mapping[str, Any]) -> dict[int, int]:
    """Return the number of messages after a query's last micro-batch, by task, when it was planned.

    The numbers are from `sources[].latestOffset`: Spark fills `metrics` only for sources in its JVM.

    Args:
        query: A query, or its progress: an element of recentProgress, or a listener's `event.progress`.

    Returns:
        The sum over all sources of this format, by task. Empty before the first progress.
    """
    progress: Any = getattr(query, "lastProgress", query)
    lags: Counter[int] = Counter()
    for source in progress["sources"] if progress else ():
        latest = source["latestOffset"]
        offset = json.loads(latest) if isinstance(latest, str) else latest
        if isinstance(offset, dict) and isinstance(offset.get("tasks"), dict):
            lags.update({int(task): behind for task, behind in offset.get(LAG_KEY, {}).items()})
    return dict(lags)
