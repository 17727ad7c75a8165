"""The memory of a long-running process: its usage, its limit, and the return of free memory to the system."""

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
_MAX_TRIM_RATIO = 0.001
"""Maximum share of time for returning memory, because threads that allocate may have to wait."""
_MIN_CPU_SECONDS = 0.1
"""Minimum CPU seconds since the last return of memory; with less work, little memory was freed."""


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes; 0 if the system does not report it."""
    try:
        with open("/proc/self/statm", encoding="ascii") as pages:  # noqa: PTH123 - faster than Path.open()
            return int(pages.read().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def memory_limit(process: Path = Path("/proc/self/cgroup"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the memory limit of this process in bytes: of its control groups, or of the machine."""
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = process.read_text(encoding="ascii").splitlines()
    limits = [os.sysconf("SC_PHYS_PAGES") * resource.getpagesize()]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root, name = (groups / "memory", "memory.limit_in_bytes") if controllers else (groups, "memory.max")
        group = root / path.lstrip("/")
        # In a container, the path may be the host's, with the limit at the visible root.
        for each in (group, *group.parents):
            with contextlib.suppress(OSError, ValueError):
                limits.append(int((each / name).read_text(encoding="ascii")))
            if each == root:
                break
    return min(limits)


def wait_for_stop(stop: Stop) -> StopRequest:
    """Wait for the first request to stop; periodically return free memory to the system."""
    gc.freeze()  # collections skip the objects that exist now
    trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: 0)
    pause, trimmed_at_cpu = _PAUSE_SECONDS, time.process_time()
    while (request := stop.wait(pause)) is None:
        if (cpu_seconds := time.process_time()) - trimmed_at_cpu > _MIN_CPU_SECONDS:
            began = time.monotonic()
            trim(0)
            pause = max(_PAUSE_SECONDS, (time.monotonic() - began) / _MAX_TRIM_RATIO)
            trimmed_at_cpu = cpu_seconds
    return request
