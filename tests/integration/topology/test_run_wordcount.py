"""`tuplewire run wordcount`: one topology with the same result in every mode."""

from __future__ import annotations

import csv
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from helpers.tools import ran, started
from helpers.worker_process import COMMAND

SECONDS = 300.0
PROGRESS = {
    "local": ("Starting", "Counting"),
    "processes": ("Starting", "Counting"),
    "spark": ("Starting", "Metrics of", "waiting", "Comparing"),
}
BAD = b"not \xff text\n"


@pytest.fixture
def book(tmp_path: Path) -> Path:
    """Return a text of some thousand words, with two lines that are not UTF-8."""
    choice = random.Random(7)
    vocabulary = [f"w{number}" for number in range(300)] + ["naïve", "日本", '"quoted"', "a,b"]
    lines = [" ".join(choice.choices(vocabulary, k=6)).encode() + b"\n" for _ in range(2000)]
    lines[10:10] = [BAD]
    lines.insert(1500, BAD)
    path = tmp_path / "book.txt"
    path.write_bytes(b"".join(lines))
    return path


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    return ran(*COMMAND, "run", "wordcount", *arguments)


@pytest.mark.parametrize(
    "mode",
    [
        "local",
        "processes",
        pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.slow, pytest.mark.long]),
    ],
)
def test_every_mode_counts_the_same(
    mode: str, book: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The output equals collections.Counter, skipped lines are listed, and credentials have no effect."""
    output = tmp_path / "output"
    monkeypatch.setenv("TUPLEWIRE_TLS_CA", "/nowhere/ca.crt")
    ended = run(f"--input={book}", f"--mode={mode}", f"--output={output}", "--workers=2")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    counts: dict[str, int] = {}
    for part in output.glob("*.csv"):
        with part.open(encoding="utf-8", newline="") as file:
            counts |= {row["word"]: int(row["count"]) for row in csv.DictReader(file)}
    good = [line for line in book.read_bytes().splitlines() if b"\xff" not in line]
    assert counts == Counter(word for line in good for word in line.decode().split())
    assert "Skipped 2 bad row(s):\n  line 11 is not UTF-8: not \\xff text\n" in ended.stdout
    assert "NOT" not in ended.stdout
    assert ended.stdout.startswith("word")
    (common, count), *_ = Counter(counts).most_common(1)
    assert ended.stdout.splitlines()[2].split() == [common, str(count)]
    assert "Equal to collections.Counter on the same lines: yes" in ended.stdout
    assert f"{sum(counts.values()):,} words in" in ended.stdout
    assert ended.stdout.count("(balances)") == 2
    for line in ended.stderr.splitlines():
        told = mode == "spark" and "PySpark tasks, emitted" in line
        told = told or " words, " in line
        assert told or line.startswith(PROGRESS[mode]), ended.stderr


def test_one_worker_in_this_process(book: Path) -> None:
    """A single local worker needs no transport, and no module of Spark."""
    words = ["run", "wordcount", "--mode=local", "--splitters=1", "--counters=3", f"--input={book}"]
    program = (
        "import sys\n"
        "from tuplewire_service.command.cli import main\n"
        f"assert main({words}) == 0\n"
        "assert not {'pyspark', 'pyarrow', 'pandas'} & sys.modules.keys(), sorted(sys.modules)\n"
    )
    ended = ran(sys.executable, "-c", program, check=True)
    assert "Equal to collections.Counter on the same lines: yes" in ended.stdout
    assert "Ledger" not in ended.stdout


def test_wrong_usage(book: Path, tmp_path: Path) -> None:
    """Spark options in another mode, a missing file and an existing output are refused, each in one line."""
    for arguments, code, problem in (
        ([f"--input={book}", "--cores=2"], 64, "--cores is for Spark"),
        (["--input=/no/such"], 1, "cannot read /no/such"),
        ([f"--input={book}", f"--output={tmp_path}"], 1, "exists already"),
    ):
        ended = run("--mode=processes", *arguments)
        assert (ended.returncode, ended.stderr.count("\n")) == (code, 1), ended.stderr
        assert problem in ended.stderr


@pytest.mark.parametrize("mode", ["local", "processes"])
def test_ctrl_c(mode: str, book: Path) -> None:
    """Ctrl-C ends a run cleanly, with the exit code that a shell expects, and leaves no process."""
    book.write_bytes(book.read_bytes() * 300)
    with started(*COMMAND, "run", "wordcount", f"--input={book}", f"--mode={mode}") as process:
        assert process.stderr is not None
        while not process.stderr.readline().startswith("Counting"):
            assert process.poll() is None
        children = _children(process.pid)
        assert len(children) == (2 if mode == "processes" else 0)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "Stopped."
    assert all(" words, " in line for line in errors.splitlines()[:-1])
    assert not any(Path(f"/proc/{child}").exists() for child in children)


def _children(process_id: int) -> list[int]:
    """Return the child processes of a process."""
    tasks = Path(f"/proc/{process_id}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]
