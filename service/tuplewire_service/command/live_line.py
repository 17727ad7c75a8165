"""The progress line of a terminal. Requires rich; see console_of()."""

from __future__ import annotations

import time
from datetime import timedelta

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from tuplewire.text.escaping import escape_unprintable

_REFRESHED_PER_SECOND = 4
_BAR_WIDTH = 16


class LiveLine:
    """A line with the elapsed time, a bar if the end is known, and a text. Thread-safe.

    A thread redraws it from begin() or show() until end(), which erases it. It is one line, so the output of
    other processes to the terminal stays intact.
    """

    def __init__(self, console: Console) -> None:
        self._spinner = Spinner("line")
        self._since = time.monotonic()
        self._text = ""
        self._share: float | None = None
        self._live = Live(
            console=console,
            get_renderable=self._rendered,
            refresh_per_second=_REFRESHED_PER_SECOND,
            transient=True,
            redirect_stdout=False,  # it may be a file
            redirect_stderr=False,
        )

    def begin(self) -> None:
        """Draw the line without a text, and restart its time."""
        self._since, self._text, self._share = time.monotonic(), "", None
        self._live.start()

    def show(self, text: str, share: float | None = None) -> None:
        """Change the text, and draw the line if it is hidden. `share` is the completed share, 0 to 1."""
        self._text, self._share = escape_unprintable(text), share
        self._live.start()

    def end(self) -> None:
        """Erase the line, if it is drawn."""
        self._live.stop()

    def _rendered(self) -> Table:
        took = timedelta(seconds=int(time.monotonic() - self._since))
        cells: list[RenderableType] = [self._spinner, str(took)]
        if self._share is not None:
            cells.append(ProgressBar(total=1.0, completed=self._share, width=_BAR_WIDTH))
        line = Table.grid(padding=(0, 1))
        line.add_row(*cells, Text(self._text, no_wrap=True, overflow="crop"))
        return line
