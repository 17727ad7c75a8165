"""Profiles a row: runs it under cProfile in every process on the path."""

from __future__ import annotations

import io
import os
import pstats
import tempfile
from pathlib import Path
from typing import Any

from agent import HERE
from links import Links
from rows import LATENCIES, REQUESTS, ROWS

_TOP = 25
_MOST_SECONDS = 10.0
_BUSY_SHARE = 0.1
"""Threads that are busy for less than this share of the run's time are omitted."""
_WAITS = ("poll", "acquire", "get' of '_queue", "posix.read", "readline", "serve", "sleep")
"""Functions that only wait."""


def profiled(name: str, seconds: float) -> str:
    """Run the matching rows for some seconds each; return each thread's top functions by own time.

    The profiler slows down Python, especially small calls, but not gRPC's C code: compare shares, not rates.
    """
    seconds = min(seconds, _MOST_SECONDS)
    with tempfile.TemporaryDirectory() as directory:
        os.environ["BENCH_PROFILES"] = directory
        os.environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, [str(HERE / "startup"), os.environ.get("PYTHONPATH")])
        )
        text = io.StringIO()
        with Links() as links:
            for row in (*ROWS, *LATENCIES, *REQUESTS):
                if row.name == name or row.name.startswith(f"{name}/"):
                    trial = links[row.cell.link].trial(row.cell, seconds)
                    print(f"{row.name}: {trial.rate:,.0f} messages/s under the profiler", file=text)
        for file in sorted(Path(directory).glob("*.prof")):
            stats = pstats.Stats(str(file), stream=text)
            functions: dict[tuple[str, int, str], tuple[Any, ...]] = stats.stats  # type: ignore[attr-defined]
            busy = sum(
                own[2] for (_, _, name), own in functions.items() if not any(each in name for each in _WAITS)
            )
            if busy > seconds * _BUSY_SHARE:
                print(f"\n=== {file.stem}: busy for {busy:.1f} s", file=text)
                stats.strip_dirs().sort_stats("tottime").print_stats(_TOP)
        return text.getvalue()
