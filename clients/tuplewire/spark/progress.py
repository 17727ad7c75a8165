"""The lag of a streaming query, from the progress that Spark reports."""

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
    """Return the number of messages behind a query's last micro-batch, by task, at the time of its planning.

    query: a query, or its progress: an element of recentProgress, or a listener's `event.progress`. The
    numbers of all sources of this format are added. Empty before the first progress.

    The numbers are from the `lag` in `sources[].latestOffset`. Spark fills `sources[].metrics` only for
    sources that run in its JVM.
    """
    progress: Any = getattr(query, "lastProgress", query)
    found: Counter[int] = Counter()
    for source in progress["sources"] if progress else ():
        latest = source["latestOffset"]
        offset = json.loads(latest) if isinstance(latest, str) else latest
        if isinstance(offset, dict) and isinstance(offset.get("tasks"), dict):
            found.update({int(task): behind for task, behind in offset.get(LAG, {}).items()})
    return dict(found)
