"""Where a query stands: a offset in each task's sequence, as Spark's checkpoint keeps it.

Pure: what there is comes in, what to read goes out.
"""

from __future__ import annotations

import enum
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tuplewire.errors import ConfigError, TuplewireError
from tuplewire.spark.entry_runs import Runs, Vector, count, merged, still_to_come

LAG = "lag"
"""Beside the tasks of a latest offset, for people: by task, how many messages are there behind the query."""


class DataLossError(TuplewireError):
    """Messages that a query has not read, or not committed, are not where it left them."""


@dataclass(frozen=True, slots=True)
class TaskOffset:
    """A place in one task's sequence.

    worker: the incarnation of the worker that counts. sequence: of the last message before it; 0: none.
    address: where that worker was. entries: the messages before it that were not acknowledged at that worker,
    by their entry workers. before: what was read at other workers, and may come again at this one. messages:
    how many there are from the place before it to this one. first: where the place before it is at this
    worker, if that was of another one.
    """

    worker: int
    sequence: int
    address: str = ""
    entries: Vector = field(default_factory=dict)
    before: Vector = field(default_factory=dict)
    messages: int = 0
    first: int | None = None

    @property
    def passed(self) -> dict[int, int]:
        """What was read, in numbers that hold wherever the task is."""
        return merged(self.before, self.entries)

    def to_json(self) -> dict[str, Any]:
        """Return what Spark keeps."""
        found: dict[str, Any] = {"worker": self.worker, "sequence": self.sequence}
        if self.address:
            found["address"] = self.address
        for name, vector in ("entries", self.entries), ("before", self.before):
            if vector:
                found[name] = {str(worker): entry for worker, entry in vector.items()}
        if self.messages:
            found["messages"] = self.messages
        if self.first is not None:
            found["first"] = self.first
        return found

    @classmethod
    def from_json(cls, offset: Mapping[str, Any]) -> TaskOffset:
        """Read what to_json() wrote."""
        vectors = {
            name: {int(worker): entry for worker, entry in offset.get(name, {}).items()}
            for name in ("entries", "before")
        }
        return cls(**{**offset, **vectors})


@dataclass(frozen=True, slots=True)
class Held:
    """What a worker holds of a task: the messages after `acknowledged`, up to `tail`.

    worker: its incarnation. congested: whether the queue is nearly full. begin: the sequence after which the
    task's messages begin there. consumer: who is subscribed, if anybody.
    """

    address: str
    worker_id: str
    worker: int
    acknowledged: int
    tail: int
    size_bytes: int
    congested: bool = False
    begin: int = 0
    consumer: str = ""


@dataclass(frozen=True, slots=True)
class Range:
    """Messages of one task to be read by one Spark task: after `start`, up to `end`.

    messages: how many they are. after, upto: by entry workers, what was read before them, and the last of
    them. runs: how they are numbered at the worker; None: it does not have them any more.
    """

    task: int
    address: str
    worker_id: str
    worker: int
    start: int
    end: int
    messages: int
    after: Vector
    upto: Vector
    runs: Runs | None


@dataclass(frozen=True, slots=True)
class Offset:
    """A offset in each task."""

    offsets: Mapping[int, TaskOffset]

    def to_json(self) -> dict[str, Any]:
        """Return what Spark keeps."""
        return {"tasks": {str(task): offset.to_json() for task, offset in self.offsets.items()}}

    @classmethod
    def from_json(cls, offset: Mapping[str, Any]) -> Offset:
        """Read what to_json() wrote."""
        return cls({int(task): TaskOffset.from_json(each) for task, each in offset["tasks"].items()})

    def of_tasks(self, held: Mapping[int, Held]) -> Offset:
        """Return the place in these tasks alone, where they are now.

        New ones begin where initial_offset() says. Those that have moved begin where they do at their new
        worker; what was read of them is in `before`.
        """
        offsets = {task: _located(self.offsets.get(task), each) for task, each in held.items()}
        same = self.offsets.keys() == held.keys() and all(
            offsets[task] is each for task, each in self.offsets.items()
        )
        return self if same else Offset(offsets)


def _located(offset: TaskOffset | None, held: Held) -> TaskOffset:
    if offset is None:
        return replace(_beginning(held), first=held.acknowledged)
    if not has_moved(offset, held):
        return offset
    return TaskOffset(held.worker, held.begin, held.address, before=offset.passed, first=held.begin)


def has_moved(offset: TaskOffset, held: Held) -> bool:
    """Whether a task has moved since an offset was taken, perhaps there and back."""
    if offset.worker != held.worker or offset.sequence < held.begin:
        return True
    return offset.sequence == held.begin and bool(offset.entries)


def _beginning(held: Held) -> TaskOffset:
    return TaskOffset(held.worker, held.acknowledged, held.address)


def initial_offset(held: Mapping[int, Held], latest: Container[int] = ()) -> Offset:
    """Return the place before everything that no consumer has acknowledged; in tasks `latest`, after it."""
    ends = tails(held)
    return Offset({task: ends[task] if task in latest else _beginning(each) for task, each in held.items()})


def tails(held: Mapping[int, Held]) -> dict[int, TaskOffset]:
    """Return the place after everything that is there."""
    return {task: TaskOffset(each.worker, each.tail, each.address) for task, each in held.items()}


def check_held(start: Offset, held: Mapping[int, Held]) -> None:
    """Raise DataLossError where somebody else has acknowledged what comes after an offset.

    start: located where the tasks are; see Offset.of_tasks.
    """
    for task, each in held.items():
        offset = start.offsets[task]
        if each.acknowledged > offset.sequence or each.tail < offset.sequence:
            raise DataLossError(
                f"task {task} is acknowledged up to {each.acknowledged} of {each.tail}, and this query "
                f"stands at {offset.sequence}: somebody else consumes the task, or the checkpoint is an old "
                "copy. Give each query tasks of its own, and start it from its newest checkpoint; or set "
                "failOnDataLoss=false to go on with what is left"
            )


class Former(enum.Enum):
    """What has become of a task at a worker that had it."""

    HANDS_OVER = "hands over"
    """It has still to hand messages over, or it is not known yet what has become of it."""
    DONE = "done"
    """It has handed all of them over, or has ended in good order."""
    GONE = "gone"
    """It has ended, and nobody knows that it did so in good order."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of a worker that had a task. dropped: how many messages it dropped at its end."""

    former: Former
    dropped: int = 0

    @property
    def lost(self) -> bool:
        """Whether messages were lost with it."""
        return self.former is Former.GONE or self.dropped > 0


def lost_with(task: int, offset: TaskOffset, standing: Standing, last_seen: int) -> DataLossError:
    """Return the error for a worker that has ended with messages of a task.

    last_seen: how many were there after the offset when the query last looked.
    """
    if standing.dropped:
        why = "ended while nobody could take its messages over"
        much = f"up to {standing.dropped} messages"
    else:
        why = "has been restarted, or has died, without a goodbye"
        much = f"{last_seen} messages that the query had not read, and what came after its last look"
    return DataLossError(
        f"task {task} was at a worker ({offset.address}) that {why}: {much}, are gone, or come again. "
        "Set failOnDataLoss=false to go on with what there is"
    )


def check_assigned(start: Offset, held: Mapping[int, Held], tasks: Container[int]) -> None:
    """Raise DataLossError where a task of a query that reads ranges of tasks is not assigned any more."""
    if gone := sorted(task for task in start.offsets if task in tasks and task not in held)[:10]:
        raise DataLossError(
            f"task {', '.join(map(str, gone))} is not assigned any more, with what the query had not read of "
            "it. Set failOnDataLoss=false to go on without it"
        )


def check_dropped(start: Offset, held: Mapping[int, Held]) -> None:
    """Raise ConfigError where a query stops reading tasks of which it has not read everything.

    held: what there is of those that it stops reading.
    """
    left = {}
    for task, each in held.items():
        offset = start.offsets[task]
        read = 0 if has_moved(offset, each) else offset.sequence
        if (count := each.tail - max(each.acknowledged, read)) > 0:
            left[task] = count
    if left:
        shown = ", ".join(f"task {task} holds {count}" for task, count in sorted(left.items())[:10])
        raise ConfigError(
            f"the query stops reading {len(left)} of the tasks in its checkpoint, and has not read "
            f"{sum(left.values())} of their messages: {shown}. Read them first (start the query with these "
            "tasks as well), let another program consume them, or set "
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
        task: TaskOffset(each.worker, begins[task] + taken[task], each.address)
        if taken[task]
        else start.offsets[task]
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


def numbered(start: Offset, current: Offset, end: Offset, runs: Mapping[int, Runs]) -> Offset:
    """Return where a micro-batch ends, in numbers that hold wherever its tasks move.

    start: as Spark has it. current: the same where the tasks are now. runs: of the tasks that it reads.
    """
    offsets = dict(end.offsets)
    for task, each in runs.items():
        offset, last = current.offsets[task], end.offsets[task].sequence
        first = max(each.first - 1, offset.sequence)
        entries = each.vector(last)
        offsets[task] = replace(
            end.offsets[task],
            entries=entries,
            before=still_to_come(offset.before, entries),
            messages=count(each.spans(first, last, offset.before)),
            first=None if offset is start.offsets.get(task) else first,
        )
    return Offset(offsets)


def changed(start: Offset, end: Offset) -> dict[int, TaskOffset]:
    """Return the ends of those tasks of which a micro-batch reads something."""
    return {
        task: last
        for task, last in end.offsets.items()
        if last != (first := start.offsets.get(task)) and last.sequence > _start(first, last)
    }


def _start(first: TaskOffset | None, last: TaskOffset) -> int:
    """Return the sequence, at the worker of the end, after which a micro-batch reads."""
    if last.first is not None:
        return last.first
    return 0 if first is None else first.sequence


def ranges(
    start: Offset, end: Offset, held: Mapping[int, Held], runs: Mapping[int, Runs] | None = None
) -> list[Range]:
    """Return what a micro-batch reads.

    held: where the tasks are; one that is nowhere any more is left out. runs: how the messages are numbered
    at the workers of the end. A task without has moved since, and its messages are looked for by numbers.
    """
    found = []
    for task, last in changed(start, end).items():
        if task not in held:
            continue
        first = start.offsets.get(task)
        each = held[task]
        there = each.worker == last.worker
        found.append(
            Range(
                task,
                last.address,
                each.worker_id if there else "",
                last.worker,
                _start(first, last),
                last.sequence,
                last.messages,
                {} if first is None else first.passed,
                last.entries,
                runs.get(task) if runs and there else None,
            )
        )
    return found
