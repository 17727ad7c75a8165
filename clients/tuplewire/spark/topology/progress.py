"""How far a topology on Spark is."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TopologyProgress:
    """How far a topology is. generation: of its PySpark tasks, None before they run; members: how many.

    emitted, executed: tuples, in all of them.
    """

    generation: int | None = None
    members: int = 0
    emitted: int = 0
    executed: int = 0

    def __str__(self) -> str:
        if self.generation is None:
            return "waiting for Spark to start the PySpark tasks"
        return f"{self.members} PySpark tasks, emitted {self.emitted:,}, executed {self.executed:,} tuples"


class ProgressLine:
    """Writes one line, over and over on a terminal, and only where it says something new elsewhere."""

    _EVERY_SECONDS = 5.0

    def __init__(self, name: str) -> None:
        self._name = name
        self._written = 0.0
        self._generation: int | None = -1

    def __call__(self, progress: TopologyProgress) -> None:
        """Write it."""
        now = time.monotonic()
        live = sys.stderr.isatty()
        new = progress.generation != self._generation
        if not new and not live and now - self._written < self._EVERY_SECONDS:
            return
        self._written, self._generation = now, progress.generation
        end = "\r" if live and progress.executed else "\n"
        sys.stderr.write(f"topology {self._name}: {progress}{end}")
        sys.stderr.flush()
