"""The history checker: finds messages lost, duplicated or reordered in violation of Tuplewire's guarantees.

Producers number their messages, from 0, per (source, task). A test reports the events in the order of time:
submitted and accepted messages, messages received by consumers, and stopped workers. The checker verifies,
per (source, task), while the producers run:

- Every accepted message is received at least once. In the mode `queued`, a message may be missing if a worker
  on its route (the source's or the task's) was killed. The kill must be later than the message's submission,
  and earlier than the receipt of the message or any later one. In the mode `processed`, no message may be
  missing. Messages that the producer's ledger reports as dropped are not expected.
- Every copy after the first is marked `redelivered`. A consumer that keeps unmarked messages, and checks
  marked ones for duplicates, therefore processes each message once. (After a takeover, the earlier
  subscription may still receive a first copy late.) Within one subscription, a further copy is allowed only
  if a worker stopped, or the task moved, after the submission of the message. Unacknowledged messages of an
  unreachable consumer move with the task, and may return with it.
- Messages are received for the first time in the order of their numbers. Some may be received late: messages
  in flight to a moving task when a worker on their route is killed, and messages that are still queued when
  their source's worker restarts, and then the task moves (note 5 of docs/guarantees.md).
- Every received message was sent, and each producer's ledger is balanced and matches the messages it sent.

Source: the checkers of Jepsen, which judge a recorded history by a model.
"""

from __future__ import annotations

import enum
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tuplewire.session.ledger import LedgerSnapshot
from tuplewire.settings.config import AckMode

_LISTED = 50
"""The maximum number of violations retained per rule; all are counted."""


Range = tuple[int, int]
"""The numbers from the first value up to, but not including, the second."""


class Ranges:
    """A set of numbers from 0, as ranges that do not touch: consecutive numbers take constant memory."""

    __slots__ = ("_starts", "_stops", "size")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        self.size = 0
        """The number of elements."""

    def __iter__(self) -> Iterator[Range]:
        return iter(zip(self._starts, self._stops, strict=True))

    def __repr__(self) -> str:
        return f"<Ranges {list(self)}>"

    @property
    def stop(self) -> int:
        """One more than the largest number, or 0 if the set is empty."""
        return self._stops[-1] if self._stops else 0

    def add(self, first: int, stop: int) -> list[Range]:
        """Add the numbers from `first` up to `stop`, at least one; return the ranges already present."""
        self.size += stop - first
        starts, stops = self._starts, self._stops
        if not stops or first > stops[-1]:
            starts.append(first)
            stops.append(stop)
            return []
        low = bisect_left(stops, first)
        high = bisect_right(starts, stop)
        known = list(self.within(first, stop))
        self.size -= sum(end - begin for begin, end in known)
        if low < high:
            first, stop = min(first, starts[low]), max(stop, stops[high - 1])
        starts[low:high] = [first]
        stops[low:high] = [stop]
        return known

    def within(self, first: int, stop: int) -> Iterator[Range]:
        """Return the ranges from `first` up to `stop` that are in the set, in order."""
        low = bisect_right(self._stops, first)
        high = bisect_left(self._starts, stop)
        for begin, end in zip(self._starts[low:high], self._stops[low:high], strict=True):
            yield max(first, begin), min(stop, end)

    def missing(self, first: int, stop: int) -> Iterator[Range]:
        """Return the ranges from `first` up to `stop` that are not in the set, in order."""
        for begin, end in self.within(first, stop):
            if first < begin:
                yield first, begin
            first = end
        if first < stop:
            yield first, stop


class Rule(enum.StrEnum):
    """The rule that a violation breaks."""

    LOST = "lost"
    DUPLICATED = "duplicated"
    OUT_OF_ORDER = "out of order"
    NEVER_SENT = "never sent"
    UNBALANCED = "unbalanced"


@dataclass(frozen=True, slots=True)
class Violation:
    """A violation: `count` messages of a source, from the number `first`. task: None for all tasks."""

    rule: Rule
    source: int
    task: int | None
    first: int
    count: int
    detail: str

    def __str__(self) -> str:
        where = f"source {self.source}" + ("" if self.task is None else f" to task {self.task}")
        which = f"{self.first}" if self.count == 1 else f"{self.first} to {self.first + self.count - 1}"
        return f"{self.rule}: {where}, {which}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of checking a history, in messages; `died` and `overtaken` the guarantees allow."""

    accepted: int
    received: int
    redelivered: int
    died: int
    overtaken: int
    dropped: int
    counts: dict[Rule, int] = field(default_factory=dict)
    violations: tuple[Violation, ...] = ()

    @property
    def ok(self) -> bool:
        """True if there are no violations."""
        return not any(self.counts.values())

    def __str__(self) -> str:
        promised = (Rule.LOST, Rule.DUPLICATED, Rule.OUT_OF_ORDER)
        others = [rule for rule in Rule if rule not in promised and self.counts[rule]]
        return ", ".join(f"{self.counts[rule]} {rule}" for rule in (*promised, *others))


@dataclass(slots=True)
class _Source:
    mode: AckMode
    worker: str
    ledger: LedgerSnapshot | None = None


@dataclass(slots=True)
class _Flow:
    """The messages of one source to one task."""

    handed_over: int = 0
    accepted: int = 0
    received: Ranges = field(default_factory=Ranges)
    unmarked: Ranges = field(default_factory=Ranges)
    copies: defaultdict[int, Ranges] = field(default_factory=lambda: defaultdict(Ranges))
    """The messages received by each subscription, by the order in which the subscriptions started."""
    at_risk: Ranges = field(default_factory=Ranges)
    """Messages that may be lost with a killed worker."""
    strayed: Ranges = field(default_factory=Ranges)
    """Messages that may be received late, because a worker ended and the task moved."""
    unrecorded: Ranges = field(default_factory=Ranges)
    """Messages of an ended process of the source's worker: its next process does not know where they are."""
    since: int = 0
    """The first number submitted after the last stop of a worker or move of the task."""
    subscriptions: defaultdict[str, Ranges] = field(default_factory=lambda: defaultdict(Ranges))
    """The messages received by each subscription, from the number `since`."""

    def excuse_copies(self) -> None:
        self.subscriptions.clear()
        self.since = self.handed_over


class History:
    """Checks a history while a test reports its events, in order of time. The module describes the rules."""

    def __init__(self) -> None:
        self._sources: dict[int, _Source] = {}
        self._flows: defaultdict[tuple[int, int], _Flow] = defaultdict(_Flow)
        self._owners: defaultdict[int, set[str]] = defaultdict(set)
        self._turns: dict[str, int] = {}
        self._redelivered = 0
        self._overtaken = 0
        self._counts: Counter[Rule] = Counter()
        self._violations: dict[Rule, list[Violation]] = {rule: [] for rule in Rule}

    def source(self, source: int, mode: AckMode, worker: str) -> None:
        """Announce a producer, its mode and entry worker; without it, accepted() raises ValueError."""
        self._sources[source] = _Source(mode, worker)

    def owns(self, task: int, worker: str) -> None:
        """Record that a worker may hold messages of a task from now on. Call it before the worker knows."""
        if self._owners[task] - {worker}:
            for flow in (flow for (_, to), flow in self._flows.items() if to == task):
                for first, stop in flow.unrecorded:
                    for begin, until in flow.received.missing(first, stop):
                        flow.strayed.add(begin, until)
        self._owners[task].add(worker)
        self._excuse_copies(task)

    def left(self, task: int, worker: str) -> None:
        """Record that a task has moved away from a worker, which has no more messages of the task."""
        if worker in self._owners[task]:
            self._owners[task].remove(worker)
            self._excuse_copies(task)

    def _excuse_copies(self, task: int) -> None:
        """Allow marked copies of all messages submitted until now."""
        for (_, to), flow in self._flows.items():
            if to == task:
                flow.excuse_copies()

    def handed_over(self, source: int, task: int, count: int) -> None:
        """Record that a producer starts to send: its first `count` messages to the task may be in flight."""
        self._flow(source, task).handed_over = count

    def accepted(self, source: int, task: int, count: int) -> None:
        """Record that a producer's send() returned: its first `count` messages to the task are accepted."""
        self._flow(source, task).accepted = count

    def settled(self, source: int, ledger: LedgerSnapshot) -> None:
        """Record the final ledger of a producer's client."""
        self._sources[source].ledger = ledger

    def received(
        self, source: int, task: int, first: int, count: int, *, subscription: str, redelivered: bool
    ) -> None:
        """Record `count` messages, numbered from `first`, that a subscription with a unique name received."""
        flow = self._flows[source, task]
        stop = first + count
        if stop > flow.handed_over:
            self._violated(Rule.NEVER_SENT, source, task, [(max(first, flow.handed_over), stop)], "received")
        repeated: list[Range] = []
        if stop > flow.since:
            repeated = flow.subscriptions[subscription].add(max(first, flow.since), stop)
        detail = f"came twice to {subscription}, and no worker has ended nor the task moved since"
        self._violated(Rule.DUPLICATED, source, task, repeated, detail)
        turn = self._turns.setdefault(subscription, len(self._turns))
        if not redelivered:
            again = Ranges()
            earlier = [copies for other, copies in flow.copies.items() if other <= turn]
            for copies in (flow.unmarked, *earlier):
                for begin, until in copies.within(first, stop):
                    again.add(begin, until)
            flow.unmarked.add(first, stop)
            fresh = [piece for each in again.within(first, stop) for piece in _without(each, repeated)]
            detail = f"came to {subscription} again, and this copy is not marked redelivered"
            self._violated(Rule.DUPLICATED, source, task, fresh, detail)
        flow.copies[turn].add(first, stop)
        end = flow.received.stop
        late: list[Range] = []
        for begin, until in flow.received.missing(first, min(stop, end)):
            late += flow.strayed.missing(begin, until)
            self._overtaken += _total(flow.strayed.within(begin, until))
        detail = f"came to {subscription} after {end - 1}"
        self._violated(Rule.OUT_OF_ORDER, source, task, late, detail)
        self._redelivered += _total(flow.received.add(first, stop))

    def subscribed(self, subscription: str) -> None:
        """Record the start of a subscription. Without this call, it starts with its first messages."""
        self._turns.setdefault(subscription, len(self._turns))

    def worker_ended(self, worker: str, *, killed: bool) -> None:
        """Record the exit of a worker's process. killed: True if it was killed, and its messages are lost."""
        for (source, task), flow in self._flows.items():
            flow.excuse_copies()
            if flow.received.stop >= flow.handed_over:
                continue
            sender, owners = self._sources[source], self._owners[task]
            if worker == sender.worker:
                flow.unrecorded.add(flow.received.stop, flow.handed_over)
            if not killed or worker not in {sender.worker, *owners}:
                continue
            if sender.mode is AckMode.QUEUED:
                flow.at_risk.add(flow.received.stop, flow.handed_over)
            if len(owners) > 1:
                flow.strayed.add(flow.received.stop, flow.handed_over)

    def verdict(self) -> Verdict:
        """Return the verdict on the history so far, as if it ended here."""
        counts, violations = Counter(self._counts), {rule: list(v) for rule, v in self._violations.items()}
        died = dropped = 0
        for source, sender in self._sources.items():
            missing: list[tuple[int, Range]] = []
            for task, flow in self._flows_of(source):
                for first, stop in flow.received.missing(0, flow.accepted):
                    died += _total(flow.at_risk.within(first, stop))
                    missing += [(task, gap) for gap in flow.at_risk.missing(first, stop)]
            told = sum(sender.ledger.dropped.values()) if sender.ledger is not None else 0
            lost = _total(gap for _, gap in missing)
            dropped += min(told, lost)
            if lost > told:
                detail = f"accepted ({sender.mode}) and never received" + (
                    f"; {told} of these {lost} the producer was told" if told else ""
                )
                for task, gap in missing:
                    _note(violations, Rule.LOST, source, task, gap, detail)
                counts[Rule.LOST] += lost - told
            accepted = sum(flow.accepted for _, flow in self._flows_of(source))
            ledger = sender.ledger
            if ledger is not None and (not ledger.balanced or ledger.accepted != accepted):
                counts[Rule.UNBALANCED] += max(1, abs(ledger.accepted - accepted))
                detail = f"the producer has sent {accepted}, its client says: {ledger}"
                _note(violations, Rule.UNBALANCED, source, None, (0, accepted), detail)
        flows = self._flows.values()
        return Verdict(
            accepted=sum(flow.accepted for flow in flows),
            received=sum(flow.received.size for flow in flows),
            redelivered=self._redelivered - self._counts[Rule.DUPLICATED],
            died=died,
            overtaken=self._overtaken,
            dropped=dropped,
            counts={rule: counts[rule] for rule in Rule},
            violations=tuple(each for rule in Rule for each in violations[rule]),
        )

    def _flow(self, source: int, task: int) -> _Flow:
        if source not in self._sources:
            raise ValueError(f"source {source} is unknown; announce it with source() first")
        return self._flows[source, task]

    def _flows_of(self, source: int) -> list[tuple[int, _Flow]]:
        return [(task, flow) for (sender, task), flow in sorted(self._flows.items()) if sender == source]

    def _violated(self, rule: Rule, source: int, task: int, pieces: Iterable[Range], detail: str) -> None:
        for piece in pieces:
            self._counts[rule] += piece[1] - piece[0]
            _note(self._violations, rule, source, task, piece, detail)


def _note(
    violations: dict[Rule, list[Violation]],
    rule: Rule,
    source: int,
    task: int | None,
    piece: Range,
    detail: str,
) -> None:
    if len(violations[rule]) < _LISTED:
        first, stop = piece
        violations[rule].append(Violation(rule, source, task, first, stop - first, detail))


def _total(pieces: Iterable[Range]) -> int:
    return sum(stop - first for first, stop in pieces)


def _without(piece: Range, others: Iterable[Range]) -> list[Range]:
    """Return the parts of a range outside other ranges, which are sorted."""
    left = []
    first, stop = piece
    for begin, end in others:
        if first < begin:
            left.append((first, min(begin, stop)))
        first = max(first, end)
    if first < stop:
        left.append((first, stop))
    return [each for each in left if each[0] < each[1]]
