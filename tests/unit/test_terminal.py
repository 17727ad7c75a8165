"""What the command prints is safe for a terminal, and possible in any encoding."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest

from tuplewire.wire import control_pb2
from tuplewire_demos.input import SkippedRow, SkippedRows
from tuplewire_demos.report import Progress
from tuplewire_demos.words_result import WordCounts, write_words
from tuplewire_service.command.status_report import status_as_text
from tuplewire_service.command.terminal import write_table

EVIL = "\x1b]0;owned\x07"


class _Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_words_are_escaped() -> None:
    """Words and skipped lines come from a file that anybody may have written."""
    result = WordCounts({EVIL: 2}, [], SkippedRows(1, [SkippedRow(3, "is not UTF-8", EVIL)]), 1.0, [], {})
    out = StringIO()
    write_words(out, result, verbose=False)
    assert "\\x1b]0;owned\\x07" in out.getvalue()
    assert all(line.isprintable() for line in out.getvalue().splitlines())


def test_a_status_is_escaped() -> None:
    """Names of senders come from other programs."""
    status = control_pb2.GetStatusResponse(worker_id=EVIL, topology=EVIL, addresses=[EVIL])
    assert all(line.isprintable() for line in status_as_text(status).split("\n"))


def test_an_ascii_terminal_shows_all_words(tmp_path: Path) -> None:
    """A run does not end in an error of the encoding after all its work; pipes are read, too."""
    run = [sys.executable, "-m", "tuplewire_service", "run", "wordcount", "--mode=local", "--workers=1"]
    ended = subprocess.run(
        [*run, "--input=-"],
        input="na\u00efve na\u00efve\n".encode(),
        env={**os.environ, "PYTHONIOENCODING": "ascii", "TMPDIR": str(tmp_path)},
        capture_output=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert b"na\\xefve" in ended.stdout
    assert b"Equal to collections.Counter on the same lines: yes" in ended.stdout
    assert b"executor" not in ended.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("value", ["two", "0", "-1", "1.5", ""])
def test_a_wrong_number_names_its_flag(value: str) -> None:
    """And says what would do."""
    run = [sys.executable, "-m", "tuplewire_service", "run", "wordcount", "--input=x", f"--workers={value}"]
    ended = subprocess.run(run, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 64
    assert f"argument --workers: {value!r} is no whole number from 1" in ended.stderr
    assert ended.stderr.count("\n") == 1


WIDTH = 80
ROWS = [("9E", "18,460", f"{EVIL} of 336,776"), ("AA", "32,729", "[bold]ten[/bold] :smile:")]


def test_a_table_fits_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lines end before the edge, names are folded and not cut, and nothing in it is obeyed."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    terminal = _Terminal()
    write_table(terminal, ("who", "flights", "which"), [*ROWS, ("x" * 100, "1", "2")])
    written = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())  # rich's own colours
    assert all(line.isprintable() and len(line) <= WIDTH for line in written.splitlines())
    assert "\\x1b]0;owned\\x07 of 336,776" in written
    assert "[bold]ten[/bold] :smile:" in written
    assert written.count("x") == 100 + 2


@pytest.mark.parametrize("why", ["a pipe", "dumb", "no rich"])
def test_a_plain_table(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pipes and files get one line for each row; so does a terminal that cannot do more."""
    monkeypatch.setenv("TERM", "dumb" if why == "dumb" else "xterm")
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


def test_progress_has_its_end_in_sight() -> None:
    """A share, a rate and the time left; over one another on a terminal, seldom elsewhere."""
    terminal, plain = _Terminal(), StringIO()
    for stream in (terminal, plain):
        progress = Progress(stream)
        for done in (0, 250, 500):
            progress.part(done, 1000, "words")
        progress.end()
    shown = terminal.getvalue().split("\r")
    assert shown[1].startswith("  0% of 1,000 words, 0/s")
    assert shown[3].startswith(" 50% of 1,000 words, ")
    assert " s left" in shown[3]
    assert plain.getvalue() == ""
