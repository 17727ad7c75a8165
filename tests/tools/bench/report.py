"""The lines of the table: comparisons, targets and results."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

RATE = "messages/s"
K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Line:
    """One printed comparison; rates in messages per second, latencies in milliseconds."""

    row: str
    title: str
    value: float
    unit: str
    cpu_microseconds: float | None
    """Processor time per message, over all processes on the path."""
    cpu_each: Sequence[float]
    """The same for each process: the sender, workers, the receiver."""
    against: str
    against_value: float
    ratio: float
    lowest: float
    highest: float
    target: str
    verdict: str


def compared(
    row: str,
    title: str,
    unit: str,
    pairs: Sequence[tuple[float, float]],
    against: str,
    *,
    target: float | None = None,
    cpu_each: Sequence[float] = (),
) -> Line:
    """Compare a pair for each round: a ratio is the median of the rounds' own ratios.

    A disturbance in a round affects both sides. A rate must reach its target; a time must not exceed it.
    """
    ratios = [mine / other for mine, other in pairs]
    ratio = round(statistics.median(ratios), 2)  # the verdict uses the printed value
    rate = unit == RATE
    goal, verdict = "", ""
    if target is not None:
        goal = f"{'>=' if rate else '<='} {target}"
        verdict = "met" if (ratio >= target if rate else ratio <= target) else "missed"
    value, other_value = map(statistics.median, zip(*pairs, strict=True))
    cpu = sum(cpu_each) or None
    lowest, highest = min(ratios), max(ratios)
    return Line(
        row, title, value, unit, cpu, cpu_each, against, other_value, ratio, lowest, highest, goal, verdict
    )


def medians(each: Iterable[Sequence[float]]) -> list[float]:
    """Return the median of each position."""
    return [statistics.median(position) for position in zip(*each, strict=True)]


def in_turns(what: str, rounds: int, cells: Mapping[K, Callable[[], Any]]) -> list[dict[K, Any]]:
    """Take every measurement once per round; return the results of each round."""
    found: list[dict[K, Any]] = []
    for number in range(1, rounds + 1):
        found.append({})
        for position, (cell, measure) in enumerate(cells.items(), 1):
            progress(f"{what}, round {number} of {rounds}, {position} of {len(cells)}: {cell}")
            found[-1][cell] = measure()
    return found


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value that is above `percent` percent of the values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def table(lines: Sequence[Line]) -> str:
    """Return the lines as one aligned table."""
    rows = [("", "", "CPU us/msg", "against", "", "ratio", "(lowest - highest)", "target", "")]
    previous = ""
    for line in lines:
        cpu = "" if line.cpu_microseconds is None else f"{line.cpu_microseconds:.2f}"
        own = (line.title, amount(line.value, line.unit), cpu)
        rows.append(
            (
                *(("", "", "") if line.title == previous else own),
                line.against,
                amount(line.against_value, line.unit),
                f"{line.ratio:.2f}",
                f"({line.lowest:.2f} - {line.highest:.2f})",
                line.target,
                line.verdict,
            )
        )
        previous = line.title
    return aligned(rows, left={0, 3, 8})


def aligned(rows: Sequence[Sequence[str]], left: Container[int]) -> str:
    """Return rows of text as an aligned table. `left` has the columns that are aligned to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    form = "  ".join(f"{{:{'<' if index in left else '>'}{each}}}" for index, each in enumerate(widths))
    return "\n".join(form.format(*row).rstrip() for row in rows)


def amount(value: float, unit: str) -> str:
    """Return a rate or a time as printed."""
    return f"{value:,.0f}/s" if unit == RATE else f"{value:.2f} {unit}"


def progress(text: str) -> None:
    """Report progress on a separate line, which the next call replaces on a terminal."""
    start, end = ("\r\x1b[K", "") if sys.stderr.isatty() else ("", "\n")
    print(f"{start}{text}", end=end, file=sys.stderr, flush=True)
