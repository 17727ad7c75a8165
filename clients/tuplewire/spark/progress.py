"""How far a streaming query is behind, out of what Spark tells of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tuplewire.spark.offsets import Offset

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery


def lag(query: StreamingQuery | StreamingQueryProgress | Mapping[str, Any]) -> dict[int, int]:
    """Return, for each task, how many messages waited when a query's last micro-batch was planned, behind it.

    query: a query, or what it told of a micro-batch: an element of recentProgress, a listener's
    `event.progress`. All sources of this format are added up; a task of which no count is known, because it
    was at another worker since, is left out. Empty before the first progress.

    Spark has metrics of sources in `sources[].metrics` only for those that are written for its JVM.
    """
    progress: Any = getattr(query, "lastProgress", query)
    found: dict[int, int] = {}
    for source in progress["sources"] if progress else ():
        end, latest = (_offset(source[name]) for name in ("endOffset", "latestOffset"))
        if end is None or latest is None:
            continue
        for task, tail in latest.offsets.items():
            read = end.offsets.get(task)
            if read is not None and read.worker == tail.worker:
                found[task] = max(0, tail.sequence - read.sequence)
    return found


def _offset(value: Any) -> Offset | None:
    """Return an offset of this format; None for that of another one."""
    offset = json.loads(value) if isinstance(value, str) else value
    if not isinstance(offset, dict) or not isinstance(offset.get("tasks"), dict):
        return None
    return Offset.from_json(offset)
