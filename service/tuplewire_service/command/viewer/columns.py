"""Columns of the viewer's tables, declared at the fields of rows: titles, formats of cells, and sort order.

Used by viewer/ and status_report.py. Owns no state. Thread-safe. Design: docs/design/status.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, get_type_hints

if TYPE_CHECKING:
    from google.protobuf.message import Message

NOT_KNOWN = "-"
_DEFAULT_ID = re.compile(r"(@.+:\d+)-[0-9a-f]{8}")


def format_number(value: float) -> str:
    """Return a count or a rate with separators, small ones with one decimal."""
    return f"{value:,.1f}" if 0 < value < 10 and value != int(value) else f"{value:,.0f}"


def format_share(value: float) -> str:
    """Return a share, 0 to 1, in percent; an empty string for 0."""
    return f"{value:.0%}" if value > 0 else ""


def format_bytes(value: float) -> str:
    """Return a number of bytes in B, KiB, MiB or GiB."""
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:,.0f} {unit}"
        value /= 1024
    return f"{value:,.1f} GiB"


def format_time(seconds: float) -> str:
    """Return a time in days, hours, minutes or seconds, with one decimal; an empty string for 0."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s" if seconds > 0 else ""


def format_client(client_id: str) -> str:
    """Return a client's id, and a default id without its random end: `load.py@host:4711`."""
    return _DEFAULT_ID.sub(r"\1", client_id)


def format_yes_no(value: bool) -> str:  # noqa: FBT001 - a cell's value
    """Return `yes` or `no`."""
    return "yes" if value else "no"


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its title, and the format of its cells. A narrow terminal omits `minor` columns first."""

    title: str
    format_cell: Callable[[Any], str] = str
    minor: bool = False


class Row:
    """A row of a table. Fields in Annotated[..., Column] are columns, in order."""

    __slots__: ClassVar[tuple[str, ...]] = ()
    ORDER: ClassVar[tuple[str, ...]] = ()
    """The fields to sort by. The others decide between equal values of the first."""

    @classmethod
    def from_message(cls, message: Message, **others: Any) -> Self:
        """Return a row of `others` and of the message's fields that have the names of the row's fields."""
        return cls(**{name: getattr(message, name) for name in cls.__slots__ if name not in others}, **others)

    @classmethod
    @cache
    def columns(cls) -> Mapping[str, Column]:
        """Return the columns by the name of their field."""
        hints = get_type_hints(cls, include_extras=True)
        return {name: hint.__metadata__[0] for name, hint in hints.items() if hasattr(hint, "__metadata__")}

    def cells(self) -> list[str]:
        """Return the text of each column; `-` for None."""
        values = [(column, getattr(self, name)) for name, column in self.columns().items()]
        return [NOT_KNOWN if value is None else column.format_cell(value) for column, value in values]


_Row = TypeVar("_Row", bound=Row)


def select_rows(rows: Iterable[_Row], wanted: str = "") -> list[_Row]:
    """Return the rows with `wanted` in a cell, ignoring case, the largest numbers first."""
    if wanted:
        rows = [row for row in rows if any(wanted.lower() in cell.lower() for cell in row.cells())]
    return sorted(rows, key=lambda row: [_rank(getattr(row, name)) for name in row.ORDER])


def _rank(value: Any) -> Any:
    """Return a sort key for a column: strings in order, or large numbers first and None last."""
    if isinstance(value, str):
        return value
    return 1 if value is None else -value
