"""The history checker finds each broken promise, and nothing in a history that keeps them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest
from helpers.history import History, Rule, Verdict

from tuplewire.session.ledger import LedgerSnapshot
from tuplewire.settings.config import AckMode

SOURCE, TASK = 7, 3
NEAR, FAR, OTHER = "near", "far", "other"


class Story:
    """One source that sends to one task through `near`, which `far` holds; told step by step."""

    def __init__(self, mode: AckMode = AckMode.QUEUED) -> None:
        self.history = History()
        self.history.source(SOURCE, mode, NEAR)
        self.history.owns(TASK, FAR)
        self.sent = 0

    def sends(self, count: int) -> None:
        """Send so many more."""
        self.history.handed_over(SOURCE, TASK, self.sent + count)
        self.sent += count
        self.history.accepted(SOURCE, TASK, self.sent)

    def comes(self, first: int, stop: int, *, to: str = "one", redelivered: bool = False) -> None:
        """Receive the numbers from first up to stop."""
        self.history.received(SOURCE, TASK, first, stop - first, subscription=to, redelivered=redelivered)

    def dies(self, worker: str) -> None:
        """Kill a worker."""
        self.history.worker_ended(worker, killed=True)

    def ends(self, worker: str) -> None:
        """Let a worker drain and exit."""
        self.history.worker_ended(worker, killed=False)

    def moves_from(self, worker: str) -> None:
        """Begin to move the task from one worker to the other."""
        self.history.owns(TASK, NEAR if worker == FAR else FAR)

    def has_left(self, worker: str) -> None:
        """End the move."""
        self.history.left(TASK, worker)

    @property
    def verdict(self) -> Verdict:
        """Judge."""
        return self.history.verdict()

    def violates(self, rule: Rule, *pieces: tuple[int, int]) -> bool:
        """Whether exactly these numbers violate this rule, and no other rule is violated."""
        verdict = self.verdict
        found = [(each.first, each.first + each.count) for each in verdict.violations]
        assert all(each.rule is rule for each in verdict.violations), verdict.violations
        assert all((each.source, each.task) == (SOURCE, TASK) for each in verdict.violations)
        assert verdict.counts == {
            **dict.fromkeys(Rule, 0),
            rule: sum(stop - first for first, stop in pieces),
        }
        return found == list(pieces) and not verdict.ok


def test_a_faultless_history() -> None:
    """Everything comes once, in order, in pieces of any size."""
    story = Story()
    story.sends(100)
    story.comes(0, 30)
    story.sends(100)
    story.comes(30, 170)
    story.comes(170, 200, to="two")
    assert story.verdict.ok
    assert (story.verdict.accepted, story.verdict.received) == (200, 200)
    assert str(story.verdict) == "0 lost, 0 duplicated, 0 out of order"


# --- lost ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gap", "rest"), [((0, 10), (10, 100)), ((40, 41), (41, 100)), ((90, 100), None)])
def test_lost(gap: tuple[int, int], rest: tuple[int, int] | None) -> None:
    """A gap at the beginning, within, or at the end is found."""
    story = Story()
    story.sends(100)
    if gap[0]:
        story.comes(0, gap[0])
    if rest is not None:
        story.comes(*rest)
    assert story.violates(Rule.LOST, gap)
    assert str(story.verdict).startswith(f"{gap[1] - gap[0]} lost")


def test_what_was_not_accepted_may_be_missing() -> None:
    """A send that has not returned has promised nothing, and what it sent may arrive."""
    story = Story()
    story.history.handed_over(SOURCE, TASK, 10)
    assert story.verdict.ok
    story.comes(0, 5)
    assert story.verdict.ok


@pytest.mark.parametrize("worker", [NEAR, FAR])
def test_a_killed_worker_may_lose_what_it_had_queued(worker: str) -> None:
    """In the mode queued what a killed worker on the way may have held is allowed to be missing."""
    story = Story()
    story.sends(100)
    story.comes(0, 60)
    story.dies(worker)
    story.sends(100)
    story.comes(70, 200, redelivered=True)
    assert story.verdict.ok
    assert story.verdict.died == 10


@pytest.mark.parametrize("worker", [NEAR, FAR])
def test_processed_survives_a_killed_worker(worker: str) -> None:
    """In the mode processed nothing may be missing, whoever dies."""
    story = Story(AckMode.PROCESSED)
    story.sends(100)
    story.comes(0, 60)
    story.dies(worker)
    story.comes(70, 100)
    assert story.violates(Rule.LOST, (60, 70))


def test_a_worker_elsewhere_loses_nothing() -> None:
    """The death of a worker that was not on the way excuses nothing."""
    story = Story()
    story.sends(100)
    story.comes(0, 60)
    story.dies(OTHER)
    story.comes(70, 100)
    assert story.violates(Rule.LOST, (60, 70))


def test_a_drained_worker_loses_nothing() -> None:
    """A worker that ends in good order has no excuse."""
    story = Story()
    story.sends(100)
    story.comes(0, 60)
    story.ends(FAR)
    story.comes(70, 100)
    assert story.violates(Rule.LOST, (60, 70))


def test_what_was_sent_after_a_death_is_not_excused() -> None:
    """A killed worker cannot have held what was sent after it had died."""
    story = Story()
    story.sends(100)
    story.dies(FAR)
    story.sends(100)
    story.comes(110, 200)
    assert story.violates(Rule.LOST, (100, 110))
    assert story.verdict.died == 100


def test_what_was_lost_before_a_death_is_not_excused() -> None:
    """Where something later had come before the death, the earlier was lost already."""
    story = Story()
    story.sends(100)
    story.comes(0, 10)
    story.comes(20, 50)
    story.dies(FAR)
    assert story.violates(Rule.LOST, (10, 20))
    assert story.verdict.died == 50


def test_a_moved_task_can_be_lost_where_it_was_and_where_it_is() -> None:
    """While a task moves both owners may hold its messages; once it has left the former one holds none."""
    for worker, moved, excused in ((FAR, False, True), (OTHER, False, True), (FAR, True, False)):
        story = Story()
        story.sends(100)
        story.history.owns(TASK, OTHER)
        if moved:
            story.history.left(TASK, FAR)
        story.dies(worker)
        assert story.verdict.ok is excused


def test_dropped_is_not_lost() -> None:
    """What the producer was told to be dropped is not expected; what is missing beyond that is lost."""
    story = Story()
    story.sends(100)
    story.comes(0, 90)
    story.history.settled(SOURCE, LedgerSnapshot(100, 90, {"unknown_task": 10}, 0))
    assert story.verdict.ok
    assert story.verdict.dropped == 10
    story.history.settled(SOURCE, LedgerSnapshot(100, 96, {"unknown_task": 4}, 0))
    assert story.verdict.counts[Rule.LOST] == 6


# --- duplicated ------------------------------------------------------------------------------------


def test_duplicated_without_a_mark() -> None:
    """A copy to another subscription has to be marked."""
    story = Story()
    story.sends(100)
    story.comes(0, 60)
    story.comes(50, 100, to="two")
    assert story.violates(Rule.DUPLICATED, (50, 60))


def test_redelivered_to_another_subscription() -> None:
    """A marked copy for the next subscriber is allowed, whichever of the two says first what it has got."""
    for first, marks in (("one", (False, True)), ("two", (True, False)), ("one", (True, True))):
        story = Story()
        story.sends(100)
        story.history.subscribed(first)
        story.comes(0, 60, redelivered=marks[0])
        story.comes(50, 100, to="two", redelivered=marks[1])
        assert story.verdict.ok
        assert (story.verdict.redelivered, story.verdict.received) == (10, 100)


def test_a_later_copy_without_a_mark() -> None:
    """Marked for the first subscriber, not marked for the next: who keeps what is not marked has it twice."""
    story = Story()
    story.sends(100)
    story.comes(0, 60, redelivered=True)
    story.comes(50, 100, to="two")
    assert story.violates(Rule.DUPLICATED, (50, 60))


def test_duplicated_within_a_subscription() -> None:
    """Within one subscription a mark is no excuse while every worker lives and no task moves."""
    story = Story()
    story.sends(100)
    story.comes(0, 60)
    story.comes(50, 100, redelivered=True)
    assert story.violates(Rule.DUPLICATED, (50, 60))


@pytest.mark.parametrize("end", [Story.dies, Story.ends, Story.moves_from, Story.has_left])
def test_redelivered_after_the_end_of_a_worker_or_a_move(end: Callable[[Story, str], None]) -> None:
    """What was sent before may come to one subscription again, marked; the rest not."""
    story = Story()
    story.sends(80)
    story.comes(0, 60)
    end(story, FAR)
    story.sends(20)
    story.comes(60, 100)
    story.comes(50, 80, redelivered=True)
    assert story.verdict.ok
    story.comes(79, 81, redelivered=True)
    assert story.violates(Rule.DUPLICATED, (80, 81))


@pytest.mark.parametrize("end", [Story.dies, Story.ends, Story.moves_from, Story.has_left])
def test_neither_excuses_a_missing_mark(end: Callable[[Story, str], None]) -> None:
    """Without a mark a copy is a duplicate, whatever has happened."""
    story = Story()
    story.sends(100)
    story.comes(0, 60)
    end(story, FAR)
    story.comes(50, 100)
    assert story.violates(Rule.DUPLICATED, (50, 60))


def test_three_copies() -> None:
    """Each copy too many counts, once."""
    story = Story()
    story.sends(10)
    for _ in range(3):
        story.comes(0, 10)
    assert story.violates(Rule.DUPLICATED, (0, 10), (0, 10))
    assert story.verdict.redelivered == 0


# --- order -----------------------------------------------------------------------------------------


def test_out_of_order() -> None:
    """What comes for the first time after a later one is out of order."""
    story = Story()
    story.sends(100)
    story.comes(0, 40)
    story.comes(50, 100)
    story.comes(40, 50)
    assert story.violates(Rule.OUT_OF_ORDER, (40, 50))


def test_out_of_order_across_subscriptions_and_marks() -> None:
    """Neither another subscriber nor a mark excuses it."""
    story = Story()
    story.sends(100)
    story.comes(50, 100)
    story.comes(0, 50, to="two", redelivered=True)
    assert story.violates(Rule.OUT_OF_ORDER, (0, 50))


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
    """Only what was on its way to a moving task, when a worker on that way was killed, may come late."""
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


def test_copies_do_not_disturb_the_order() -> None:
    """Only the first copy of each has to be in order."""
    story = Story()
    story.sends(100)
    story.comes(0, 80)
    story.comes(20, 100, to="two", redelivered=True)
    assert story.verdict.ok


# --- the rest --------------------------------------------------------------------------------------


def test_never_sent() -> None:
    """What comes without having been sent is found, also from a source that nobody knows."""
    story = Story()
    story.sends(100)
    story.comes(0, 101)
    assert story.violates(Rule.NEVER_SENT, (100, 101))
    story.history.received(99, TASK, 0, 5, subscription="one", redelivered=False)
    assert story.verdict.counts[Rule.NEVER_SENT] == 6
    assert "6 never sent" in str(story.verdict)


@pytest.mark.parametrize(
    "ledger",
    [
        LedgerSnapshot(100, 99, {}, 0),
        LedgerSnapshot(99, 99, {}, 0),
        LedgerSnapshot(101, 101, {}, 0),
    ],
)
def test_unbalanced(ledger: LedgerSnapshot) -> None:
    """A balance that does not add up, or not to what was sent, is found."""
    story = Story()
    story.sends(100)
    story.comes(0, 100)
    story.history.settled(SOURCE, LedgerSnapshot(100, 100, {}, 0))
    assert story.verdict.ok
    story.history.settled(SOURCE, ledger)
    verdict = story.verdict
    assert verdict.counts == {**dict.fromkeys(Rule, 0), Rule.UNBALANCED: 1}
    assert f"has sent 100, its client says: {ledger}" in str(verdict.violations[0])


def test_flows_are_apart() -> None:
    """Order and completeness are those of each source and task, not of all together."""
    history = History()
    for source in (1, 2):
        history.source(source, AckMode.QUEUED, NEAR)
        for task in (5, 6):
            history.handed_over(source, task, 10)
            history.accepted(source, task, 10)
    for source, task in ((1, 6), (2, 5), (1, 5)):
        history.received(source, task, 0, 10, subscription="one", redelivered=False)
    (violation,) = history.verdict().violations
    assert (violation.rule, violation.source, violation.task) == (Rule.LOST, 2, 6)


def test_an_unknown_source_is_an_error() -> None:
    """A source has to be announced before it sends."""
    with pytest.raises(ValueError, match="source 7 is unknown"):
        History().accepted(7, 1, 1)


def test_many_violations_are_counted_and_not_all_kept() -> None:
    """A thoroughly broken history costs no more memory than a report can show."""
    story = Story()
    story.sends(10_000)
    for number in range(0, 10_000, 2):
        story.comes(number, number + 1)
    assert story.verdict.counts[Rule.LOST] == 5000
    assert len(story.verdict.violations) == 50


@pytest.mark.slow
def test_millions_of_messages_take_little_memory() -> None:
    """Memory does not grow with the messages of a history that keeps the promises."""
    story = Story()
    tracemalloc.start()
    try:
        for start in range(0, 20_000_000, 1000):
            story.sends(1000)
            story.comes(start, start + 1000)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert story.verdict.ok
    assert story.verdict.received == 20_000_000
