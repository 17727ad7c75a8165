"""What a month comes to, in words: a line on the way, and a table at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from campaigns.soak.account import Account, Night
from campaigns.soak.canary import medians
from campaigns.soak.vitals import Vitals
from helpers.memory import MIB

_COLUMNS = "  night   time  worker    MiB  files  threads  series  sessions"
_MEASURED = "    messages/s  a trip, ms  of peace: rate  speed"


def progress(account: Account) -> str:
    """Return one line: what has been lived, and how long the rest may take."""
    extent, lived = account.extent, account.lived
    done = lived["programs"] / (extent.days * extent.generations * extent.programs)
    rest = _clock(account.seconds / done - account.seconds) if done else "?"
    day = min(len(account.nights) + 1, extent.days)
    parts = [f"{_clock(account.seconds)}, about {rest} to go: day {day} of {extent.days}"]
    parts += [f"{number:,} {what}" for what, number in lived.items() if number]
    if account.nights:
        memory = (f"{each.rss / MIB:.0f}" for each in account.nights[-1].vitals.values())
        parts.append(f"workers {' and '.join(memory)} MiB")
    if account.faults:
        parts.append(f"{len(account.faults)} FAULTS")
    return ", ".join(parts)


def table(account: Account) -> Iterator[str]:
    """Return the lines of the summary."""
    yield f"lived in {_clock(account.seconds)}, SEED={account.seed}:"
    yield from _rows(account.lived)
    yield from _rows(account.programs)
    yield "refused, by answer:"
    yield from _rows(account.refused)
    yield _COLUMNS + (_MEASURED if account.extent.pairs else "")
    for number, night in enumerate(account.nights, 1):
        yield from _night(number, night)
    first, last = account.nights[0].memory, account.nights[-1].memory
    yield from (f"{name}: {first[name] / MIB:.1f} MiB, at last {last[name] / MIB:.1f} MiB" for name in first)
    yield from (f"{name} has ended ({code}): {ledger}" for name, code, ledger in account.ledgers[-3:])
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
