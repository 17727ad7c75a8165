"""Ctrl-C at any moment of a command: one line, the exit code of a shell, and nothing left that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from tuplewire_service.testing import eventually

MARK = "TUPLEWIRE_TEST_MARK"
SECONDS = 60.0
DELAYS = [0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8]


def marked(mark: str) -> list[str]:
    """Return the command lines of the living processes that have a mark in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return found


def interrupted(arguments: list[str], when: Callable[[str], None]) -> tuple[int, str]:
    """Run a command, interrupt it, and return its exit code and what it said; nothing of it is left."""
    mark = uuid4().hex
    with subprocess.Popen(
        [sys.executable, "-m", "tuplewire_service", *arguments],
        env={**os.environ, MARK: mark},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        when(mark)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=SECONDS)
    eventually(lambda: not marked(mark), 20)
    return process.returncode, errors


@pytest.mark.parametrize("delay", DELAYS)
def test_while_it_is_imported(delay: float) -> None:
    """Python itself ends by the signal before it reads our first line; from then on it is our line."""
    code, errors = interrupted(["recv", "1", "--timeout", "30"], lambda _: time.sleep(delay))
    if code == 130:
        assert errors in {"tuplewire: interrupted\n", "tuplewire recv: interrupted\n"}
    else:
        assert delay < 0.8
        assert code in {-signal.SIGINT, 1}  # before the first line of ours, or at the end of the last


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    ("job", "moment"),
    [
        ("wordcount", "spark-submit"),
        ("wordcount", "PythonGatewayServer"),
        ("wordcount", "daemon"),
        ("flights", "PythonGatewayServer"),
        ("flights", "daemon"),
    ],
)
def test_while_spark_starts_and_runs(job: str, moment: str, tmp_path: Path) -> None:
    """The JVM ends with it: before it answers, while it starts, and in the middle of a job."""
    book = tmp_path / "book.txt"
    book.write_bytes(b"to be or not to be\n" * 200_000)

    def seen(mark: str) -> None:
        word = {
            "spark-submit": "launcher.Main",
            "PythonGatewayServer": "SparkSubmit",
            "daemon": "pyspark.daemon",
        }[moment]
        eventually(lambda: any(word in each for each in marked(mark)), SECONDS)

    given = [f"--input={book}"] if job == "wordcount" else []
    code, errors = interrupted(["run", job, *given], seen)
    assert code == 130
    assert "Traceback" not in errors
    assert "Exception" not in errors
    assert errors.splitlines()[-1] in {"Stopped.", "tuplewire: interrupted", "tuplewire run: interrupted"}
