"""Makes glibc, if present, and Arrow reuse freed memory. Design: docs/design/rows-and-memory.md."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""glibc's numbers for the options."""
_KEPT_BYTES = 16 * 1024 * 1024
_MAX_MMAP_THRESHOLD = 32 * 1024 * 1024
"""The largest threshold that glibc accepts."""
_mallopt: Callable[[int, int], int] | None = getattr(ctypes.CDLL(None), "mallopt", None)
"""glibc's function that sets an option; None with another C library."""


def share_heap() -> None:
    """Let all threads share one heap; call it before threads start. MALLOC_ARENA_MAX overrides this.

    By default, glibc gives each thread its own heap. Other threads cannot use the free memory in it: a
    worker's memory grew for weeks, by a seventh.
    """
    _set("MALLOC_ARENA_MAX", _ARENA_MAX, 1)


def reuse_buffers(kept_bytes: int = _KEPT_BYTES) -> None:
    """Keep `kept_bytes` of freed memory for new buffers; MALLOC_TRIM_THRESHOLD_ overrides this.

    A frame is a buffer of up to 1 MiB that is copied a few times. By default, glibc returns such buffers to
    the system immediately. New pages then cost more than the copy itself.
    """
    _set("MALLOC_TRIM_THRESHOLD_", _TRIM_THRESHOLD, kept_bytes)
    _set("MALLOC_MMAP_THRESHOLD_", _MMAP_THRESHOLD, _MAX_MMAP_THRESHOLD)


def share_with_arrow() -> None:
    """Let Arrow, if loaded, allocate from glibc; ARROW_DEFAULT_MEMORY_POOL overrides this.

    Arrow's own allocator keeps no memory between two batches from Spark, and cannot use glibc's free memory.
    """
    arrow = sys.modules.get("pyarrow")
    if arrow is not None and _mallopt is not None and "ARROW_DEFAULT_MEMORY_POOL" not in os.environ:
        arrow.set_memory_pool(arrow.system_memory_pool())


def _set(variable: str, option: int, value: int) -> None:
    if _mallopt is not None and variable not in os.environ:
        _mallopt(option, value)
