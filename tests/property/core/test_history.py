"""The ranges behind the history checker, and its verdicts, compared with plain sets and lists."""

from __future__ import annotations

from collections import Counter

from helpers.history import History, Ranges, Rule
from hypothesis import given
from hypothesis import strategies as st

from tuplewire.settings.config import AckMode

SPANS = st.tuples(st.integers(0, 60), st.integers(1, 20)).map(lambda each: (each[0], sum(each)))


def numbers(pieces: list[tuple[int, int]]) -> list[int]:
    """Return the numbers of some ranges."""
    return [number for first, stop in pieces for number in range(first, stop)]


@given(st.lists(SPANS, max_size=20), SPANS)
def test_ranges_are_a_set(spans: list[tuple[int, int]], asked: tuple[int, int]) -> None:
    """Ranges equal a set of numbers, return the numbers already present, and neither overlap nor touch."""
    ranges, model = Ranges(), set[int]()
    for first, stop in spans:
        assert numbers(ranges.add(first, stop)) == [n for n in range(first, stop) if n in model]
        model.update(range(first, stop))
        assert numbers(list(ranges)) == sorted(model)
        assert ranges.size == len(model)
        assert ranges.stop == max(model) + 1
    edges = [edge for piece in ranges for edge in piece]
    assert edges == sorted(set(edges))
    assert numbers(list(ranges.within(*asked))) == [n for n in range(*asked) if n in model]
    assert numbers(list(ranges.missing(*asked))) == [n for n in range(*asked) if n not in model]


RECEIPTS = st.lists(st.tuples(SPANS, st.sampled_from(["one", "two"]), st.booleans()), max_size=12)


@given(RECEIPTS, st.integers(0, 80))
def test_verdict_counts_each_message(
    receipts: list[tuple[tuple[int, int], str, bool]], accepted: int
) -> None:
    """The verdict is the same as for single messages, for any division of receipts into ranges."""
    history = History()
    history.source(1, AckMode.QUEUED, "w")
    history.handed_over(1, 2, 80)
    history.accepted(1, 2, accepted)
    expected: Counter[Rule] = Counter()
    copies: list[tuple[int, str, bool]] = []
    order: list[str] = []
    for (first, stop), subscription, redelivered in receipts:
        history.received(1, 2, first, stop - first, subscription=subscription, redelivered=redelivered)
        order += [subscription] if subscription not in order else []
        for number in range(first, stop):
            before = [each for each in copies if each[0] == number]
            again = any(name == subscription for _, name, _ in before)
            unmarked = not redelivered and any(
                not mark or order.index(name) <= order.index(subscription) for _, name, mark in before
            )
            expected[Rule.DUPLICATED] += again or unmarked
            expected[Rule.OUT_OF_ORDER] += not before and any(each > number for each, _, _ in copies)
            copies.append((number, subscription, redelivered))
    received = {number for number, _, _ in copies}
    expected[Rule.LOST] = len(set(range(accepted)) - received)
    verdict = history.verdict()
    assert verdict.counts == {rule: expected[rule] for rule in Rule}
    assert verdict.received == len(received)
    assert verdict.redelivered == len(copies) - len(received) - expected[Rule.DUPLICATED]
    assert verdict.ok == (not expected.total())
