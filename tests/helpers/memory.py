"""The memory of a process."""

from __future__ import annotations

import re
import resource
from itertools import pairwise
from pathlib import Path

MIB = 1 << 20
_HEAP = 64 * MIB
"""The size that glibc reserves for each heap except the first; its address is a multiple of this size."""
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S+) .* 0\s*$")


def rss(process_id: int) -> int:
    """Return a process's resident memory, in bytes."""
    pages = int(Path(f"/proc/{process_id}/statm").read_text(encoding="utf-8").split()[1])
    return pages * resource.getpagesize()


def heaps(process_id: int) -> int:
    """Return the number of heaps that glibc created for the threads of a process, except the first."""
    lines = Path(f"/proc/{process_id}/maps").read_text(encoding="utf-8").splitlines()
    found = [(int(m[1], 16), int(m[2], 16), m[3]) for m in map(_MAPPING.match, lines) if m is not None]
    return sum(
        used[2].startswith("rw")
        and used[0] % _HEAP == 0
        and used[1] == left[0]
        and left[1] - used[0] == _HEAP
        for used, left in pairwise(found)
    )
