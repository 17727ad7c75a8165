"""The memory of a process that lives for months: what is free goes back to the system.

All of it is for glibc; another C library has its own ways.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import time

from tuplewire_service.process.stop import Stop, StopRequest

_ARENA_MAX, _ARENAS = -8, 2
"""glibc's number for the option, and how many of its heaps all threads share."""
_PAUSE_SECONDS = 10.0
_MOST_SHARE = 0.001
"""The most of its time that a process gives memory back, during which its threads may wait for some."""
_WORTH_SECONDS = 0.1
"""So much processor time since the last time may have left something behind."""


def share_heaps() -> None:
    """Let the threads share heaps, before there are any; MALLOC_ARENA_MAX says otherwise.

    glibc gives each thread its own, and what is free in one is of no use to the others: a worker's memory
    grew for weeks, by a seventh.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None and "MALLOC_ARENA_MAX" not in os.environ:
        set_option(_ARENA_MAX, _ARENAS)


def resident_bytes() -> int:
    """Return how much memory this process has in use; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as pages:  # noqa: PTH123 - faster, and it is no path of ours
            return int(pages.read().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


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
