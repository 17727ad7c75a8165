"""The rows of offered load: from idle to saturation, single messages compared with fixed batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median

from links import CHAIN, Latencies, Links
from report import RATE, Line, compared, percentile
from workload import MESSAGE_BYTES

OFFERED = "offered"

_RATES = (1_000, 10_000, 50_000, 100_000, 200_000, 1_000_000)
"""Messages due per second; the last rate exceeds the maximum throughput."""
_GATHERED = (10, 100, 1000)
"""Numbers of messages that the program gathers before it sends them."""
_ROUNDS = 3
_LEAST_SECONDS = 0.5
_P50_TARGET = 1.3
_RATE_TARGET = 0.95


def measure_offered(links: Links, seconds: float, progress: Callable[[str], None]) -> list[Line]:
    """Offer each load in each way, in turns; `seconds` is the total time."""
    link = links[CHAIN]
    choices = (1, *_GATHERED)
    each = max(seconds / _ROUNDS / len(_RATES) / len(choices), _LEAST_SECONDS)
    lines: list[Line] = []
    for rate in _RATES:
        rounds: list[dict[int, Latencies]] = []
        for number in range(1, _ROUNDS + 1):
            progress(f"{rate:,} messages/s offered, round {number} of {_ROUNDS}")
            rounds.append(
                {gather: link.paced(rate, each, size=MESSAGE_BYTES, gather=gather) for gather in choices}
            )
        lines += _lines(rate, rounds)
    return lines


def _lines(rate: int, rounds: list[dict[int, Latencies]]) -> Iterator[Line]:
    saturated = rate == _RATES[-1]
    what = "as much as goes" if saturated else f"{rate:,} messages/s"
    title = f"four processes, {what} of {MESSAGE_BYTES} bytes, sent one by one"
    rates = {gather: [each[gather].rate for each in rounds] for gather in rounds[0]}
    if saturated:
        best = max(_GATHERED, key=lambda gather: median(rates[gather]))
        yield compared(
            OFFERED, title, RATE, rates[1], f"gathered by {best}, the best", rates[best], target=_RATE_TARGET
        )
        return
    for percent in (50, 99):
        times = {
            gather: [percentile(each[gather].nanoseconds, percent) / 1e6 for each in rounds]
            for gather in rounds[0]
        }
        best = min(_GATHERED, key=lambda gather: median(times[gather]))
        yield compared(
            OFFERED,
            f"{title}: p{percent}, {median(rates[1]):,.0f}/s came",
            "ms",
            times[1],
            f"gathered by {best}, the best, {median(rates[best]):,.0f}/s came",
            times[best],
            target=_P50_TARGET if percent == 50 else None,
        )
