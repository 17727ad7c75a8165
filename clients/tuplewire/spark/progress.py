"""How far a streaming query is behind, out of what Spark tells of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tuplewire.spark.offsets import LAG

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery


def lag(query: StreamingQuery | StreamingQueryProgress | Mapping[str, Any]) -> dict[int, int]:
    """Return, for each task, how many messages waited when a query's last micro-batch was planned, behind it.

    query: a query, or what it told of a micro-batch: an element of recentProgress, a listener's
    `event.progress`. All sources of this format are added up. Empty before the first progress.

    It is the `lag` of `sources[].latestOffset`. Spark has metrics of sources in `sources[].metrics` only for
    those that are written for its JVM.
    """
    progress: Any = getattr(query, "lastProgress", query)
    found: Counter[int] = Counter()
    for source in progress["sources"] if progress else ():
        latest = source["latestOffset"]
        offset = json.loads(latest) if isinstance(latest, str) else latest
        if isinstance(offset, dict) and isinstance(offset.get("tasks"), dict):
            found.update({int(task): behind for task, behind in offset.get(LAG, {}).items()})
    return dict(found)
