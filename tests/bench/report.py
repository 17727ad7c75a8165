"""What is measured, against what, and how it stands: the rows of the table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from links import (
    BARE,
    CHAIN,
    CHAIN_ZMQ,
    HOP,
    HOP_LOCAL,
    HOP_ZMQ,
    MANY,
    SINGLE,
    SPREAD,
    STOPPED,
    UNBATCHED,
    ZMQ,
    Latencies,
    Trial,
)
from workload import SENDERS, SPREAD_TASKS, Look


@dataclass(frozen=True, slots=True)
class Cell:
    """One thing that is measured in every round: a link, the messages in a frame, the look at them."""

    link: str
    frame: int
    look: Look = "count"


@dataclass(frozen=True, slots=True)
class Against:
    """What a row is compared with, and the ratio to reach (None: shown only)."""

    cell: Cell
    target: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One line, or several, of the table."""

    name: str
    title: str
    cell: Cell
    against: tuple[Against, ...]


_ZMQ = Cell(ZMQ, 1)
_UNBATCHED = Cell(UNBATCHED, 1)


def _hop(frame: int) -> Row:
    return Row(
        f"hop/{frame}",
        f"one hop, frames of {frame}",
        Cell(HOP, frame),
        (
            Against(Cell(BARE, frame), 0.8),
            Against(_UNBATCHED),
            Against(_ZMQ, 3.5 if frame >= 1000 else None),
        ),
    )


def _other_hop(link: str, transport: str, frame: int) -> Row:
    return Row(
        f"{link}/{frame}",
        f"one hop, transport {transport}, frames of {frame}",
        Cell(link, frame),
        (Against(Cell(HOP, frame)), Against(_ZMQ)),
    )


def _chain(frame: int, look: Look) -> Row:
    touched = {"touch": "each payload read", "count": "payloads not read"}[look]
    return Row(
        f"chain/{frame}" + ("" if look == "touch" else "/unread"),
        f"four processes, frames of {frame}, {touched}",
        Cell(CHAIN, frame, look),
        (
            Against(Cell(BARE, frame)),
            Against(_UNBATCHED),
            Against(_ZMQ, 1.5 if frame >= 1000 else None),
        ),
    )


ROWS = (
    *(_hop(frame) for frame in (1, 100, 1000, 4000)),
    *(_other_hop(HOP_ZMQ, "zmq", frame) for frame in (1, 1000)),
    *(_other_hop(HOP_LOCAL, "local", frame) for frame in (1, 1000)),
    *(_chain(frame, "touch") for frame in (1, 100, 1000)),
    _chain(1000, "count"),
    Row(
        "chain-zmq/1000",
        "four processes, ZeroMQ between the workers, frames of 1000",
        Cell(CHAIN_ZMQ, 1000, "touch"),
        (Against(Cell(CHAIN, 1000, "touch")), Against(_ZMQ)),
    ),
    Row(
        "stopped",
        f"four processes, {len(SPREAD_TASKS)} tasks beside a stopped one, frames of 1000",
        Cell(STOPPED, 1000),
        (Against(Cell(SPREAD, 1000), 0.9),),
    ),
    Row(
        "senders",
        f"{SENDERS:,} senders connected to one worker, frames of 100",
        Cell(MANY, 100),
        (Against(Cell(SINGLE, 100)),),
    ),
)
LATENCY = "latency"
LATENCY_TARGETS = {50: 3.0, 99: 5.0}
"""Percentile -> the ratio to a bare round trip that is not to be exceeded."""

_TITLES = {
    HOP: "transport grpc",
    CHAIN: "gRPC between them",
    BARE: "bare gRPC, same frames",
    UNBATCHED: "gRPC, one a frame",
    ZMQ: "pyzmq, direct",
    SPREAD: "the same, none stopped",
    SINGLE: "one sender",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One comparison as printed; rates in messages a second, latencies in milliseconds."""

    row: str
    title: str
    value: float
    unit: str
    cpu_microseconds: float | None
    """Processor time a message, over all processes on the way."""
    against: str
    against_value: float
    ratio: float
    lowest: float
    highest: float
    target: str
    verdict: str

    def as_json(self) -> dict[str, Any]:
        """Return it for machines."""
        return asdict(self)


def throughput_lines(rows: Sequence[Row], rounds: Sequence[Mapping[Cell, Trial]]) -> list[Line]:
    """Compare: a ratio is the median of the rounds' own ratios, so that what slows a round slows both."""
    lines = []
    for row in rows:
        for against in row.against:
            ratios = [each[row.cell].rate / each[against.cell].rate for each in rounds]
            ratio = round(statistics.median(ratios), 2)  # what is printed is what is judged
            target = against.target
            lines.append(
                Line(
                    row.name,
                    row.title,
                    statistics.median(each[row.cell].rate for each in rounds),
                    "messages/s",
                    statistics.median(
                        each[row.cell].cpu_seconds / each[row.cell].messages * 1e6 for each in rounds
                    ),
                    _TITLES[against.cell.link],
                    statistics.median(each[against.cell].rate for each in rounds),
                    ratio,
                    min(ratios),
                    max(ratios),
                    "" if target is None else f">= {target}",
                    "" if target is None else "met" if ratio >= target else "missed",
                )
            )
    return lines


def latency_lines(rounds: Sequence[tuple[Latencies, Latencies]], title: str) -> list[Line]:
    """Compare latencies of the path and of a bare round trip; a pair for each round."""
    lines = []
    late, bare_late = (sum(each[side].late for each in rounds) for side in (0, 1))
    for percentile, target in LATENCY_TARGETS.items():
        pairs = [
            (_percentile(ours.nanoseconds, percentile), _percentile(bare.nanoseconds, percentile))
            for ours, bare in rounds
        ]
        ratios = [ours / bare for ours, bare in pairs]
        ratio = round(statistics.median(ratios), 2)
        lines.append(
            Line(
                LATENCY,
                f"{title}: p{percentile} ({late} sent late)",
                statistics.median(ours for ours, _ in pairs) / 1e6,
                "ms",
                None,
                f"bare gRPC round trip ({bare_late} late)",
                statistics.median(bare for _, bare in pairs) / 1e6,
                ratio,
                min(ratios),
                max(ratios),
                f"<= {target}",
                "met" if ratio <= target else "missed",
            )
        )
    return lines


def _percentile(values: Sequence[int], percentile: int) -> int:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percentile // 100)]


def table(lines: Sequence[Line]) -> str:
    """Return the lines as one aligned table."""
    header = ("", "", "CPU us/msg", "against", "", "ratio", "(lowest - highest)", "target", "")
    body = []
    previous = ""
    for line in lines:
        same = line.title == previous
        previous = line.title
        cpu = "" if line.cpu_microseconds is None else f"{line.cpu_microseconds:.2f}"
        body.append(
            (
                "" if same else line.title,
                "" if same else amount(line.value, line.unit),
                "" if same else cpu,
                line.against,
                amount(line.against_value, line.unit),
                f"{line.ratio:.2f}",
                f"({line.lowest:.2f} - {line.highest:.2f})",
                line.target,
                line.verdict,
            )
        )
    widths = [max(map(len, column)) for column in zip(header, *body, strict=True)]
    left = {0, 3, 8}
    return "\n".join(
        "  ".join(
            text.ljust(width) if index in left else text.rjust(width)
            for index, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in (header, *body)
    )


def amount(value: float, unit: str) -> str:
    """Return a rate or a time as printed."""
    return f"{value:,.0f}/s" if unit == "messages/s" else f"{value:.2f} {unit}"
