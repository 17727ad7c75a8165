"""Where a query stands: a offset in each task's sequence, as Spark's checkpoint keeps it.

Pure: what there is comes in, what to read goes out.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tuplewire.errors import ConfigError, TuplewireError


class DataLossError(TuplewireError):
    """Messages that a query has not read, or not committed, are not where it left them."""


@dataclass(frozen=True, slots=True)
class TaskOffset:
    """A place in one task's sequence.

    worker: the incarnation of the worker that counts. sequence: of the last message before it; 0: none.
    """

    worker: int
    sequence: int


@dataclass(frozen=True, slots=True)
class Held:
    """What a worker holds of a task: the messages after `acknowledged`, up to `tail`.

    worker: its incarnation. congested: whether the queue is nearly full.
    """

    address: str
    worker_id: str
    worker: int
    acknowledged: int
    tail: int
    size_bytes: int
    congested: bool = False


@dataclass(frozen=True, slots=True)
class Range:
    """Messages of one task to be read by one Spark task: after `start`, up to `end`."""

    task: int
    address: str
    worker_id: str
    worker: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Offset:
    """A offset in each task."""

    offsets: Mapping[int, TaskOffset]

    def to_json(self) -> dict[str, Any]:
        """Return what Spark keeps."""
        return {"tasks": {str(task): asdict(offset) for task, offset in self.offsets.items()}}

    @classmethod
    def from_json(cls, offset: Mapping[str, Any]) -> Offset:
        """Read what to_json() wrote."""
        return cls({int(task): TaskOffset(**each) for task, each in offset["tasks"].items()})

    def of_tasks(self, held: Mapping[int, Held]) -> Offset:
        """Return the place in these tasks alone; new ones begin where initial_offset() says."""
        if self.offsets.keys() == held.keys():
            return self
        offsets = {task: self.offsets.get(task) or _beginning(each) for task, each in held.items()}
        return Offset(offsets)


def _beginning(held: Held) -> TaskOffset:
    return TaskOffset(held.worker, held.acknowledged)


def initial_offset(held: Mapping[int, Held], latest: Container[int] = ()) -> Offset:
    """Return the place before everything that no consumer has acknowledged; in tasks `latest`, after it."""
    ends = tails(held)
    return Offset({task: ends[task] if task in latest else _beginning(each) for task, each in held.items()})


def tails(held: Mapping[int, Held]) -> dict[int, TaskOffset]:
    """Return the place after everything that is there."""
    return {task: TaskOffset(each.worker, each.tail) for task, each in held.items()}


def check_held(start: Offset, held: Mapping[int, Held]) -> None:
    """Raise DataLossError unless the workers still hold everything after an offset."""
    for task, each in held.items():
        offset = start.offsets[task]
        if offset.worker != each.worker:
            raise DataLossError(
                f"task {task} is at a worker that has been restarted, or has moved to another one "
                f"({each.address}): what this query has not committed may be lost, or come again. "
                "Set failOnDataLoss=false to go on with what that worker holds"
            )
        if each.acknowledged > offset.sequence or each.tail < offset.sequence:
            raise DataLossError(
                f"task {task} is acknowledged up to {each.acknowledged} of {each.tail}, and this query "
                f"stands at {offset.sequence}: somebody else consumes the task. A task has "
                "one consumer: give each query tasks of its own, or set failOnDataLoss=false to go on with "
                "what is left"
            )


def check_dropped(start: Offset, held: Mapping[int, Held], tasks: Collection[int]) -> None:
    """Raise ConfigError where a query stops reading tasks of which it has not read everything.

    held: what there is of those that it stops reading. tasks: those that it goes on with.
    """
    left = {}
    for task, each in held.items():
        offset = start.offsets[task]
        read = offset.sequence if offset.worker == each.worker else 0
        if (count := each.tail - max(each.acknowledged, read)) > 0:
            left[task] = count
    if left:
        shown = ", ".join(f"task {task} holds {count}" for task, count in sorted(left.items())[:10])
        raise ConfigError(
            f"the query stops reading {len(left)} of the tasks in its checkpoint, and has not read "
            f"{sum(left.values())} of their messages: {shown}. Read them first (start the query with these "
            f"tasks as well as {sorted(tasks)[:10]}), let another program consume them, or set "
            "failOnDataLoss=false to leave them where they are"
        )


def check_there(start: Offset, end: Offset, held: Mapping[int, Held]) -> None:
    """Raise DataLossError where a micro-batch has messages of a task that is nowhere any more."""
    gone = [task for task in end.offsets if task not in held and start.offsets.get(task) != end.offsets[task]]
    if gone:
        raise DataLossError(
            f"the micro-batch that comes next has messages of tasks that no assignment has any more: "
            f"{sorted(gone)[:10]}. They are gone with them: set failOnDataLoss=false to go on"
        )


def next_offset(
    start: Offset,
    held: Mapping[int, Held],
    bounds: Mapping[int, TaskOffset],
    *,
    min_messages: int = 1,
    max_messages: int | None = None,
    max_bytes: int | None = None,
) -> Offset:
    """Return where a micro-batch that begins at start ends: start itself when there is nothing to read.

    bounds: where each task is to be read to at most. min_messages: with fewer in all tasks together there is
    nothing to read, but where senders wait for room. max_messages, max_bytes: of all tasks together, in
    proportion to what waits in each. Bytes go by the mean size of what a task's worker holds, and at least
    one message is read.
    """
    begins = {task: each.acknowledged for task, each in held.items()}
    for task, offset in start.offsets.items():
        if task in held and offset.worker == held[task].worker:  # another incarnation counts anew
            begins[task] = max(begins[task], offset.sequence)
    ends = {
        task: min(each.tail, bounds[task].sequence) if bounds[task].worker == each.worker else each.tail
        for task, each in held.items()
    }
    waiting = {task: max(0, ends[task] - begins[task]) for task in held}
    if sum(waiting.values()) < min_messages and not any(each.congested for each in held.values()):
        return start
    if max_bytes is not None:
        sizes = {task: each.size_bytes / max(1, each.tail - each.acknowledged) for task, each in held.items()}
        total = sum(waiting[task] * sizes[task] for task in held)
        if total > max_bytes:
            fitting = int(sum(waiting.values()) * max_bytes / total)
            max_messages = max(1, fitting if max_messages is None else min(fitting, max_messages))
    taken = waiting if max_messages is None else share(waiting, max_messages)
    if not any(taken.values()):
        return start
    offsets = {
        task: TaskOffset(each.worker, begins[task] + taken[task]) if taken[task] else start.offsets[task]
        for task, each in held.items()
    }
    return Offset(offsets)


def share(waiting: Mapping[int, int], bound: int) -> dict[int, int]:
    """Divide a bound in proportion to what waits; the sum is the bound, or all that waits if that is less."""
    total = sum(waiting.values())
    if total <= bound:
        return dict(waiting)
    shares = {task: count * bound // total for task, count in waiting.items()}
    left = bound - sum(shares.values())
    # By what was rounded off, so that a task with little waiting is not left out for ever.
    for task in sorted(waiting, key=lambda task: waiting[task] * bound % total, reverse=True)[:left]:
        shares[task] += 1
    return shares


def ranges(start: Offset, end: Offset, held: Mapping[int, Held]) -> list[Range]:
    """Return what a micro-batch reads; from the beginning where the worker is not that of the start.

    held: where the tasks are; one that is nowhere any more is left out. Of a task that is new to the query,
    what nobody has acknowledged is read.
    """
    found = []
    for task, last in end.offsets.items():
        if task not in held:
            continue
        first = start.offsets.get(task) or _beginning(held[task])
        begin = first.sequence if first.worker == last.worker else 0
        if last.sequence > begin:
            at = held[task].address, held[task].worker_id
            found.append(Range(task, *at, last.worker, begin, last.sequence))
    return found
