"""Output is safe for a terminal, valid in any encoding, and safe in a notebook."""

from __future__ import annotations

import itertools
import logging
import os
import pty
import re
import signal
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any, cast

import pytest
from helpers import eventually
from helpers.tools import ran
from helpers.worker_process import COMMAND

from tuplewire import TaskMessageBatch
from tuplewire.connection.control_client import ControlClient
from tuplewire.membership.member_status import MembershipStatus, MemberStatus, Phase
from tuplewire.session.ledger import LedgerSnapshot
from tuplewire.wire import control_pb2
from tuplewire_demos.input import SkippedRow, SkippedRows
from tuplewire_demos.report import Progress
from tuplewire_demos.run_wordcount import WordCounts, write_words
from tuplewire_service.command.status_report import status_as_text, undelivered_lines, write_tables
from tuplewire_service.command.terminal import counted, write_lines, write_table
from tuplewire_service.command.viewer.cluster_rows import ClusterRows, TaskRow, WorkerRow
from tuplewire_service.control.log_output import EventFormatter

EVIL = "\x1b]0;owned\x07"
COUNT_WORDS = [*COMMAND, "run", "wordcount", "--mode=local", "--workers=1"]


class _Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_text_of_others_is_escaped() -> None:
    """Words and lines of files, and names in a status, are escaped, because they come from others."""
    skipped = SkippedRows(1, [SkippedRow(3, "is not UTF-8", EVIL)])
    result = WordCounts([], skipped, {}, [], {EVIL: 2}, 1.0)
    out = StringIO()
    write_words(out, result, verbose=False)
    assert "\\x1b]0;owned\\x07" in out.getvalue()
    status = control_pb2.GetStatusResponse(worker_id=EVIL, topology=EVIL, addresses=[EVIL])
    status.peers.add(worker_id=EVIL)
    shown = [*out.getvalue().splitlines(), *status_as_text(status).split("\n")]
    assert "peers       \\x1b]0;owned\\x07 not connected" in shown
    assert all(line.isprintable() for line in shown)


class _DrainingWorker:
    def status(self) -> control_pb2.GetStatusResponse:
        status = control_pb2.GetStatusResponse(state=control_pb2.WORKER_STATE_DRAINING)
        status.tasks.add(task=7, queued_messages=1, subscribed=True, oldest_seconds=2)
        status.rejected_waiting_messages = 3
        status.peers.add(worker_id="b", connected=True).ledger.pending = 4
        status.peers.add(worker_id="c").ledger.pending = 5
        status.components.add(component="count").executors.add(queued_tuples=6)
        return status


def test_a_drain_names_all_that_it_waits_for() -> None:
    """Queues, rejected messages, messages to other workers, and tuples in executors."""
    assert list(undelivered_lines(cast("ControlClient", _DrainingWorker()))) == [
        "1 message to task 7 not acknowledged by its consumer, the oldest for 2.0 s",
        "3 messages to deliver again, or as dead letters, after rejections",
        "4 messages to worker b, not acknowledged",
        "5 messages to worker c, not connected",
        "6 tuples in executors of count",
    ]


def test_an_ascii_terminal_shows_all_words(tmp_path: Path) -> None:
    """A run on an ASCII terminal does not fail with an encoding error, and reads from a pipe."""
    variables = {**os.environ, "PYTHONIOENCODING": "ascii", "TMPDIR": str(tmp_path)}
    words = "na\u00efve na\u00efve\n"
    ended = ran(*COUNT_WORDS, "--input=-", input=words, encoding="utf-8", env=variables, seconds=100)
    assert ended.returncode == 0, ended.stderr
    assert "na\\xefve" in ended.stdout
    assert "Equal to collections.Counter on the same lines: yes" in ended.stdout
    assert "executor" not in ended.stdout
    assert not list(tmp_path.iterdir())


WIDTH = 80
CONTROL = r"\x1b\[[?0-9;]*[a-zA-Z]"
"""The control sequences that rich writes: colours and cursor movements."""
ROWS = [("9E", "18,460", f"{EVIL} of 336,776"), ("AA", "32,729", "[bold]ten[/bold] :smile:")]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> StringIO:
    """Return a terminal of this width."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    return _Terminal()


@pytest.mark.parametrize("kind", ["xterm", "dumb"])
def test_a_table_fits_a_terminal(terminal: StringIO, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines fit the width, names are wrapped instead of truncated, and no markup is interpreted."""
    monkeypatch.setenv("TERM", kind)
    write_table(terminal, ("who", "flights", "which"), [*ROWS, ("x" * 100, "1", "2")])
    written = re.sub(CONTROL, "", terminal.getvalue())
    assert ("\x1b" in terminal.getvalue()) is (kind == "xterm")
    assert all(line.isprintable() and len(line) <= WIDTH for line in written.splitlines())
    assert "\\x1b]0;owned\\x07 of 336,776" in written
    assert "[bold]ten[/bold] :smile:" in written
    assert written.count("x") == 100 + 2
    write_lines(terminal, f"{'x ' * 38}pip install 'tuplewire[zmq]', {'/' * 90}")
    assert terminal.getvalue().endswith(f" x\n  pip install 'tuplewire[zmq]',\n  {'/' * 90}\n")
    event = EventFormatter("text", folded=True).format(logging.makeLogRecord({"msg": "x=1 " * 20}))
    assert re.fullmatch(r"\S+Z Level None [x=1 ]+\n  [x=1 ]+", event)


@pytest.mark.parametrize("why", ["a pipe", "no rich"])
def test_a_plain_table(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pipes and files get one line per row."""
    monkeypatch.setenv("TERM", "xterm")
    if why == "no rich":
        monkeypatch.setitem(sys.modules, "rich.console", None)
    stream = StringIO() if why == "a pipe" else _Terminal()
    write_table(stream, ("who", "flights", "which"), ROWS)
    assert stream.getvalue().splitlines() == [
        "who  flights                        which",
        "---  -------  ---------------------------",
        "9E    18,460  \\x1b]0;owned\\x07 of 336,776",
        "AA    32,729     [bold]ten[/bold] :smile:",
    ]


@pytest.mark.parametrize("kind", ["xterm", "dumb"])
def test_the_tables_of_a_cluster_fit_a_terminal(
    terminal: StringIO, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long names lose their middle, and columns are omitted. A dumb terminal gets no control sequences."""
    monkeypatch.setenv("TERM", kind)
    name = f"worker-{'x' * 60}-0123456789"
    rows = ClusterRows(
        workers=[WorkerRow(worker=name, state="ready", address="127.0.0.1:6700", problem="p " * 60)],
        tasks=[
            TaskRow(
                42, name, 1e6, 1e6, 10**6, 1, 0.99, 35.0, 0.5, [name], 10**9, 10**9, True, True, "sleeps", ""
            ),
            TaskRow(43, name, 0, 0, 0, 0, 0, 0, 0, [], 0, 0, False, False, "", ""),
        ],
        problems=[f"task 42 at {name} blocks senders"],
    )
    write_lines(terminal, "word " * 30)
    write_tables(terminal, rows, 40)
    written = re.sub(CONTROL, "", terminal.getvalue())
    assert all(len(line.rstrip()) <= WIDTH for line in written.splitlines()), written
    assert ("\x1b" in terminal.getvalue()) is (kind == "xterm")
    assert re.search(r"^42 +worker-x\.\.\.23456789 +1,000,000 .* sleeps$", written, re.MULTILINE), written
    assert name in written.replace("\n", "")  # sentences are wrapped, not cut
    assert "\nand 1 idle task; --json has all of them\n" in written
    assert "\ntasks (a wider terminal also shows: out/s, blocked workers, received,\n" in written
    plain = StringIO()
    write_tables(plain, rows, 40)
    assert written.count(name) < plain.getvalue().count(name) == 5
    write_tables(plain, rows, 40, "zzz")
    assert plain.getvalue().endswith("\nno row contains zzz\n")


def test_progress_has_its_end_in_sight(terminal: StringIO) -> None:
    """A terminal shows a percentage, a rate and the remaining time on a line that is erased afterwards."""
    with Progress(terminal) as progress:
        progress.start_stage(f"Counting the words of {EVIL} ...")
        for done in (0, 250, 500):
            progress.show_progress(done, 1000, "words")
        eventually(lambda: " 50% of" in terminal.getvalue())
        progress.show_line("x" * 100)
        eventually(lambda: "xxx" in terminal.getvalue())
    first, *drawn = re.split(r"[\r\n]+", re.sub(CONTROL, "", terminal.getvalue()))
    assert first == "Counting the words of \\x1b]0;owned\\x07 ..."
    assert all(line.isprintable() and len(line) <= WIDTH for line in drawn)
    half = r"[-|/\\] 0:00:\d\d [━╺]+ *50% of 1,000 words, [0-9,]+/s, [0-9,]+ s left"
    assert any(re.fullmatch(half, line.strip()) for line in drawn), drawn
    assert re.findall(CONTROL, terminal.getvalue())[-1] == "\x1b[2K"


def test_messages_are_counted(terminal: StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages are counted during sending and receiving if standard error is a terminal."""
    monkeypatch.setattr(sys, "stderr", terminal)
    assert list(counted(range(3), "messages", lambda _: None, drawn=False)) == [0, 1, 2]
    assert terminal.getvalue() == ""
    items = counted(itertools.count(1), "messages", lambda number: number / 10**9, drawn=True)
    eventually(lambda: next(items) and "━" in terminal.getvalue())
    shown = re.sub(CONTROL, "", terminal.getvalue())
    assert re.search(r"[-|/\\] 0:00:\d\d ━+ [0-9,]+ messages, [0-9,]+/s", shown), shown
    items.close()
    assert re.findall(CONTROL, terminal.getvalue())[-1] == "\x1b[2K"


def test_a_terminal_is_left_in_order(tmp_path: Path) -> None:
    """After Ctrl-C, a run prints one line and the cursor is visible again."""
    long = tmp_path / "long"
    long.write_text("one two three four five\n" * 100_000, encoding="utf-8")
    run = [*COUNT_WORDS, f"--input={long}"]
    reader, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(WIDTH)}
    with subprocess.Popen(run, stdout=subprocess.PIPE, stderr=terminal, env=environment) as process:
        os.close(terminal)
        written = b""
        while chunk := _read(reader):
            if b" left" in written + chunk and b" left" not in written:
                process.send_signal(signal.SIGINT)
            written += chunk
        os.close(reader)
        assert process.wait(60) == 130
    assert written.endswith(b"Stopped.\r\n")
    assert written.rindex(b"\x1b[?25h") > written.rindex(b"\x1b[?25l")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # the other side has closed
        return b""


SCRIPT = "<script>alert(1)</script>\x1b[2J"
MEMBER = MemberStatus("a:1", SCRIPT, Phase.ABSENT, problem=SCRIPT)


@pytest.mark.parametrize(
    "shown",
    [
        TaskMessageBatch.from_columns([1], [SCRIPT.encode()]),
        LedgerSnapshot(2, 1, {SCRIPT: 1}, 0),
        MembershipStatus(SCRIPT, 1, (MEMBER,), (), stable=False),
    ],
    ids=lambda shown: type(shown).__name__,
)
def test_a_notebook_runs_nothing_of_them(shown: Any) -> None:
    """Payloads, names and problems are untrusted, so they are escaped in HTML."""
    table = shown._repr_html_()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\x1b[2J" in table
    assert "<script" not in table
    assert table.isprintable()
    assert table.startswith("<table>")
