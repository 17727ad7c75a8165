"""The table for users: common ways to send, each with its fastest peer and its CPU time per message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from mesh import spread
from report import RATE, Line, aligned, amount


class _Way(NamedTuple):
    """A way to send: its row, and the peers that do the same work."""

    title: str
    row: str
    peers: Sequence[str]
    percent: str = ""


_ZMQ, _GRPC = "pyzmq, same frames", "bare gRPC, same frames"
WAYS = (
    _Way("client.send() in a loop, one worker", "sends", ["pyzmq, one a call"]),
    _Way("lists of 1,000, one hop", "hop/1000", [_GRPC, _ZMQ]),
    _Way("lists of 1,000, two workers", "chain/1000", [_GRPC, _ZMQ]),
    _Way("one message, two workers, p50", "latency", ["bare gRPC relays"], "p50"),
    _Way("one message, two workers, p99", "latency", ["bare gRPC relays"], "p99"),
    _Way("a barrier of 4 tasks, p50", "team/barrier/4", ["Spark's barrier()"]),
    _Way("a DataFrame to tasks", "spark/write", ["a sink in Python"]),
)
_WORKERS = (1, 2, 4)
_MESSAGES = 8_000_000


def users_table(lines: Iterable[Line]) -> str:
    """Return the table. A peer without workers has fewer processes, and acknowledges nothing."""
    lines = list(lines)
    rows = [("", "", "CPU us/msg of each process", "fastest peer", "", "ratio")]
    for way in WAYS:
        found = [
            line
            for line in lines
            if line.row == way.row
            and line.against.startswith(tuple(way.peers))
            and (not way.percent or f": {way.percent} " in f"{line.title} ")
        ]
        best = (max if found[0].unit == RATE else min)(found, key=lambda line: line.against_value)
        cpu = " + ".join(f"{each:.2f}" for each in best.cpu_each)
        value, other = amount(best.value, best.unit), amount(best.against_value, best.unit)
        rows.append((way.title, value, cpu, best.against, other, f"{best.ratio:.2f}"))
    return aligned(rows, left={0, 2, 3})


def cores_lines() -> Iterator[str]:
    """Measure the cost of a message with more workers, and yield the resulting rate of a core."""
    for count in _WORKERS:
        cost = spread(count, _MESSAGES)
        yield (
            f"{count} workers, as many programs on each side: {cost.all_microseconds:.2f} us of CPU per "
            f"message, so a core carries {1 / cost.all_microseconds:.1f} million messages/s"
        )
