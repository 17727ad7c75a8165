"""The report of a month: a line of progress, and a table at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from campaigns.soak.account import Night
from campaigns.soak.canary import medians
from campaigns.soak.vitals import Vitals

if TYPE_CHECKING:
    from campaigns.soak.month import Month
from helpers.memory import MIB

_COLUMNS = "  night   time  worker    MiB  files  threads  series  sessions"
_MEASURED = "    messages/s  a trip, ms  of peace: rate  speed"


def progress(month: Month) -> str:
    """Return one line: the programs so far, and the remaining time."""
    account = month.account
    extent, lived = account.extent, account.lived
    done = lived["programs"] / (extent.days * extent.generations * extent.programs)
    rest = _clock(month.seconds_so_far / done - month.seconds_so_far) if done else "?"
    parts = [f"about {rest} to go", *(f"{number:,} {what}" for what, number in lived.items() if number)]
    if account.nights:
        memory = (f"{each.rss / MIB:.0f}" for each in account.nights[-1].vitals.values())
        parts.append(f"workers {' and '.join(memory)} MiB")
    return ", ".join(parts)


def table(month: Month) -> Iterator[str]:
    """Return the lines of the summary."""
    account = month.account
    yield f"lived in {_clock(month.seconds_so_far)}, SEED={month.seed}:"
    yield from _rows(month.done)
    yield from _rows(account.lived)
    yield from _rows(account.programs)
    yield "refused, by answer:"
    yield from _rows(account.attacks.counts)
    yield _COLUMNS + (_MEASURED if account.extent.pairs else "")
    for number, night in enumerate(account.nights, 1):
        yield from _night(number, night)
    first, last = account.nights[0].memory, account.nights[-1].memory
    yield from (f"{name}: {first[name] / MIB:.1f} MiB, at last {last[name] / MIB:.1f} MiB" for name in first)
    yield from (
        f"{what} of the canary is {ratio:.3f} of the first night's"
        for what, ratio in account.ratios().items()
    )


def _night(number: int, night: Night) -> Iterator[str]:
    measured = ""
    if night.pairs:
        found = medians(night.pairs)
        measured = f"{found.messages_per_second:14,.0f}{1e3 * found.trip_seconds:12.2f}"
        measured += f"{found.rate:16.3f}{found.speed:7.3f}"
    for name, vitals in night.vitals.items():
        yield f"{number:7}{_clock(night.seconds):>7}  {name:<6}{_vitals(vitals)}{measured}"
        measured = ""


def _vitals(vitals: Vitals) -> str:
    series = vitals.series.total()
    return f"{vitals.rss / MIB:7.1f}{vitals.files:7}{vitals.threads:9}{series:8}{vitals.connected:10}"


def _rows(counts: Counter[str]) -> Iterator[str]:
    yield from (f"  {number:>12,}  {what}" for what, number in counts.items())


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
