"""Output of the commands: tables that fit a terminal's width, by rich; plain text for pipes and files.

Cells are escaped, because their content may be untrusted. rich is imported only for a terminal. Used by
commands and demos. Owns the thread of a ProgressLine. Not thread-safe. Exception: ProgressLine.
Design: docs/design/status.md.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, TextIO, TypeVar

from tuplewire.text.formatting import escape_unprintable, fold

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

_Item = TypeVar("_Item")
_REDRAW_SECONDS = 0.5
_REFRESHES_PER_SECOND = 4
_BAR_WIDTH = 16
PROBLEM_STYLE = "bold red"
"""The style of problems, for rich."""


def console_of(stream: TextIO, *, static: bool = False) -> Console | None:
    """Return a console that writes to a stream, or None for plain text.

    Plain text is for files and pipes, and without rich (extra `service`); unless the output is `static`, also
    for terminals without control sequences (TERM=dumb). The console prints text unchanged: no markup, no
    emoji, no highlights.
    """
    if not stream.isatty() or (os.environ.get("TERM") == "dumb" and not static):
        return None
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        return None
    return Console(file=stream, markup=False, emoji=False, highlight=False)


class ProgressLine:
    """A line with the elapsed time, a bar if the end is known, and a text. Thread-safe.

    A thread redraws it from restart() or show() until end(), which erases it. It is one line, so the output
    of other processes to the terminal stays intact.
    """

    def __init__(self, console: Console) -> None:
        from rich.live import Live
        from rich.spinner import Spinner

        self._spinner = Spinner("line")
        self._started_at = time.monotonic()
        self._text = ""
        self._completed_ratio: float | None = None
        self._live = Live(
            console=console,
            get_renderable=self._render,
            refresh_per_second=_REFRESHES_PER_SECOND,
            transient=True,
            redirect_stdout=False,  # it may be a file
            redirect_stderr=False,
        )

    def restart(self) -> None:
        """Draw the line without a text, and restart its time."""
        self._started_at, self._text, self._completed_ratio = time.monotonic(), "", None
        self._live.start()

    def show(self, text: str, completed_ratio: float | None = None) -> None:
        """Change the text, and draw the line if it is hidden. `completed_ratio` is from 0 to 1."""
        self._text, self._completed_ratio = escape_unprintable(text), completed_ratio
        self._live.start()

    def end(self) -> None:
        """Erase the line, if it is drawn."""
        self._live.stop()

    def _render(self) -> Table:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        took = timedelta(seconds=int(time.monotonic() - self._started_at))
        cells: list[RenderableType] = [self._spinner, str(took)]
        if self._completed_ratio is not None:
            cells.append(ProgressBar(total=1.0, completed=self._completed_ratio, width=_BAR_WIDTH))
        line = Table.grid(padding=(0, 1))
        line.add_row(*cells, Text(self._text, no_wrap=True, overflow="crop"))
        return line


def progress_line(stream: TextIO) -> ProgressLine | None:
    """Return a progress line on a stream, or None for plain text."""
    console = console_of(stream)
    return None if console is None else ProgressLine(console)


def write_lines(stream: TextIO, *lines: str, style: str = "", indent: int = 2) -> None:
    """Write lines, and escape them. A terminal wraps long lines, with an indent."""
    text, console = "".join(f"{escape_unprintable(line)}\n" for line in lines), console_of(stream)
    if console is None:
        stream.write(fold(text, shutil.get_terminal_size().columns, indent) if stream.isatty() else text)
    else:
        console.print(fold(text, console.width, indent), style=style, end="", soft_wrap=True)


def counted(
    items: Iterable[_Item], item_name: str, completed_ratio: Callable[[int], float | None], *, drawn: bool
) -> Generator[_Item]:
    """Yield items. If `drawn`, show their number and rate in a line on standard error, on a terminal.

    `completed_ratio` returns the ratio, 0 to 1, after a number of items, or None. Close the generator.
    """
    line = progress_line(sys.stderr) if drawn else None
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
                line.show(f"{number:,} {item_name}, {number / (now - began):,.0f}/s", completed_ratio(number))
    finally:
        line.end()


def write_table(stream: TextIO, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write columns with escaped cells. The first is left-aligned, on a terminal also `reason`."""
    lines = [[escape_unprintable(cell) for cell in row] for row in (header, *rows)]
    console = console_of(stream, static=True)
    if console is None:
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        lines.insert(1, ["-" * width for width in widths])
        for line in lines:
            cells = [line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]
            print("  ".join(cells).rstrip(), file=stream)
        return
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    for name in lines[0]:
        table.add_column(name, justify="left" if name in {header[0], "reason"} else "right", overflow="fold")
    for line in lines[1:]:
        table.add_row(*line)
    console.print(table)
