"""Ctrl-C at any moment of a command: one line, a shell's exit code, and no process remains."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest
from helpers.tools import output_of, ran, started
from helpers.worker_process import COMMAND, Running, assignment_for, run_command, running

from tuplewire.connection.control_client import ControlClient
from tuplewire_service.testing import eventually

MARK = "MARK_OF_A_TEST"
SECONDS = 120.0
new_interpreter = pytest.mark.usefixtures("no_fork_server")
"""For tests that depend on the imports, or on a mark in /proc/PID/environ."""


def marked(mark: str, file: str = "cmdline") -> list[bytes]:
    """Return a file of /proc for each running process with a mark in its environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"{MARK}={mark}".encode() in (process / "environ").read_bytes():
                found.append((process / file).read_bytes().replace(b"\0", b" "))
    return found


def interrupted(arguments: list[str], when: Callable[[str], object]) -> tuple[int, str]:
    """Run a command, interrupt it, and return its exit code and errors; no process of it may remain.

    `when` is called after Tuplewire's first line of code: Python's own start can lose an interrupt.
    """
    mark = uuid4().hex
    environment = {**os.environ, MARK: mark}
    with started(*COMMAND, *arguments, env=environment, stdin=subprocess.DEVNULL) as process:
        eventually(lambda: _handles_alarm(process.pid), SECONDS)
        when(mark)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=SECONDS)
    eventually(lambda: not marked(mark), 20)
    return process.returncode, errors


def _handles_alarm(process: int) -> bool:
    """Return True if a process handles SIGALRM, as from the first line of the command on."""
    [caught] = re.findall(r"^SigCgt:\s*(\w+)", Path(f"/proc/{process}/status").read_text(), re.MULTILINE)
    return bool(int(caught, 16) >> (signal.SIGALRM - 1) & 1)


# Both are 130 for a shell. Python 3.11 ends itself by the signal if the interrupt passed through exec(), as
# in an import that defines a dataclass, even if the program handled it.
INTERRUPTED = {130, -signal.SIGINT}


@new_interpreter
@pytest.mark.parametrize("delay", [0.0, 0.1, 0.4, None])
def test_while_it_starts(delay: float | None) -> None:
    """An interrupt from Tuplewire's first line of code on, or during the imports, prints at most a line."""

    def when(mark: str) -> None:
        if delay is None:
            eventually(lambda: b"cygrpc" in b"".join(marked(mark, "maps")), 60)
        else:
            time.sleep(delay)

    code, errors = interrupted(["recv", "1", "--timeout", "30"], when)
    assert code in INTERRUPTED
    assert errors in {"tuplewire: interrupted\n", ""}


_IN_A_CALLBACK = """
import signal, sys, time, weakref
from tuplewire_service.command import cli, entry

class Thing:
    pass

def main():
    thing = Thing()
    kept = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGINT))
    del thing
    time.sleep(600)

cli.main = main
sys.exit(entry.main())
"""


def test_where_python_cannot_raise_it() -> None:
    """Ctrl-C is lost in a callback, of which an import has many; the command then raises it again."""
    ended = ran(sys.executable, "-c", _IN_A_CALLBACK)
    assert (ended.returncode, ended.stderr) == (130, "tuplewire: interrupted\n")


_WHILE_A_CALL_IS_MADE = """
import random, signal, sys
from tuplewire.connection.control_client import ControlClient

random.seed(1)
signal.signal(signal.SIGALRM, signal.default_int_handler)
for _ in range(300):
    client = ControlClient(sys.argv[1], timeout=600)
    try:
        # Again after 0.2 s: one that falls into a callback is lost.
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 0.002), 0.2)
        client.wait_ready(600)
    except KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, 0)
        client.close()
"""


def test_while_a_call_is_made(silent: socket.socket) -> None:
    """An interrupt just after the start of a call works: a closing channel does not wait for calls."""
    output_of(_WHILE_A_CALL_IS_MADE, f"127.0.0.1:{silent.getsockname()[1]}")


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Run a worker with the tasks 0 and 1 for all tests of this file."""
    with running(tmp_path_factory.mktemp("w")) as started:
        with ControlClient(started.address) as control:
            control.update_assignment(assignment_for(started))
        yield started


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """Yield a socket that listens and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


ASKING = "status assign drain top tap debug log-level dead-letters send recv"


@pytest.mark.parametrize("command", ASKING.split())
def test_while_nobody_answers(command: str, silent: socket.socket, tmp_path: Path) -> None:
    """Ctrl-C ends the wait for a hung worker immediately, without waiting for the timeout."""
    address = f"127.0.0.1:{silent.getsockname()[1]}"
    file = tmp_path / "assignment.json"
    workers = [{"worker_id": "a", "address": "h:1", "tasks": [0]}]
    file.write_text(json.dumps({"version": 1, "topology": "default", "workers": workers}), encoding="utf-8")
    further = {
        "assign": [str(file)],
        "top": ["--once"],
        "log-level": ["debug"],
        "dead-letters": ["list"],
        "send": ["1", "x"],
        "recv": ["1"],
    }.get(command, [])

    def connected(_: str) -> None:
        assert select.select([silent], [], [], SECONDS)[0]

    code, errors = interrupted([command, *further, f"--address={address}", "--timeout=600"], connected)
    said = [line for line in errors.splitlines() if not line.startswith("waiting for ")]
    quiet = command in {"recv", "status", "tap", "top"}
    assert (code, said) == (130, [] if quiet else [f"tuplewire {command}: interrupted"])


@pytest.mark.parametrize(
    ("words", "head", "row"),
    [
        ("status --watch=0.1", "worker  ", r"1 +a +0 +0 +0 +0 +0 +no *\n"),
        ("status --watch=0.1 --json", '{"worker_id": "a"', r"\{.*\}\n"),
        ("top --json --interval=0.1", "{", r"\{.*\}\n"),
    ],
)
def test_while_it_prints_again_and_again(words: str, head: str, row: str, worker: Running) -> None:
    """A command prints rates from the second time on, or a line of JSON; the last line is complete."""
    command, *flags = words.split()
    with started(*COMMAND, command, "--address", worker.address, *flags) as process:
        assert process.stdout is not None
        times = 0
        for line in process.stdout:
            times += line.startswith(head)
            if times > 1 and re.match(row, line):
                break
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=SECONDS)
    assert (process.returncode, errors) == (130, "")
    assert out.endswith("\n") or not out


def test_while_it_reads_what_to_send(worker: Running) -> None:
    """Messages that were read before the interrupt are at the worker."""
    with (
        ControlClient(worker.address) as control,
        started(*COMMAND, "send", "1", f"--address={worker.address}", stdin=subprocess.PIPE) as process,
    ):
        assert process.stdin is not None
        process.stdin.write("first\n")
        process.stdin.flush()
        eventually(lambda: control.status().ledger.accepted == 1, SECONDS)
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 130
        assert process.stderr is not None
        assert process.stderr.read() == "1 of 1 messages acknowledged\ntuplewire send: interrupted\n"


def test_while_it_waits_for_acknowledgements(tmp_path: Path) -> None:
    """`send` prints how many messages must be sent again; `recv` gets the others, also during a drain."""
    flags = ["--tasks=1", "--receive-queue-messages=1000", "--drain-seconds=30"]
    with running(tmp_path, *flags) as full, ControlClient(full.address) as control:
        words = ["send", "1", *map(str, range(2000)), "--timeout=600", f"--address={full.address}"]
        code, errors = interrupted(words, lambda _: eventually(lambda: control.status().ledger.accepted, 60))
        control.drain()
        received = run_command("recv", "1", "--count=1000", f"--address={full.address}").stdout
    assert code in INTERRUPTED
    assert received.split() == [*map(str, range(1000))]
    assert "1000 of 2000 messages acknowledged; 1000 must be sent again: the last of each task\n" in errors


@new_interpreter
@pytest.mark.parametrize("delay", [0.1, 0.4, None])
def test_while_a_worker_starts(delay: float | None, tmp_path_factory: pytest.TempPathFactory) -> None:
    """An interrupted worker drains, or ends by the signal, and removes its files except possibly a lock."""
    folder = tmp_path_factory.mktemp("w")  # a socket needs a short path
    addresses = folder / "addresses.json"
    flags = [
        "--tasks=0-9",
        "--listen=127.0.0.1:0",
        "--listen-admin=127.0.0.1:0",
        f"--listen-unix={folder}/w.sock",
        f"--address-file={addresses}",
    ]

    def when(_: str) -> None:
        time.sleep(delay) if delay else eventually(addresses.exists, SECONDS)

    code, errors = interrupted(["worker", *flags], when)
    assert code in ({0, *INTERRUPTED} if delay else {0})
    assert "Traceback" not in errors
    assert {each.name for each in folder.iterdir()} <= {"w.sock.lock"}


@new_interpreter
@pytest.mark.usefixtures("warm_spark")
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    ("job", "process"),
    [
        ("wordcount", b"launcher.Main"),
        ("wordcount", b"SparkSubmit"),
        ("wordcount", b"pyspark.daemon"),
        ("flights", b"SparkSubmit"),
        ("flights", b"pyspark.daemon"),
    ],
)
def test_while_spark_starts_and_runs(job: str, process: bytes, tmp_path: Path) -> None:
    """An interrupt also ends the JVM: before it answers, while it starts, and during a job."""
    book = tmp_path / "book.txt"
    book.write_bytes(b"to be or not to be\n" * 200_000)

    def seen(mark: str) -> None:
        eventually(lambda: any(process in each for each in marked(mark)), 3 * SECONDS)  # Spark starts slowly

    given = [f"--input={book}"] if job == "wordcount" else []
    code, errors = interrupted(["run", job, *given], seen)
    assert code == 130
    assert "Traceback" not in errors
    assert "Exception" not in errors
    assert errors.splitlines()[-1] in {
        "Stopped.",
        "tuplewire: interrupted",
        f"tuplewire run {job}: interrupted",
    }
