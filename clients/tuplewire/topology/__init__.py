"""Storm's topology words, for programs that send from task to task.

So far the groupings: which task of the next component a message goes to.
"""

from __future__ import annotations

from tuplewire.topology.grouping import (
    CustomStreamGrouping,
    Grouping,
    GroupingContext,
    Locality,
    fields,
    shuffle,
)
from tuplewire.topology.streams import DEFAULT_STREAM, Stream

__all__ = [
    "DEFAULT_STREAM",
    "CustomStreamGrouping",
    "Grouping",
    "GroupingContext",
    "Locality",
    "Stream",
    "fields",
    "shuffle",
]
