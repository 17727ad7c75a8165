"""The rows of the table: measurements, comparisons and results."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from links import (
    BARE,
    CHAIN,
    CHAIN_ZMQ,
    DIRECT,
    ECHO,
    HOP,
    HOP_LOCAL,
    HOP_ZMQ,
    MANY,
    RELAY,
    SENDS,
    SENDS_AIO,
    SINGLE,
    SPREAD,
    STOPPED,
    STORM,
    UNBATCHED,
    ZMQ,
    ZMQ_FRAMES,
    Latencies,
    Trial,
)
from workload import SENDERS, SPREAD_TASKS, Look


@dataclass(frozen=True, slots=True)
class Cell:
    """A measurement of every round: a link, the messages per frame, and the receiver's checks."""

    link: str
    frame: int
    look: Look = "count"


@dataclass(frozen=True, slots=True)
class Against:
    """The comparison of a row, and its target ratio (None: no target)."""

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


def _zmq_frames(frame: int, look: Look) -> tuple[Against, ...]:
    """Return pyzmq with the same frames, if a frame has more than one message."""
    return (Against(Cell(ZMQ_FRAMES, frame, look)),) if frame > 1 else ()


def _hop(frame: int) -> Row:
    return Row(
        f"hop/{frame}",
        f"one hop, frames of {frame}",
        Cell(HOP, frame),
        (
            Against(Cell(BARE, frame), 0.9),
            Against(_UNBATCHED),
            Against(_ZMQ, 3.5 if frame >= 1000 else None),
            *_zmq_frames(frame, "count"),
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
            Against(_ZMQ, 2.0 if frame >= 1000 else None),
            *_zmq_frames(frame, look),
        ),
    )


ROWS = (
    Row(
        "sends",
        "client.send(task, payload) in a loop, one worker, read one by one",
        Cell(SENDS, 1, "touch"),
        (Against(_ZMQ, 1.0),),
    ),
    Row(
        "sends/aio",
        "the same, awaited on an event loop",
        Cell(SENDS_AIO, 1, "touch"),
        (Against(Cell(SENDS, 1, "touch"), 0.7), Against(_ZMQ)),
    ),
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
LATENCY_RATE = 1000
PERCENTILES = (50, 99, 99.9)
MAXIMUM = 100
"""The percentile that stands for the slowest message of all rounds together."""


@dataclass(frozen=True, slots=True)
class LatencyRow:
    """Lines about the latency of single messages; a line for each percentile and peer."""

    name: str
    title: str
    link: str
    against: tuple[tuple[str, Mapping[float, float]], ...]
    """Link -> the maximum ratios, by percentile."""
    stop_seconds: float = 0.0
    """The time that the receiving process is stopped in the middle of a trial, in seconds."""

    @property
    def links(self) -> tuple[str, ...]:
        """Return all links of this row."""
        return (self.link, *(link for link, _ in self.against))


_RELAYED: Mapping[float, float] = {50: 1.3, 99: 1.5}
LATENCIES = (
    LatencyRow(LATENCY, "four processes", CHAIN, ((RELAY, _RELAYED), (ECHO, {}))),
    LatencyRow("latency/hop", "one hop", HOP, ((DIRECT, _RELAYED),)),
    LatencyRow("latency/stopped", "the receiver stops for 1 s", CHAIN, ((RELAY, {}),), stop_seconds=1.0),
)

_TITLES = {
    HOP: "transport grpc",
    CHAIN: "gRPC between them, uncut",
    BARE: "bare gRPC, same frames",
    UNBATCHED: "gRPC, one a frame",
    ZMQ: "pyzmq, one a call",
    ZMQ_FRAMES: "pyzmq, same frames",
    RELAY: "bare gRPC relays, three hops",
    DIRECT: "bare gRPC, one hop",
    ECHO: "bare gRPC, there and back",
    SENDS: "the blocking client",
    STORM: "Storm's Netty transport",
    SPREAD: "the same, none stopped",
    SINGLE: "one sender",
}


RATE = "messages/s"


@dataclass(frozen=True, slots=True)
class Line:
    """One printed comparison; rates in messages per second, latencies in milliseconds."""

    row: str
    title: str
    value: float
    unit: str
    cpu_microseconds: float | None
    """Processor time per message, over all processes on the path."""
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
    ours: Sequence[float],
    against: str,
    others: Sequence[float],
    *,
    target: float | None = None,
    cpu_microseconds: float | None = None,
) -> Line:
    """Compare a pair for each round: a ratio is the median of the rounds' own ratios.

    A disturbance in a round affects both sides. A rate must reach its target; a time must not exceed it.
    """
    ratios = [mine / other for mine, other in zip(ours, others, strict=True)]
    ratio = round(statistics.median(ratios), 2)  # the verdict uses the printed value
    rate = unit == RATE
    goal, verdict = "", ""
    if target is not None:
        goal = f"{'>=' if rate else '<='} {target}"
        verdict = "met" if (ratio >= target if rate else ratio <= target) else "missed"
    return Line(
        row,
        title,
        statistics.median(ours),
        unit,
        cpu_microseconds,
        against,
        statistics.median(others),
        ratio,
        min(ratios),
        max(ratios),
        goal,
        verdict,
    )


def throughput_lines(rows: Sequence[Row], rounds: Sequence[Mapping[Cell, Trial]]) -> list[Line]:
    """Compare the rows' cells with their peers."""
    lines = []
    for row in rows:
        cpu = statistics.median(each[row.cell].cpu_seconds / each[row.cell].messages * 1e6 for each in rounds)
        for against in row.against:
            line = compared(
                row.name,
                row.title,
                RATE,
                [each[row.cell].rate for each in rounds],
                _TITLES[against.cell.link],
                [each[against.cell].rate for each in rounds],
                target=against.target,
                cpu_microseconds=cpu,
            )
            lines.append(line)
    return lines


def latency_lines(row: LatencyRow, rounds: Sequence[Mapping[str, Latencies]]) -> list[Line]:
    """Compare a row's percentiles with its peers; a round has the latencies of each link."""
    late = {link: sum(each[link].late for each in rounds) for link in row.links}
    lines = []
    for percent in (*PERCENTILES, MAXIMUM):
        shown = "the slowest of all rounds" if percent == MAXIMUM else f"p{percent}"
        which = f"{row.title}, {LATENCY_RATE:,} messages/s of 1 KiB: {shown}"
        times = {
            link: [percentile(each[link].nanoseconds, percent) / 1e6 for each in rounds] for link in row.links
        }
        if percent == MAXIMUM:
            times = {link: [max(each)] for link, each in times.items()}
        for link, targets in row.against:
            line = compared(
                row.name,
                f"{which} ({late[row.link]} sent late)",
                "ms",
                times[row.link],
                f"{_TITLES[link]} ({late[link]} late)",
                times[link],
                target=targets.get(percent),
            )
            lines.append(line)
    return lines


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value that is above `percent` percent of the values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


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
    return f"{value:,.0f}/s" if unit == RATE else f"{value:.2f} {unit}"


def progress(text: str) -> None:
    """Report progress on a separate line, which the next call replaces on a terminal."""
    end = "" if sys.stderr.isatty() else "\n"
    start = "\r\x1b[K" if sys.stderr.isatty() else ""
    print(f"{start}{text}", end=end, file=sys.stderr, flush=True)
