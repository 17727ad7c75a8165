"""The history checker: whether messages were lost, doubled or disordered beyond what Tuplewire promises.

Producers number their messages, from 0, per (source, task). The checker is told, in the order of time, what
was handed over and accepted, what consumers have received, and which workers have ended. It checks, per
(source, task), while the producers live:

- Every accepted message is received at least once. Of a source in the mode `queued` one may be missing when a
  worker that was on its way, the source's own or the task's, was killed after the message was handed over and
  before it, or any later one, was received. Of a source in the mode `processed` none may be missing. What the
  producer was told to be dropped is not expected.
- Every copy but the first is marked `redelivered`: whoever keeps what is not marked, and looks up what is,
  processes each message once. (A subscription that another has taken over may hear late of a first copy.) A
  further copy within one subscription is only allowed when a worker has ended, or the task was moving, after
  the message was handed over: what a consumer that is out of reach has not acknowledged moves with the task,
  and may come back with it.
- Messages are received for the first time in the order of their numbers. Only what was on its way to a task
  that was moving, when a worker on that way was killed, may come later than its turn.
- What is received has been sent, and each producer's own balance adds up to what it has sent.

Source: the checkers of Jepsen, which judge a recorded history by a model.
"""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from helpers.ranges import Range, Ranges
from tuplewire.session.ledger import LedgerSnapshot
from tuplewire.settings.config import AckMode

_LISTED = 50
"""So many violations of each kind are kept, and all are counted."""


class Rule(enum.StrEnum):
    """What a violation violates."""

    LOST = "lost"
    DUPLICATED = "duplicated"
    OUT_OF_ORDER = "out of order"
    NEVER_SENT = "never sent"
    UNBALANCED = "unbalanced"


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise: so many messages of a source to a task, from this number on.

    task: None where all of the source's tasks are meant. detail: what was seen, in words.
    """

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
    """What a history comes to, in messages.

    redelivered: further copies that were allowed. died: missing with a killed worker, which was allowed.
    overtaken: later than their turn after a kill during a move, which was allowed. dropped: missing, and the
    producer was told. counts: of each rule, how many messages violate it. violations: the first of each rule.
    """

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
        """Whether every promise was kept."""
        return not any(self.counts.values())

    def __str__(self) -> str:
        promised = (Rule.LOST, Rule.DUPLICATED, Rule.OUT_OF_ORDER)
        others = [rule for rule in Rule if rule not in promised and self.counts[rule]]
        return ", ".join(f"{self.counts[rule]} {rule}" for rule in (*promised, *others))


class _Source:
    __slots__ = ("ledger", "mode", "worker")

    def __init__(self, mode: AckMode, worker: str) -> None:
        self.mode = mode
        self.worker = worker
        self.ledger: LedgerSnapshot | None = None


class _Flow:
    """The messages of one source to one task."""

    __slots__ = (
        "accepted",
        "at_risk",
        "copies",
        "handed_over",
        "received",
        "since",
        "strayed",
        "subscriptions",
        "unmarked",
    )

    def __init__(self) -> None:
        self.handed_over = 0
        self.accepted = 0
        self.received = Ranges()
        self.unmarked = Ranges()
        self.copies: dict[int, Ranges] = {}
        """What each subscription has received, by the order in which they began."""
        self.at_risk = Ranges()
        """What may have died with a worker."""
        self.strayed = Ranges()
        """What was on its way to a moving task when a worker died."""
        self.since = 0
        """The first number that was handed over after a worker has ended, or the task has moved, last."""
        self.subscriptions: defaultdict[str, Ranges] = defaultdict(Ranges)
        """What each subscription has received, from that number on."""

    def excuse_copies(self) -> None:
        self.subscriptions.clear()
        self.since = self.handed_over


class History:
    """Judges a history as it is told, in the order of time; the module has the promises."""

    def __init__(self) -> None:
        self._sources: dict[int, _Source] = {}
        self._flows: defaultdict[tuple[int, int], _Flow] = defaultdict(_Flow)
        self._owners: defaultdict[int, set[str]] = defaultdict(set)
        self._turns: dict[str, int] = {}
        self._redelivered = 0
        self._overtaken = 0
        self._counts: Counter[Rule] = Counter()
        self._violations: dict[Rule, list[Violation]] = {rule: [] for rule in Rule}

    # --- what happens ----------------------------------------------------------------------------

    def source(self, source: int, mode: AckMode, worker: str) -> None:
        """Announce a producer: its source task, its mode, and the worker that it hands its messages to.

        To tell of what an unknown source has sent raises ValueError.
        """
        self._sources[source] = _Source(mode, worker)

    def owns(self, task: int, worker: str) -> None:
        """Tell that a worker may hold messages of a task from now on; before the worker itself is told."""
        self._owners[task].add(worker)
        self._excuse_copies(task)

    def left(self, task: int, worker: str) -> None:
        """Tell that a task has moved away from a worker, and that nothing of it is left there."""
        if worker in self._owners[task]:
            self._owners[task].remove(worker)
            self._excuse_copies(task)

    def _excuse_copies(self, task: int) -> None:
        """Allow marked copies of what was handed over until now."""
        for (_, to), flow in self._flows.items():
            if to == task:
                flow.excuse_copies()

    def handed_over(self, source: int, task: int, count: int) -> None:
        """Tell that a producer is about to send: its first `count` messages to the task may be on the way."""
        self._flow(source, task).handed_over = count

    def accepted(self, source: int, task: int, count: int) -> None:
        """Tell that a producer's send has returned: its first `count` messages to the task are accepted."""
        self._flow(source, task).accepted = count

    def settled(self, source: int, ledger: LedgerSnapshot) -> None:
        """Tell what a producer's client says at the end about everything that it has sent."""
        self._sources[source].ledger = ledger

    def received(
        self, source: int, task: int, first: int, count: int, *, subscription: str, redelivered: bool
    ) -> None:
        """Tell that a consumer has received so many messages, at least one, numbered from `first` on.

        subscription: names one subscription of one process; a new one of the same consumer is another.
        redelivered: whether they are marked.
        """
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
        flow.copies.setdefault(turn, Ranges()).add(first, stop)
        end = flow.received.stop
        late: list[Range] = []
        for begin, until in flow.received.missing(first, min(stop, end)):
            late += flow.strayed.missing(begin, until)
            self._overtaken += _total(flow.strayed.within(begin, until))
        detail = f"came to {subscription} after {end - 1}"
        self._violated(Rule.OUT_OF_ORDER, source, task, late, detail)
        self._redelivered += _total(flow.received.add(first, stop))

    def subscribed(self, subscription: str) -> None:
        """Tell that a subscription begins; without that, it begins with what it first receives."""
        self._turns.setdefault(subscription, len(self._turns))

    def worker_ended(self, worker: str, *, killed: bool) -> None:
        """Tell that a worker's process has ended; killed: by force, with all that it held."""
        for (source, task), flow in self._flows.items():
            flow.excuse_copies()
            if not killed or flow.received.stop >= flow.handed_over:
                continue
            sender, owners = self._sources[source], self._owners[task]
            if worker not in {sender.worker, *owners}:
                continue
            if sender.mode is AckMode.QUEUED:
                flow.at_risk.add(flow.received.stop, flow.handed_over)
            if len(owners) > 1:
                flow.strayed.add(flow.received.stop, flow.handed_over)

    # --- what it comes to ------------------------------------------------------------------------

    def verdict(self) -> Verdict:
        """Judge the history so far, as if it ended here."""
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
            self._check_balance(source, sender, counts, violations)
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
        return sorted(
            ((task, flow) for (sender, task), flow in self._flows.items() if sender == source),
            key=lambda each: each[0],
        )

    def _check_balance(
        self,
        source: int,
        sender: _Source,
        counts: Counter[Rule],
        violations: dict[Rule, list[Violation]],
    ) -> None:
        ledger = sender.ledger
        if ledger is None:
            return
        accepted = sum(flow.accepted for _, flow in self._flows_of(source))
        if not ledger.balanced or ledger.accepted != accepted:
            counts[Rule.UNBALANCED] += max(1, abs(ledger.accepted - accepted))
            detail = f"the producer has sent {accepted}, its client says: {ledger}"
            _note(violations, Rule.UNBALANCED, source, None, (0, accepted), detail)

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
    """Return what is left of a range without others, which are in order."""
    left = []
    first, stop = piece
    for begin, end in others:
        if first < begin:
            left.append((first, min(begin, stop)))
        first = max(first, end)
    if first < stop:
        left.append((first, stop))
    return [each for each in left if each[0] < each[1]]
