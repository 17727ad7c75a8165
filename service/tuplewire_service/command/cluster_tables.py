"""The tables of `tuplewire top` and `tuplewire status`, as text. Design: docs/design/status.md."""

from __future__ import annotations

import shutil
import textwrap
from typing import TextIO

from tuplewire.text.escaping import escape_unprintable
from tuplewire_service.command.terminal import PROBLEM_STYLE, write_table, write_text
from tuplewire_service.command.viewer.cluster_rows import TABLES, ClusterRows
from tuplewire_service.command.viewer.columns import NOT_KNOWN, Column, Row, in_order

_GAP = 2  # between two columns
_MOST_CELL = 20


def write_tables(
    stream: TextIO, cluster: ClusterRows, most: int, wanted: str = "", width: int | None = None
) -> None:
    """Write sentences about problems, and the first `most` rows of each table that have `wanted`.

    `width` is the number of columns, by default those of the terminal; files and pipes have no limit.
    """
    if width is None and stream.isatty():
        width = shutil.get_terminal_size().columns
    for sentence in map(escape_unprintable, cluster.blocking):
        write_text(stream, f"{textwrap.fill(sentence, width) if width else sentence}\n", PROBLEM_STYLE)
    for name in TABLES:
        found: list[Row] = in_order(getattr(cluster, name), wanted)
        if not found:
            continue
        columns = list(found[0].columns().values())
        lines = [row.cells() for row in found[:most]]
        if width:
            lines = [[_shortened(escape_unprintable(cell)) for cell in line] for line in lines]
        shown = _shown(columns, lines, width)
        write_text(stream, f"\n{name}\n")
        header, *cells = [[line[i] for i in shown] for line in ([each.title for each in columns], *lines)]
        write_table(stream, header, cells)
        if len(found) > most:
            write_text(stream, f"and {len(found) - most} more; --json has all of them\n")


def _shortened(cell: str) -> str:
    """Return a long name without its middle, because names often differ only at their ends."""
    half = _MOST_CELL // 2 - 2
    return cell if len(cell) <= _MOST_CELL else f"{cell[:half]}...{cell[-half:]}"


def _shown(columns: list[Column], lines: list[list[str]], width: int | None) -> list[int]:
    """Return the indexes of the columns that have content and fit the width; minor columns go first."""
    filled = [any(cell not in {"", NOT_KNOWN} for cell in column) for column in zip(*lines, strict=True)]
    shown = [index for index, has_content in enumerate(filled) if has_content]
    widths = [_GAP + max(map(len, each)) for each in zip([c.title for c in columns], *lines, strict=True)]
    while width and sum(widths[i] for i in shown) - _GAP > width:
        shown.remove(max((i for i in shown if columns[i].minor), default=shown[-1]))
    return shown
