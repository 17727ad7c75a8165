"""Output of the commands: tables that fit a terminal's width, by rich; plain text for pipes and files.

Cells are escaped, because their content may be untrusted. rich is imported only for a terminal. Used by
commands and demos. Owns no state. Not thread-safe. Design: docs/design/status.md.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, TextIO, TypeVar

from tuplewire.text.escaping import escape_unprintable

if TYPE_CHECKING:
    from rich.console import Console

    from tuplewire_service.command.live_line import LiveLine

_Item = TypeVar("_Item")
_REDRAW_SECONDS = 0.5
PROBLEM_STYLE = "bold red"
"""The style of problems, for rich."""


def console_of(stream: TextIO) -> Console | None:
    """Return a console that writes to a stream, or None for plain text.

    Plain text is for files and pipes, for terminals without control sequences (TERM=dumb), and without rich
    (extra `service`). The console prints text unchanged: no markup, no emoji, no highlights.
    """
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        return None
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        return None
    return Console(file=stream, markup=False, emoji=False, highlight=False)


def live_line(stream: TextIO) -> LiveLine | None:
    """Return a progress line on a stream, or None for plain text."""
    console = console_of(stream)
    if console is None:
        return None
    from tuplewire_service.command.live_line import LiveLine

    return LiveLine(console)


def write_text(stream: TextIO, text: str, style: str = "") -> None:
    """Write whole lines, which the caller has escaped. A terminal wraps long lines between words."""
    console = console_of(stream)
    if console is None:
        stream.write(text)
    else:
        console.print(text, style=style, end="")


def counted(
    items: Iterable[_Item], what: str, share: Callable[[int], float | None], *, drawn: bool
) -> Generator[_Item]:
    """Yield items. If `drawn`, show their number and rate on standard error, if it is a terminal.

    `share` returns the completed share, 0 to 1, after a number of items, or None. Close the generator.
    """
    line = live_line(sys.stderr) if drawn else None
    if line is None:
        yield from items
        return
    began = last = time.monotonic()
    try:
        for number, item in enumerate(items, 1):
            yield item
            now = time.monotonic()
            if now - last >= _REDRAW_SECONDS:
                last = now
                line.show(f"{number:,} {what}, {number / (now - began):,.0f}/s", share(number))
    finally:
        line.end()


def write_table(stream: TextIO, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write columns with escaped cells, the first one left-aligned and the others right-aligned."""
    lines = [[escape_unprintable(cell) for cell in row] for row in (header, *rows)]
    console = console_of(stream)
    if console is None:
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        lines.insert(1, ["-" * width for width in widths])
        for line in lines:
            first, *others = zip(line, widths, strict=True)
            cells = [first[0].ljust(first[1]), *(text.rjust(width) for text, width in others)]
            print(*cells, sep="  ", file=stream)
        return
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    for number, name in enumerate(lines[0]):
        table.add_column(name, justify="right" if number else "left", overflow="fold")
    for line in lines[1:]:
        table.add_row(*line)
    console.print(table)
