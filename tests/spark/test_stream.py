"""The streaming pipeline, as its command runs it."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.dataset
import pytest
from helpers import eventually

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

STOP_SECONDS = 150.0
RATE = 200
WINDOW = 5 * RATE
SENSORS = 20


@contextmanager
def stream(*arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """Run the pipeline; at the end of the block it is killed with its JVM, if it still runs."""
    command = [sys.executable, "-m", "tuplewire_service", "run", "stream", f"--rows-per-second={RATE}"]
    with subprocess.Popen(
        [*command, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as run:
        try:
            yield run
        finally:
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)


def celsius(number: int) -> float:
    """Return the temperature of a reading."""
    return 20 + 5 * math.sin(number / 1000) + (20 if number % 997 == 0 else 0)


def check_windows(output: Path, origin: int, complete: int) -> None:
    """Compare the rows of the windows that are complete with what they are without any disturbance."""
    table = pyarrow.dataset.dataset(output, partitioning="hive").to_table()
    rows: dict[tuple[int, str], tuple[int, float]] = {}
    for row in table.select(["start", "sensor", "readings", "mean_celsius"]).to_pylist():
        window = (int(row["start"].timestamp()) - origin) // 5
        key = window, row["sensor"]
        rows[key] = max(rows.get(key, (0, 0.0)), (row["readings"], row["mean_celsius"]))
    for window in range(complete):
        for sensor in range(SENSORS):
            expected = [
                celsius(number)
                for number in range(window * WINDOW, (window + 1) * WINDOW)
                if number % SENSORS == sensor
            ]
            readings, mean = rows.pop((window, f"sensor-{sensor}"))
            assert readings == len(expected), (window, sensor)
            assert mean == pytest.approx(sum(expected) / len(expected))
    assert all(window == complete for window, _ in rows), (
        "there is a window after the one that is not complete"
    )


@pytest.mark.long
def test_killed_and_resumed(tmp_path: Path) -> None:
    """A run is killed in the middle; the next goes on, and all windows are as if nothing had happened.

    After Ctrl-C what is on its way is still counted, nothing is missing, and the exit code is 0.
    """
    output, kept = tmp_path / "windows", tmp_path / "checkpoint" / "stream.json"
    arguments = ("--output", output, "--checkpoint", kept.parent)

    def course() -> dict[str, int]:
        found: dict[str, int] = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
        return found

    with stream(*arguments) as run:
        eventually(lambda: course().get("windows", 0) > 0, STOP_SECONDS, "a window is complete")
        os.killpg(run.pid, signal.SIGKILL)
    before = course()
    with stream(*arguments) as run:
        assert run.stdout is not None
        first = run.stdout.readline()
        os.killpg(run.pid, signal.SIGINT)
        rest, errors = run.communicate(timeout=STOP_SECONDS)
    assert re.match(r"\S+ to \S+: +[\d,]+ readings of 20 sensors, mean \d", first), errors
    assert run.returncode == 0, errors
    account = re.search(
        r"([\d,]+) readings came to the bolts, ([\d,]+) are counted in windows; equal: yes", rest
    )
    assert account is not None, rest
    assert rest.count("pending 0 (balances)") == 2
    after = course()
    assert (after["origin"], after["run"]) == (before["origin"], 1)
    assert after["windows"] > before["windows"] > 0
    check_windows(output, after["origin"], after["windows"])


def child(process_id: int, argument: bytes) -> int:
    """Return the child of a process that has an argument."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = stat.read_text(encoding="utf-8").rpartition(")")[2].split()[1]
            if int(parent) == process_id and argument in (stat.parent / "cmdline").read_bytes().split(b"\0"):
                return int(stat.parent.name)
        except (FileNotFoundError, ProcessLookupError):
            continue
    raise AssertionError(f"{process_id} has no child with {argument!r}")


@pytest.mark.long
def test_a_dead_worker_ends_it() -> None:
    """When a worker is killed the run ends with a line that says so, and the exit code 1.

    Spark's Python processes may have warned before.
    """
    with stream() as run:
        assert run.stderr is not None
        for line in run.stderr:
            if line.startswith("Running until it is stopped"):
                break
        os.kill(child(run.pid, b"--worker-id=worker-1"), signal.SIGKILL)
        errors = [line for line in run.stderr if not line.startswith("sent ")]
        assert run.wait(STOP_SECONDS) == 1
    *warnings, error = errors
    assert all(line.startswith("worker.unreachable peer=") for line in warnings), errors
    assert re.match(r"tuplewire run: a worker is gone.*worker-1\.sock.*start again", error), errors
