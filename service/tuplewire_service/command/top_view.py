"""The live view of `tuplewire top`, by textual, which the extra `top` brings."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.coordinate import Coordinate
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static

from tuplewire.errors import TuplewireError
from tuplewire.shown import shown
from tuplewire_service.command.cluster_tables import TABLES, Table, task_lines
from tuplewire_service.control.cluster_looks import ClusterLooks
from tuplewire_service.control.cluster_rows import ClusterRows, SenderRow, TaskRow, WorkerRow, cluster_rows

_MOST_ROWS = 200
"""Of a table: beyond, a person filters."""
_MOST_SENTENCES = 4
_LINE_END = "\n"


def _style(row: object) -> str:
    """Return how a row is to be seen: red is what is wrong now."""
    if isinstance(row, TaskRow):
        return "bold red" if row.blocking else ""
    if isinstance(row, WorkerRow):
        return "bold red" if row.problem else "yellow" if row.backpressured > row.idle else ""
    return "dim" if isinstance(row, SenderRow) and not row.connected else ""


class TaskScreen(ModalScreen[None]):
    """All that is known of one task; any of its keys leads back."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,enter,q", "app.pop_screen", "Back")]

    def __init__(self, worker: str, task: int) -> None:
        super().__init__()
        self._at = worker, task

    def compose(self) -> ComposeResult:
        """Lay the screen out."""
        yield Static(id="task", markup=False)
        yield Footer()

    def tell(self, rows: ClusterRows) -> None:
        """Show the task as it is now."""
        text = _LINE_END.join(task_lines(rows, *self._at))
        self.query_one("#task", Static).update(shown(text, keep=_LINE_END))


class TopView(App[bool]):
    """Tables of a cluster, one at a time, that are kept up to date. run() returns True after Ctrl-C."""

    AUTO_FOCUS = "#table"
    ENABLE_COMMAND_PALETTE = False
    TITLE = "tuplewire top"
    CSS = """
    #summary { height: auto; }
    #blocking { height: auto; color: $error; }
    #filter { display: none; }
    #filter.wanted { display: block; }
    #table { height: 1fr; }
    #task { padding: 1 2; height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *[(table.name[0], f"table('{table.name}')", table.name.capitalize()) for table in TABLES],
        ("less_than_sign", "sort(-1)", "Sort"),
        ("greater_than_sign", "sort(1)", "Sort"),
        ("r", "turn", "Reverse"),
        ("slash", "filter", "Filter"),
        ("space", "pause", "Pause"),
        ("q", "quit", "Quit"),
        Binding("ctrl+c", "interrupt", show=False, priority=True),
    ]

    class Looked(Message):
        """A look has brought news, or has failed with a problem."""

        def __init__(self, rows: ClusterRows | None, problem: str = "") -> None:
            super().__init__()
            self.rows = rows
            self.problem = problem

    def __init__(self, looks: ClusterLooks, interval: float, wanted: str = "") -> None:
        """Show what the looks bring. interval: between two of them, in seconds. wanted: text of the rows."""
        super().__init__()
        self._looks = looks
        self._interval = interval
        self._wanted = wanted
        self._ended = threading.Event()
        self._rows = ClusterRows()
        self._kind: Table = TABLES[1]
        self._sorts = {table.name: table.sort for table in TABLES}
        self._turned = False
        self._paused = False
        self._problem = ""
        self._listed: list[Any] = []
        self._cells: list[list[tuple[str, str]]] = []

    def compose(self) -> ComposeResult:
        """Lay the screen out."""
        yield Static(id="summary", markup=False)
        yield Static(id="blocking", markup=False)
        yield Input(self._wanted, placeholder="only rows with this text", id="filter")
        yield DataTable(id="table", cursor_type="row", zebra_stripes=True)
        yield Footer()

    def on_mount(self) -> None:
        """Begin to look."""
        self.action_table(self._kind.name)
        self.run_worker(self._look, thread=True)

    def on_unmount(self) -> None:
        """Look no more."""
        self._ended.set()

    def _look(self) -> None:
        """In a thread: look again and again, and tell the view."""
        while True:
            try:
                rows = cluster_rows(self._looks.look(max(self._interval, 1.0)))
                self.post_message(self.Looked(rows))
            except TuplewireError as error:
                self.post_message(self.Looked(None, str(error)))
            if self._ended.wait(self._interval):
                return

    def on_top_view_looked(self, looked: Looked) -> None:
        """Show what a look has brought."""
        self._problem = looked.problem
        if looked.rows is not None and not self._paused:
            self._rows = looked.rows
        self._show()

    # --- keys -------------------------------------------------------------------------------------

    def action_table(self, name: str) -> None:
        """Show another table."""
        self._kind = next(each for each in TABLES if each.name == name)
        self._turned = False
        self._begin()

    def action_sort(self, step: int) -> None:
        """Sort by the next column, or by the one before."""
        titles = [each.title for each in self._kind.columns]
        at = titles.index(self._sorts[self._kind.name])
        self._sorts[self._kind.name] = titles[(at + step) % len(titles)]
        self._begin()

    def action_turn(self) -> None:
        """Sort the other way round."""
        self._turned = not self._turned
        self._begin()

    def action_interrupt(self) -> None:
        """End as any other command does."""
        self.exit(result=True)

    def action_filter(self) -> None:
        """Ask for the text of the rows that are wanted."""
        field = self.query_one("#filter", Input)
        field.add_class("wanted")
        field.focus()

    def action_pause(self) -> None:
        """Keep the screen as it is, or go on."""
        self._paused = not self._paused
        self._show()

    def on_input_changed(self, changed: Input.Changed) -> None:
        """Show only what is wanted, at each letter."""
        self._wanted = changed.value
        self._show()

    def on_input_submitted(self) -> None:
        """Go back to the table."""
        self.query_one("#filter", Input).set_class(bool(self._wanted), "wanted")
        self.query_one("#table").focus()

    def on_data_table_header_selected(self, selected: DataTable.HeaderSelected) -> None:
        """Sort by a column that was clicked; again: the other way round."""
        title = self._kind.columns[selected.column_index].title
        self._turned = title == self._sorts[self._kind.name] and not self._turned
        self._sorts[self._kind.name] = title
        self._begin()

    def on_data_table_row_selected(self, selected: DataTable.RowSelected) -> None:
        """Show a task by itself."""
        row = self._listed[selected.cursor_row] if selected.cursor_row < len(self._listed) else None
        if isinstance(row, TaskRow):
            self.push_screen(TaskScreen(row.worker, row.task))
            self.call_after_refresh(self._show)

    # --- drawing ----------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Make the columns anew: they are others, or sorted by another one."""
        table = self._table
        table.clear(columns=True)
        self._cells = []
        by = self._sorts[self._kind.name]
        mark = " ^" if self._turned else " v"
        for column in self._kind.columns:
            table.add_column(column.title + mark * (column.title == by))
        self._show()

    @property
    def _table(self) -> DataTable[Text]:
        return self.screen_stack[0].query_one("#table", DataTable)

    def _show(self) -> None:
        if isinstance(self.screen, TaskScreen):
            self.screen.tell(self._rows)
        base = self.screen_stack[0]
        found = self._kind.rows(self._rows, self._wanted, self._sorts[self._kind.name], turned=self._turned)
        self._listed = found[:_MOST_ROWS]
        base.query_one("#summary", Static).update(shown(self._summary(len(found))))
        sentences = self._rows.blocking[:_MOST_SENTENCES]
        base.query_one("#blocking", Static).update(_LINE_END.join(map(shown, sentences)))
        self._draw(
            [
                [(shown(column.cell(row)), _style(row)) for column in self._kind.columns]
                for row in self._listed
            ]
        )

    def _summary(self, found: int) -> str:
        rows = self._rows
        answering = sum(each.state != "no answer" for each in rows.workers)
        rate = sum(each.accepted_rate or 0.0 for each in rows.workers)
        shown_of = f", {len(self._listed)} shown: filter with /" if found > len(self._listed) else ""
        return (
            f"{answering} of {len(rows.workers)} workers, {len(rows.tasks):,} tasks, "
            f"{sum(each.connected_senders for each in rows.workers):,} senders, {rate:,.0f} messages/s   "
            f"{found:,} {self._kind.name}{shown_of}{'   paused' if self._paused else ''}"
            f"{f'   {self._problem}' if self._problem else ''}"
        )

    def _draw(self, cells: list[list[tuple[str, str]]]) -> None:
        """Change what has changed, so that the cursor and the place stay."""
        table, before = self._table, self._cells
        for number, line in enumerate(cells):
            if number >= len(before):
                table.add_row(*[Text(text, style) for text, style in line])
                continue
            for place, cell in enumerate(line):
                if cell != before[number][place]:
                    table.update_cell_at(Coordinate(number, place), Text(*cell), update_width=True)
        for _ in range(len(before) - len(cells)):
            last = table.coordinate_to_cell_key(Coordinate(table.row_count - 1, 0)).row_key
            table.remove_row(last)
        self._cells = cells
