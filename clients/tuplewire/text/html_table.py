"""HTML tables for notebooks. All values are escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from tuplewire.text.escaping import escape_unprintable

_MOST_SHOWN = 80
"""The maximum number of characters in a cell."""


def html_table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table with a title. Bytes are decoded as UTF-8, with escapes for other bytes."""
    head = "".join(f"<th>{_cell(each)}</th>" for each in header)
    body = "".join(f"<tr>{''.join(f'<td>{_cell(each)}</td>' for each in row)}</tr>" for row in rows)
    caption = f"<caption>{_cell(title)}</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    if isinstance(value, bytes):
        value = value[: 4 * _MOST_SHOWN].decode(errors="backslashreplace")
    text = str(value)
    return escape(escape_unprintable(text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."))
