"""`tuplewire send` and `tuplewire recv`, as a person at a terminal and a script in a pipe use them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

import tuplewire
from tuplewire.local_worker import OwnWorker

_SECONDS = 60.0


@pytest.fixture(scope="module")
def worker() -> Iterator[OwnWorker]:
    """Run a worker with tasks 0 to 99."""
    with tuplewire.local() as worker:
        yield worker


def command(worker: OwnWorker, *words: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run the command beside a worker."""
    return subprocess.run(
        [sys.executable, "-m", "tuplewire", *words],
        input=given,
        capture_output=True,
        env={**os.environ, "TUPLEWIRE_ADDRESS": worker.address},
        check=False,
        timeout=_SECONDS,
    )


def test_messages_of_the_command_line(worker: OwnWorker) -> None:
    """Words are messages; who takes them sees them once, in order."""
    sent = command(worker, "send", "1", "hello", "wörld")
    assert (sent.returncode, sent.stderr) == (0, b"2 sent and acknowledged\n")
    took = command(worker, "recv", "1", "--count", "2")
    assert (took.returncode, took.stdout) == (0, "hello\nwörld\n".encode())
    assert command(worker, "recv", "1", "--quiet", "0.2").stdout == b""


def test_a_count_leaves_the_others(worker: OwnWorker) -> None:
    """What is beyond the count goes to the next consumer, and is not marked as seen."""
    command(worker, "send", "2", given=b"a\nb\n\nd\n")
    assert command(worker, "recv", "2", "--count", "1").stdout == b"a\n"
    assert command(worker, "recv", "2", "--count", "3").stdout == b"b\n\nd\n"


def test_json_lines(worker: OwnWorker) -> None:
    """A line names its task, and carries text, or bytes as base64."""
    lines = b'{"task": 3, "message": "text"}\n{"task": 4, "base64": "/w=="}\n{"message": "no task"}\n'
    sent = command(worker, "send", "--format", "json", given=lines)
    assert sent.returncode == 64
    assert b"message 3 names no task: give TASK" in sent.stderr
    took = command(worker, "recv", "3,4", "--format", "json", "--count", "2")
    found = [json.loads(line) for line in took.stdout.splitlines()]
    assert sorted(found, key=str) == sorted(
        [{"task": 3, "message": "text"}, {"task": 4, "base64": "/w=="}], key=str
    )
    wrong = command(worker, "send", "5", "--format", "json", given=b'{"task": "x", "message": "m"}\n')
    assert wrong.returncode == 64
    assert b"message 1 is not of the form" in wrong.stderr


def test_any_bytes_with_a_prefix(worker: OwnWorker) -> None:
    """A pipe from recv to send passes on what no line can hold."""
    stream = b"\0\0\0\2\n\0" + b"\0\0\0\0" + b"\0\0\0\1\xff"
    assert command(worker, "send", "6", "-", "--format", "prefixed", given=stream).returncode == 0
    took = command(worker, "recv", "6", "--format", "prefixed", "--count", "3")
    assert took.stdout == stream
    cut = command(worker, "send", "6", "--format", "prefixed", given=b"\0\0\0\5abc")
    assert cut.returncode == 64
    assert b"the input ends within a message" in cut.stderr


@pytest.mark.parametrize(("timeout", "lines"), [("0.5", 1), ("2", 2)])
def test_nobody_there_is_told_at_once(timeout: str, lines: int) -> None:
    """A wrong address is told with its reason after a second; a command that waits longer says so."""
    ran = subprocess.run(
        [sys.executable, "-m", "tuplewire", "recv", "1", "--address", "127.0.0.1:1", "--timeout", timeout],
        capture_output=True,
        check=False,
        text=True,
        timeout=_SECONDS,
    )
    assert ran.returncode == 1
    said = ran.stderr.splitlines()
    assert len(said) == lines
    assert all("the worker at 127.0.0.1:1: not ready after" in line for line in said)
    assert all("Connection refused" in line for line in said)
    assert said[0].endswith("; waiting for it ...") == (lines > 1)


def test_ctrl_c_ends_a_reader_with_a_line(worker: OwnWorker) -> None:
    """Whoever waits for messages ends it by Ctrl-C; what was not printed stays."""
    command(worker, "send", "7", "first")
    with subprocess.Popen(
        [sys.executable, "-m", "tuplewire", "recv", "7", "--address", worker.address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"first\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=_SECONDS)
    assert (process.returncode, errors) == (130, b"tuplewire recv: interrupted\n")


def test_messages_end_by_count_quiet_and_time(worker: OwnWorker) -> None:
    """The same in a program: an iteration that ends, and acknowledges just what was seen."""
    with worker.client() as client:
        client.send(tuplewire.TaskMessageBatch.from_columns(8, [b"%d" % n for n in range(10)]))
        client.flush(10)
        with client.recv([8]) as subscription:
            assert [each.message for each in subscription.messages(3)] == [b"0", b"1", b"2"]
        with client.recv([8]) as subscription:
            for each in subscription.messages():
                if each.message == b"5":
                    break  # 5 itself is not acknowledged
        with client.recv([8]) as subscription:
            assert [each.message for each in subscription.messages(quiet=0.5)] == [
                b"5",
                b"6",
                b"7",
                b"8",
                b"9",
            ]
        with client.recv([8]) as subscription:
            assert list(subscription.messages(seconds=0.3)) == []
