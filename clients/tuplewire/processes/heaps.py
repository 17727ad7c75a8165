"""How a process keeps the memory that it frees, by options of glibc; another C library has its own ways."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""glibc's numbers for the options."""
_HEAPS = 2
_KEPT_BYTES = 16 * 1024 * 1024
_ARROW_POOL = "ARROW_DEFAULT_MEMORY_POOL"
_LARGE_BYTES = 32 * 1024 * 1024
"""The most that glibc takes for a threshold."""


def share_heaps() -> None:
    """Let the threads share heaps, before there are any; MALLOC_ARENA_MAX says otherwise.

    glibc gives each thread its own, and what is free in one is of no use to the others: a worker's memory
    grew for weeks, by a seventh.
    """
    _set("MALLOC_ARENA_MAX", _ARENA_MAX, _HEAPS)


def reuse_buffers(kept_bytes: int = _KEPT_BYTES) -> None:
    """Keep so much of what is freed for the next buffers; MALLOC_TRIM_THRESHOLD_ says otherwise.

    A frame is a buffer of up to 1 MiB, and is copied a few times on its way. glibc gives such back to the
    system at once: pages that are new to a process then cost more than to copy into them.
    """
    _set("MALLOC_TRIM_THRESHOLD_", _TRIM_THRESHOLD, kept_bytes)
    _set("MALLOC_MMAP_THRESHOLD_", _MMAP_THRESHOLD, _LARGE_BYTES)


def share_with_arrow() -> None:
    """Have Arrow, if it is loaded, take its buffers from glibc; ARROW_DEFAULT_MEMORY_POOL says otherwise.

    An allocator of its own keeps nothing from one batch of Spark to the next, and what glibc keeps is of no
    use to it.
    """
    arrow = sys.modules.get("pyarrow")
    if arrow is not None and _mallopt() is not None and _ARROW_POOL not in os.environ:
        arrow.set_memory_pool(arrow.system_memory_pool())


def _set(variable: str, option: int, value: int) -> None:
    """Set an option, unless the environment has."""
    set_option = _mallopt()
    if set_option is not None and variable not in os.environ:
        set_option(option, value)


def _mallopt() -> Callable[[int, int], int] | None:
    """Return what sets an option of glibc; None with another C library."""
    return getattr(ctypes.CDLL(None), "mallopt", None)
