"""The last line of a terminal while something takes its time. It needs rich: console_of() says who has it."""

from __future__ import annotations

import time
from datetime import timedelta

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from tuplewire.text.shown import shown

_REFRESHED_PER_SECOND = 4
_BAR_WIDTH = 16


class LiveLine:
    """A line that is drawn over and over: the time it takes, a bar where there is an end, and a text.

    It is one line, so that what other processes write to the terminal meanwhile stays whole. A thread draws
    it from begin() or show() to end(), after which nothing of it is left. Any thread may change it.
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
            redirect_stdout=False,  # which may go elsewhere
            redirect_stderr=False,
        )

    def begin(self) -> None:
        """Draw it without a text, with the time from now on."""
        self._since, self._text, self._share = time.monotonic(), "", None
        self._live.start()

    def show(self, text: str, share: float | None = None) -> None:
        """Change the text, and draw it if it was not; share: of a known whole, how much is done, 0 to 1."""
        self._text, self._share = shown(text), share
        self._live.start()

    def end(self) -> None:
        """Take it away: what is written next stands in its place. Does nothing where it is not drawn."""
        self._live.stop()

    def _rendered(self) -> Table:
        took = timedelta(seconds=int(time.monotonic() - self._since))
        cells: list[RenderableType] = [self._spinner, str(took)]
        if self._share is not None:
            cells.append(ProgressBar(total=1.0, completed=self._share, width=_BAR_WIDTH))
        line = Table.grid(padding=(0, 1))
        line.add_row(*cells, Text(self._text, no_wrap=True, overflow="crop"))
        return line
