"""The rows of links: their measurements, comparisons and targets."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from links import LEAST_SECONDS, Cell, LinkName, Links, Trial
from report import RATE, Line, compared, in_turns, medians, percentile, progress
from workload import MESSAGE_BYTES, SENDERS, SPREAD_TASKS, Look

LATENCY_RATE = 1000
MAXIMUM = 100
"""The percentile that stands for the slowest message of all rounds together."""
PERCENTILES = (50, 99, 99.9, MAXIMUM)
_CHECKED_MESSAGES = 20_000
_WARM_SECONDS = 0.5

C = TypeVar("C", bound=Hashable)
"""A measurement of every round, with a `title`."""
Targets = float | Mapping[float, float] | None
"""The target ratio of a rate, or the maximum ratios of times by percentile; None: no target."""


@dataclass(frozen=True, slots=True)
class Row(Generic[C]):
    """One line, or several, of the table: a cell, compared with others, each with its targets."""

    name: str
    title: str
    cell: C
    against: Mapping[C, Targets]
    percentiles: Sequence[float] = ()
    """The percentiles of times to print; none: the rate."""


_ZMQ, _UNBATCHED = Cell("zmq", 1), Cell("unbatched", 1)
_SINGLE_SENDS = Cell("sends", 1, "touch")


def _framed(frame: int, look: Look, bare: float | None, zmq: float) -> dict[Cell, Targets]:
    """Return bare gRPC and pyzmq, also with the same frames if a frame has more than one message."""
    found: dict[Cell, Targets] = {Cell("bare", frame): bare, _UNBATCHED: None}
    found[_ZMQ] = zmq if frame >= 1000 else None
    return found if frame == 1 else {**found, Cell("zmq-frames", frame, look): None}


def _hop(frame: int) -> Row[Cell]:
    against = _framed(frame, "count", 0.9, 3.5)
    return Row(f"hop/{frame}", f"one hop, frames of {frame}", Cell("hop", frame), against)


def _other_hop(link: LinkName, frame: int) -> Row[Cell]:
    title = f"one hop, transport {link.removeprefix('hop-')}, frames of {frame}"
    return Row(f"{link}/{frame}", title, Cell(link, frame), {Cell("hop", frame): None, _ZMQ: None})


def _chain(frame: int, look: Look) -> Row[Cell]:
    suffix, read = ("", "each payload read") if look == "touch" else ("/unread", "payloads not read")
    title = f"four processes, frames of {frame}, {read}"
    return Row(f"chain/{frame}{suffix}", title, Cell("chain", frame, look), _framed(frame, look, None, 2.0))


_OTHER_HOPS: tuple[LinkName, ...] = ("hop-zmq", "hop-local")
ROWS = (
    Row(
        "sends",
        "client.send(task, payload) in a loop, one worker, read one by one",
        _SINGLE_SENDS,
        {_ZMQ: 1.0},
    ),
    Row(
        "sends/aio",
        "the same, awaited on an event loop",
        Cell("sends-aio", 1, "touch"),
        {_SINGLE_SENDS: 0.7, _ZMQ: None},
    ),
    *(_hop(frame) for frame in (1, 100, 1000, 4000)),
    *(_other_hop(link, frame) for link in _OTHER_HOPS for frame in (1, 1000)),
    *(_chain(frame, "touch") for frame in (1, 100, 1000)),
    _chain(1000, "count"),
    Row(
        "recv/elsewhere",
        "four processes, received with the address of the other worker, frames of 1000",
        Cell("elsewhere", 1000, "touch"),
        {Cell("chain", 1000, "touch"): 0.95},
    ),
    Row(
        "chain-zmq/1000",
        "four processes, ZeroMQ between the workers, frames of 1000",
        Cell("chain-zmq", 1000, "touch"),
        {Cell("chain", 1000, "touch"): None, _ZMQ: None},
    ),
    Row(
        "stopped",
        f"four processes, {len(SPREAD_TASKS)} tasks beside a stopped one, frames of 1000",
        Cell("stopped", 1000),
        {Cell("spread", 1000): 0.9},
    ),
    Row(
        "senders",
        f"{SENDERS:,} senders connected to one worker, frames of 100",
        Cell("many", 100),
        {Cell("single", 100): None},
    ),
)


def latency_row(
    name: str, title: str, link: LinkName, against: Mapping[LinkName, Targets], stop_seconds: float = 0.0
) -> Row[Cell]:
    """Return a row about the latency of single messages."""
    ours, *others = (
        Cell(each, look="latency", rate=LATENCY_RATE, stop_seconds=stop_seconds) for each in (link, *against)
    )
    title = f"{title}, {LATENCY_RATE:,} messages/s of 1 KiB"
    return Row(name, title, ours, dict(zip(others, against.values(), strict=True)), PERCENTILES)


_RELAYED: Targets = {50: 1.3, 99: 1.5}
LATENCIES = (
    latency_row("latency", "four processes", "chain", {"relay": _RELAYED, "echo": None}),
    latency_row("latency/hop", "one hop", "hop", {"direct": _RELAYED}),
    latency_row("latency/stopped", "the receiver stops for 1 s", "chain", {"relay": None}, stop_seconds=1.0),
)
REQUESTS = (
    Row(
        "ask",
        "a request of 1 KiB and its answer through two workers",
        Cell("ask", requests=500),
        {Cell("bare-ask", requests=500): {50: 2.5}},
        (50, 99),
    ),
)


def measure(
    rounds: int, rows: Sequence[Row[Cell]], links: Links, names: Sequence[str], seconds: float
) -> list[Line]:
    """Run every cell of the named rows once per round; `seconds` is the total time."""
    rows = [row for row in rows if row.name in names]
    cells = list(dict.fromkeys(cell for row in rows for cell in (row.cell, *row.against)))
    for cell in cells:
        progress(f"check and warm up: {cell}")
        if cell.frame:
            few = _CHECKED_MESSAGES if cell.frame > 1 else _CHECKED_MESSAGES // 10
            links[cell.link].check(cell.frame, few)
        else:
            links[cell.link].trial(cell._replace(stop_seconds=0.0), _WARM_SECONDS)
    each = seconds / rounds / len(cells)
    found = in_turns("links", rounds, {cell: partial(links[cell.link].trial, cell, each) for cell in cells})
    return [line for row in rows for line in row_lines(row, found)]


def row_lines(row: Row[Any], rounds: Sequence[Mapping[Any, Trial]]) -> Iterator[Line]:
    """Compare a row's rate, or its percentiles, with its peers."""
    ours = [each[row.cell] for each in rounds]
    cpu = medians(trial.cpu_microseconds for trial in ours)
    for percent in row.percentiles or (None,):
        for other, targets in row.against.items():
            theirs = [each[other] for each in rounds]
            target = targets.get(percent) if isinstance(targets, Mapping) and percent else targets
            assert not isinstance(target, Mapping)
            if percent is None:
                pairs = [(mine.rate, their.rate) for mine, their in zip(ours, theirs, strict=True)]
                yield compared(row.name, row.title, RATE, pairs, other.title, target=target, cpu_each=cpu)
                continue
            times = zip(milliseconds(ours, percent), milliseconds(theirs, percent), strict=True)
            shown = "the slowest of all rounds" if percent == MAXIMUM else f"p{percent}"
            yield compared(
                row.name,
                f"{row.title}: {shown}{_late(ours, 'sent late')}",
                "ms",
                list(times),
                f"{other.title}{_late(theirs, 'late')}",
                target=target,
                cpu_each=cpu,
            )


def _late(trials: Sequence[Trial], how: str) -> str:
    late = [trial.late for trial in trials if trial.late is not None]
    return f" ({sum(late)} {how})" if late else ""


def milliseconds(trials: Sequence[Trial], percent: float) -> list[float]:
    """Return a percentile of the times of each trial; for MAXIMUM, only the highest of all."""
    times = [percentile(trial.nanoseconds, percent) / 1e6 for trial in trials]
    return [max(times)] if percent == MAXIMUM else times


OFFERED = "offered"

_RATES = (1_000, 10_000, 50_000, 100_000, 200_000, 1_000_000)
"""Messages due per second; the last rate exceeds the maximum throughput."""
_GATHERED = (10, 100, 1000)
"""Numbers of messages that the program gathers before it sends them."""
_OFFERED_ROUNDS = 3
_P50_TARGET, _RATE_TARGET = 1.3, 0.95


def measure_offered(links: Links, _: Sequence[str], seconds: float) -> list[Line]:
    """Offer each load in each way, in turns; `seconds` is the total time."""
    choices = (1, *_GATHERED)
    each = max(seconds / _OFFERED_ROUNDS / len(_RATES) / len(choices), LEAST_SECONDS)
    lines: list[Line] = []
    for rate in _RATES:
        paced = partial(links["chain"].paced, rate, each, size=MESSAGE_BYTES)
        cells: dict[int, Callable[[], Trial]] = {gather: partial(paced, gather=gather) for gather in choices}
        lines += _offered_lines(rate, in_turns(f"{rate:,} messages/s offered", _OFFERED_ROUNDS, cells))
    return lines


def _offered_lines(rate: int, rounds: Sequence[Mapping[int, Trial]]) -> Iterator[Line]:
    saturated = rate == _RATES[-1]
    what = "as much as goes" if saturated else f"{rate:,} messages/s"
    title = f"four processes, {what} of {MESSAGE_BYTES} bytes, sent one by one"
    trials = {gather: [each[gather] for each in rounds] for gather in rounds[0]}
    rates = {gather: [each.rate for each in found] for gather, found in trials.items()}
    came = {gather: f"{statistics.median(found):,.0f}/s came" for gather, found in rates.items()}
    if saturated:
        best = max(_GATHERED, key=lambda gather: statistics.median(rates[gather]))
        pairs = list(zip(rates[1], rates[best], strict=True))
        yield compared(OFFERED, title, RATE, pairs, f"gathered by {best}, the best", target=_RATE_TARGET)
        return
    for percent, target in ((50, _P50_TARGET), (99, None)):
        times = {gather: milliseconds(found, percent) for gather, found in trials.items()}
        best = min(_GATHERED, key=lambda gather: statistics.median(times[gather]))
        yield compared(
            OFFERED,
            f"{title}: p{percent}, {came[1]}",
            "ms",
            list(zip(times[1], times[best], strict=True)),
            f"gathered by {best}, the best, {came[best]}",
            target=target,
        )
