"""Journals: the events of each process of a campaign, written to disk before they have effects.

A journal survives the SIGKILL of its process: each line is one write. Times are from the monotonic clock,
which all processes of a machine share, so that journals can be merged.
"""

from __future__ import annotations

import heapq
import json
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from helpers.history import History

from tuplewire.session.ledger import LedgerSnapshot
from tuplewire.settings.config import AckMode

Record = tuple[int, str, dict[str, Any]]
"""The time (monotonic nanoseconds), the method of History, and its arguments."""


class Journal:
    """Appends records to its own file. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb", buffering=0)
        self._lock = threading.Lock()

    def write(self, event: str, **facts: Any) -> None:
        """Record an event; it is in the file when this returns."""
        with self._lock:
            self._file.write(json.dumps([time.monotonic_ns(), event, facts]).encode() + b"\n")

    def close(self) -> None:
        self._file.close()


def records(path: Path) -> Iterator[Record]:
    """Read a journal. An incomplete last line, from a killed process, had no effects and is skipped."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                at, event, facts = json.loads(line)
                yield at, event, facts


def history_of(journals: Iterable[Path], killed: Collection[Path] = ()) -> History:
    """Replay journals in the order of time; killed producers have no guarantee for accepted messages."""

    def promised(path: Path) -> Iterator[Record]:
        return (record for record in records(path) if record[1] != "accepted" or path not in killed)

    history = History()
    for _, event, facts in heapq.merge(*map(promised, journals), key=lambda record: record[0]):
        if event == "settled":
            facts["ledger"] = LedgerSnapshot(**facts["ledger"])
        elif event == "source":
            facts["mode"] = AckMode(facts["mode"])
        getattr(history, event)(**facts)
    return history
