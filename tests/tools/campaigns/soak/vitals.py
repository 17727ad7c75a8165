"""The resources of a worker: memory, files, threads, series, sessions, and its ledger."""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from campaigns.soak.generations import is_fresh
from helpers.admin import samples
from helpers.memory import rss
from helpers.restartable import RestartableWorker

from tuplewire.session.ledger import LedgerSnapshot

_TASK = re.compile(r'task="\d+"')
_WHOM_IT_BLOCKS = re.compile(r'tuplewire_blocking_seconds_total\{place=.*,task="(\d+)"')
_FILES, _THREADS = 2, 4 + min(32, (os.cpu_count() or 1) + 4)
"""Allowed growth: gRPC's pools may retain some for a while, and asyncio's pool grows when calls overlap."""


@dataclass(frozen=True, slots=True)
class Vitals:
    """One worker at one moment. Memory is in bytes."""

    rss: int
    files: int
    threads: int
    series: Counter[str]
    """Names of metrics with labels, all tasks as one, without series that appear by chance."""
    connected: int
    resumable: int
    ledger: LedgerSnapshot


def vitals_of(worker: RestartableWorker) -> Vitals:
    """Read the vitals of a worker."""
    endpoint = worker.endpoint
    found = samples(endpoint.metrics_url)
    process = Path(f"/proc/{endpoint.process_id}")
    return Vitals(
        rss(endpoint.process_id),
        len(list((process / "fd").iterdir())),
        len(list((process / "task").iterdir())),
        Counter(_TASK.sub('task="N"', name) for name in found if not _by_chance(name)),
        int(found['tuplewire_senders{state="connected"}']),
        int(found['tuplewire_senders{state="resumable"}']),
        worker.ledger(),
    )


def _by_chance(name: str) -> bool:
    """Return True for the common series of disconnected sources, and blocking times of permanent tasks."""
    if 'source="other"' in name:
        return True
    found = _WHOM_IT_BLOCKS.match(name)
    return found is not None and not is_fresh(int(found[1]))


def more(first: Vitals, now: Vitals) -> dict[str, str]:
    """Return the resources that a worker holds more of than at first, except memory, as text."""
    found = {
        name: f"{getattr(now, name)}, at first {getattr(first, name)}"
        for name, slack in (("files", _FILES), ("threads", _THREADS), ("connected", 0), ("resumable", 0))
        if getattr(now, name) > getattr(first, name) + slack
    }
    if added := now.series - first.series:
        shown = ", ".join(f"{name} ({count} more)" for name, count in added.most_common(5))
        found["series"] = f"{now.series.total()}, at first {first.series.total()}; such as {shown}"
    return found
