"""The tables of `tuplewire top` and `tuplewire status`, as text.

Used by top_command.py and control_commands.py. Owns no state. Thread-safe. Design: docs/design/status.md.
"""

from __future__ import annotations

from itertools import compress
from typing import TextIO

from tuplewire.text.escaping import escape_unprintable
from tuplewire_service.command.terminal import write_table, write_text
from tuplewire_service.command.viewer.cluster_rows import TABLES, ClusterRows
from tuplewire_service.command.viewer.columns import NOT_KNOWN, Row, in_order


def write_tables(stream: TextIO, cluster: ClusterRows, most: int, wanted: str = "") -> None:
    """Write sentences about blocking tasks, and the first `most` rows of each table that have `wanted`."""
    write_text(stream, "".join(f"{escape_unprintable(sentence)}\n" for sentence in cluster.blocking))
    for name in TABLES:
        found: list[Row] = in_order(getattr(cluster, name), wanted)
        if not found:
            continue
        titles = [each.title for each in found[0].columns().values()]
        lines = [row.cells() for row in found[:most]]
        # Columns without any content are omitted, to save width.
        filled = [any(cell not in {"", NOT_KNOWN} for cell in column) for column in zip(*lines, strict=True)]
        write_text(stream, f"\n{name}\n")
        header, *cells = [list(compress(line, filled)) for line in (titles, *lines)]
        write_table(stream, header, cells)
        if len(found) > most:
            write_text(stream, f"and {len(found) - most} more; --json has all of them\n")
