"""The memory of a process that lives for months: what it has, may have, and gives back to the system."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
import time
from pathlib import Path

from tuplewire_service.config.stop import Stop, StopRequest

_PAUSE_SECONDS = 10.0
_MOST_SHARE = 0.001
"""The most of its time that a process gives memory back, during which its threads may wait for some."""
_WORTH_SECONDS = 0.1
"""So much processor time since the last time may have left something behind."""


def resident_bytes() -> int:
    """Return how much memory this process has in use; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as pages:  # noqa: PTH123 - faster, and it is no path of ours
            return int(pages.read().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def memory_limit(process: Path = Path("/proc/self/cgroup"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how much memory this process may have, in bytes: that of its control groups, or of the machine.

    process, groups: where the system tells its groups, and their limits.
    """
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = process.read_text(encoding="ascii").splitlines()
    found = [os.sysconf("SC_PHYS_PAGES") * resource.getpagesize()]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root, name = (groups / "memory", "memory.limit_in_bytes") if controllers else (groups, "memory.max")
        group = root / path.lstrip("/")
        # In a container the path may be the host's, and the limit be at the root of what is seen.
        for each in (group, *group.parents):
            with contextlib.suppress(OSError, ValueError):
                found.append(int((each / name).read_text(encoding="ascii")))
            if each == root:
                break
    return min(found)


def await_stop(stop: Stop) -> StopRequest:
    """Wait for the first request to stop; meanwhile, give back what is free, now and then.

    What the start has made is set apart for good: so Python looks through the rest sooner, and in less time.
    """
    gc.freeze()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: 0)
    pause, trimmed = _PAUSE_SECONDS, time.process_time()
    while (request := stop.wait(pause)) is None:
        if (used := time.process_time()) - trimmed > _WORTH_SECONDS:
            began = time.monotonic()
            trim(0)
            pause = max(_PAUSE_SECONDS, (time.monotonic() - began) / _MOST_SHARE)
            trimmed = used
    return request
