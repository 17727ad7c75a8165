"""The history checker reports each violated guarantee, and nothing in a correct history."""

from __future__ import annotations

import pytest
from helpers.history import History, Rule, Verdict

from tuplewire.session.ledger import LedgerSnapshot
from tuplewire.settings.config import AckMode

SOURCE, TASK = 7, 3
NEAR, FAR, OTHER = "near", "far", "other"


class Story:
    """One source that sends to one task through `near`; `far` owns the task. Methods add events."""

    def __init__(self, mode: AckMode = AckMode.QUEUED) -> None:
        self.history = History()
        self.history.source(SOURCE, mode, NEAR)
        self.history.owns(TASK, FAR)
        self.sent = 0

    def tell(self, steps: str) -> Story:
        """Apply steps like "sends 100, comes 0 60, dies far"."""
        for step in steps.split(", "):
            name, *words = step.split()
            getattr(self, name)(*(int(word) if word.isdigit() else word for word in words))
        return self

    def sends(self, count: int) -> None:
        self.history.handed_over(SOURCE, TASK, self.sent + count)
        self.sent += count
        self.history.accepted(SOURCE, TASK, self.sent)

    def comes(self, first: int, stop: int, to: str = "one", mark: str = "") -> None:
        """Receive the numbers from `first` up to `stop`, marked as redelivered if `mark` is set."""
        self.history.received(SOURCE, TASK, first, stop - first, subscription=to, redelivered=bool(mark))

    def dies(self, worker: str) -> None:
        self.history.worker_ended(worker, killed=True)

    def ends(self, worker: str) -> None:
        self.history.worker_ended(worker, killed=False)

    def moves_from(self, worker: str) -> None:
        """Start to move the task from one worker to the other."""
        self.history.owns(TASK, NEAR if worker == FAR else FAR)

    def has_left(self, worker: str) -> None:
        self.history.left(TASK, worker)

    @property
    def verdict(self) -> Verdict:
        return self.history.verdict()

    def violates(self, rule: Rule, *pieces: tuple[int, int]) -> bool:
        """Return True if exactly these numbers violate this rule, and no other rule is violated."""
        verdict = self.verdict
        found = [(each.first, each.first + each.count) for each in verdict.violations]
        assert all(each.rule is rule for each in verdict.violations), verdict.violations
        assert all((each.source, each.task) == (SOURCE, TASK) for each in verdict.violations)
        assert verdict.counts == {**dict.fromkeys(Rule, 0), rule: sum(stop - first for first, stop in pieces)}
        return found == list(pieces) and not verdict.ok


def test_a_faultless_history() -> None:
    """A history with each message once and in order is correct, with pieces of any size."""
    verdict = Story().tell("sends 100, comes 0 30, sends 100, comes 30 170, comes 170 200 two").verdict
    assert verdict.ok
    assert (verdict.accepted, verdict.received) == (200, 200)
    assert str(verdict) == "0 lost, 0 duplicated, 0 out of order"


PROCESSED = {"comes 0 60, dies far, comes 70 100": (60, 70)}
LOST = {
    # The worker was not on the route, or has exited cleanly.
    "comes 0 60, dies other, comes 70 100": (60, 70),
    "comes 0 60, ends far, comes 70 100": (60, 70),
    # Messages sent after a failure, or lost before it.
    "dies far, sends 100, comes 110 200": (100, 110),
    "comes 0 10, comes 20 50, dies far": (10, 20),
}
DUPLICATED = {
    # The end of a worker or a move does not permit an unmarked copy.
    "comes 0 60, dies far, comes 50 100": (50, 60),
    "comes 0 60, moves_from far, comes 50 100": (50, 60),
    "comes 0 60, has_left far, comes 50 100": (50, 60),
}


@pytest.mark.parametrize(
    ("mode", "rule", "steps", "piece"),
    [
        *((AckMode.PROCESSED, Rule.LOST, *each) for each in PROCESSED.items()),
        *((AckMode.QUEUED, Rule.LOST, *each) for each in LOST.items()),
        *((AckMode.QUEUED, Rule.DUPLICATED, *each) for each in DUPLICATED.items()),
        (AckMode.QUEUED, Rule.OUT_OF_ORDER, "comes 50 100, comes 0 50 two marked", (0, 50)),
    ],
)
def test_broken_promises(mode: AckMode, rule: Rule, steps: str, piece: tuple[int, int]) -> None:
    """Exactly the messages that violate a rule are found and counted."""
    story = Story(mode).tell(f"sends 100, {steps}")
    assert story.violates(rule, piece)
    assert f"{piece[1] - piece[0]} {rule}" in str(story.verdict)


@pytest.mark.parametrize(
    ("steps", "died"),
    [
        ("comes 0 60, dies far, sends 100, comes 70 200 one marked", 10),
        ("dies far, sends 100, comes 110 200", 100),
        ("comes 0 10, comes 20 50, dies far", 50),
    ],
)
def test_a_killed_worker_may_lose_what_it_had_queued(steps: str, died: int) -> None:
    """In queued mode, messages that a killed worker on the route could have held may be missing."""
    assert Story().tell(f"sends 100, {steps}").verdict.died == died


def test_dropped_is_not_lost() -> None:
    """Messages reported as dropped are not expected; any other missing message is lost."""
    story = Story().tell("sends 100, comes 0 90")
    story.history.settled(SOURCE, LedgerSnapshot(100, 90, {"unknown_task": 10}, 0))
    assert story.verdict.ok
    assert story.verdict.dropped == 10
    story.history.settled(SOURCE, LedgerSnapshot(100, 96, {"unknown_task": 4}, 0))
    assert story.verdict.counts[Rule.LOST] == 6


@pytest.mark.parametrize(("first", "marks"), [("one", " x"), ("two", "x "), ("one", "xx")])
def test_redelivered_to_another_subscription(first: str, marks: str) -> None:
    """A marked copy for the next subscriber is allowed, in either order of the two reports."""
    story = Story().tell("sends 100")
    story.history.subscribed(first)
    story.tell(f"comes 0 60 one {marks[0]}, comes 50 100 two {marks[1]}")
    assert story.verdict.ok
    assert (story.verdict.redelivered, story.verdict.received) == (10, 100)


@pytest.mark.parametrize("end", ["dies", "ends", "moves_from", "has_left"])
def test_redelivered_after_the_end_of_a_worker_or_a_move(end: str) -> None:
    """Messages sent before the event may be redelivered if marked; later messages may not."""
    story = Story().tell(f"sends 80, comes 0 60, {end} far, sends 20, comes 60 100, comes 50 80 one marked")
    assert story.verdict.ok
    story.tell("comes 79 81 one marked")
    assert story.violates(Rule.DUPLICATED, (80, 81))


@pytest.mark.parametrize(
    ("worker", "moving", "killed", "allowed"),
    [
        (NEAR, True, True, True),
        (FAR, True, True, True),
        ("third", True, True, False),
        (NEAR, False, True, False),
        (NEAR, True, False, False),
    ],
)
def test_a_kill_during_a_move_may_disorder(*, worker: str, moving: bool, killed: bool, allowed: bool) -> None:
    """Only messages in flight to a moving task, with a killed worker on their route, may be out of order."""
    story = Story(AckMode.PROCESSED)
    story.sends(50)
    if moving:
        story.history.owns(TASK, OTHER)
    story.history.worker_ended(worker, killed=killed)
    story.sends(50)
    story.comes(60, 100)
    story.comes(0, 50)
    if allowed:
        story.comes(50, 60)
        assert story.verdict.overtaken == 50
        assert story.violates(Rule.OUT_OF_ORDER, (50, 60))
    else:
        assert story.verdict.counts[Rule.OUT_OF_ORDER] == 50


@pytest.mark.parametrize("end", ["dies", "ends"])
@pytest.mark.parametrize(("worker", "overtaken"), [(NEAR, 50), (FAR, 0)])
def test_a_move_after_a_restart_may_disorder(end: str, worker: str, overtaken: int) -> None:
    """Only messages that a restarted entry worker sent before, and that are still queued, may be late."""
    story = Story(AckMode.PROCESSED).tell(f"sends 60, comes 0 10, {end} {worker}, sends 10")
    story.history.owns(TASK, OTHER)
    story.tell("sends 30, comes 80 100, comes 60 70, comes 10 60")
    assert story.verdict.overtaken == overtaken
    assert story.verdict.counts[Rule.OUT_OF_ORDER] == 60 - overtaken


def test_never_sent() -> None:
    """Messages that were not sent are found, also from an unknown source."""
    story = Story().tell("sends 100, comes 0 101")
    assert story.violates(Rule.NEVER_SENT, (100, 101))
    story.history.received(99, TASK, 0, 5, subscription="one", redelivered=False)
    assert story.verdict.counts[Rule.NEVER_SENT] == 6
    assert "6 never sent" in str(story.verdict)


@pytest.mark.parametrize(
    "ledger", [LedgerSnapshot(100, 99, {}, 0), LedgerSnapshot(99, 99, {}, 0), LedgerSnapshot(101, 101, {}, 0)]
)
def test_unbalanced(ledger: LedgerSnapshot) -> None:
    """A ledger that does not balance, or does not match the sent messages, is found."""
    story = Story()
    story.sends(100)
    story.comes(0, 100)
    story.history.settled(SOURCE, LedgerSnapshot(100, 100, {}, 0))
    assert story.verdict.ok
    story.history.settled(SOURCE, ledger)
    verdict = story.verdict
    assert verdict.counts == {**dict.fromkeys(Rule, 0), Rule.UNBALANCED: 1}
    assert f"has sent 100, its client says: {ledger}" in str(verdict.violations[0])
