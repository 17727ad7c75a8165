"""The benchmark reports: medians, ratios and verdicts. No test depends on a timing."""

from __future__ import annotations

import pytest
from links import Cell, Trial
from report import RATE, compared
from rows import Row, latency_row, row_lines
from users import WAYS, users_table

OURS, PEER, OTHER = Cell("sends", 1), Cell("zmq", 1), Cell("unbatched", 1)
ROW = Row("sends", "one by one", OURS, {PEER: 0.5, OTHER: None})


def _round(ours: int, other: int) -> dict[Cell, Trial]:
    return {OURS: Trial(ours, 1.0, (1.0,)), PEER: Trial(other, 1.0), OTHER: Trial(other, 1.0)}


def _paced(nanoseconds: int, late: int = 0) -> Trial:
    return Trial(1000, 1.0, (), [number * nanoseconds for number in range(1, 1001)], late)


def test_ratio_is_the_median_of_the_rounds_own_ratios() -> None:
    """The ratio is the median of the ratios per round, so a slow round affects both sides."""
    judged, shown = row_lines(ROW, [_round(100, 200), _round(10, 10), _round(90, 150)])
    assert (judged.value, judged.against_value, judged.ratio) == (90, 150, 0.6)
    assert (judged.lowest, judged.highest) == (0.5, 1.0)
    assert (judged.target, judged.verdict) == (">= 0.5", "met")
    assert (shown.target, shown.verdict) == ("", "")


@pytest.mark.parametrize(
    ("unit", "target", "verdict"),
    [(RATE, 2.0, "met"), (RATE, 2.01, "missed"), ("ms", 2.0, "met"), ("ms", 1.9, "missed")],
)
def test_a_rate_has_to_reach_its_target_and_a_time_to_stay_within(
    unit: str, target: float, verdict: str
) -> None:
    """The verdict uses the printed ratio."""
    assert compared("row", "title", unit, [(2.0, 1.001)], "peer", target=target).verdict == verdict


def test_users_see_the_fastest_peer_that_does_the_same_work() -> None:
    """Each way to send has one line, with its fastest comparable peer and the CPU time of each process."""
    lines = [
        compared(way.row, f"the path: {way.percent}", "ms" if way.percent else RATE, [(2.0, other)], peer)
        for way in WAYS
        for other, peer in enumerate((*way.peers, "another peer"), 1)
    ]
    lines[0] = compared("sends", "the path", RATE, [(2.0, 1.0)], WAYS[0].peers[0], cpu_each=(1.0, 0.5))
    header, first, second, *others = users_table(lines).splitlines()
    assert "1.00 + 0.50" in first
    assert WAYS[1].peers[1] in second, header  # the fastest of two, not of three
    assert len(others) == len(WAYS) - 2


def test_each_percentile_stands_beside_each_peer() -> None:
    """Percentiles are compared within each round; the slowest message is from all rounds."""
    row = latency_row("latency", "the path", "chain", {"relay": {50: 1.3}, "echo": None})
    slow, fast, faster = _paced(2_000_000, 3), _paced(1_000_000), _paced(500_000)
    cells = [row.cell, *row.against]
    one = dict(zip(cells, (slow, fast, fast), strict=True))
    lines = list(row_lines(row, [one, dict(zip(cells, (fast, faster, faster), strict=True)), one]))
    assert [line.title.split(": ")[1] for line in lines[::2]] == [
        "p50 (6 sent late)",
        "p99 (6 sent late)",
        "p99.9 (6 sent late)",
        "the slowest of all rounds (6 sent late)",
    ]
    assert [line.value for line in lines[::2]] == [1002.0, 1982.0, 2000.0, 2000.0]
    assert {line.ratio for line in lines} == {2.0}
    assert [line.verdict for line in lines] == ["missed", *[""] * 7]
