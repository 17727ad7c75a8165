"""How much memory a process holds."""

from __future__ import annotations

import resource
from pathlib import Path

MIB = 1 << 20


def rss(process_id: int) -> int:
    """Return a process's resident memory, in bytes."""
    pages = int(Path(f"/proc/{process_id}/statm").read_text(encoding="utf-8").split()[1])
    return pages * resource.getpagesize()
