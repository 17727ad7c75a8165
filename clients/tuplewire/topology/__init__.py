"""Storm's topology words, for programs that send from task to task.

So far the groupings: which task of the next component a message goes to.
"""

from __future__ import annotations

from tuplewire.topology.grouping import Grouping, fields, shuffle

__all__ = ["Grouping", "fields", "shuffle"]
