"""The report of the Kafka benchmark."""

from __future__ import annotations

from kafka_rows import LATENCY, ROWS, SIZES, Plan, lines, name_of

PLAN = Plan(tuple(ROWS), tuple(SIZES), 2, quick=False)


def test_each_cell_is_measured_once_a_round() -> None:
    """A write is compared with several peers, but measured once in each round."""
    cells = PLAN.cells()
    assert len(cells) == len(set(cells)) == 18
    assert [cell.peer for cell in cells if cell.verb == LATENCY] == ["tuplewire", "kafka"]


def test_lines_are_of_every_row_with_its_targets() -> None:
    """Rates are compared per round, and query latencies by percentile."""
    rounds = []
    for slow in (1, 2):
        rates = {cell: (300 if cell.peer == "tuplewire" else 100) // slow for cell in PLAN.cells()}
        times = {
            cell: [float(number * slow) for number in range(100)]
            for cell in PLAN.cells()
            if cell.verb == LATENCY
        }
        rounds.append({**rates, **times})
    found = list(lines(PLAN, 10_000, rounds))
    judged = {line.row: (line.ratio, line.target, line.verdict) for line in found if line.target}
    assert judged == {
        "write/10000": (3.0, ">= 2.0", "met"),
        "bulk/10000": (3.0, ">= 2.0", "met"),
        "sink/10000": (3.0, ">= 0.9", "met"),
        "read/10000": (3.0, ">= 1.5", "met"),
        "stream/10000": (3.0, ">= 1.2", "met"),
        "backlog/10000": (3.0, ">= 1.2", "met"),
        "batches/10000": (3.0, ">= 1.2", "met"),
        "latency/10000": (1.0, "<= 0.4", "missed"),
    }
    assert [line.title for line in found[-2:]] == [
        "one message through a query, 10 KB: p50",
        "one message through a query, 10 KB: p90",
    ]
    assert [line.value for line in found[-2:]] == [75.0, 135.0]


def test_quick_is_a_tenth_of_the_rows() -> None:
    """A quick run measures a tenth of the rows."""
    quick = Plan(("write",), (100,), 1, quick=True)
    assert quick.amount(quick.cells()[0], 100) == SIZES[100] // 10
    assert [name_of(size) for size in SIZES] == ["10 B", "100 B", "10 KB"]
