"""`tuplewire send` and `tuplewire recv`, used at a terminal and in a script's pipe."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from helpers import eventually
from helpers.secured import Authority, files_of
from helpers.terminals import on_terminal
from helpers.tools import started
from helpers.traffic import deliver
from helpers.worker_process import COMMAND, Running, run_command, running

import tuplewire
from tuplewire.errors import ConfigError
from tuplewire.processes.worker_processes import LocalWorkerProcess
from tuplewire_service.command.messages import MessageFormat, read_messages

_SECONDS = 60.0


@pytest.fixture(scope="module")
def worker() -> Iterator[LocalWorkerProcess]:
    """Run a worker with tasks 0 to 99."""
    with tuplewire.local() as worker:
        yield worker


def command(
    worker: LocalWorkerProcess | Running, *words: str, given: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """Run the command with a worker's address in the environment."""
    return subprocess.run(
        [sys.executable, "-m", "tuplewire", *words],
        input=given,
        capture_output=True,
        env={**os.environ, "TUPLEWIRE_ADDRESS": worker.address},
        check=False,
        timeout=_SECONDS,
    )


def test_messages_of_the_command_line(worker: LocalWorkerProcess) -> None:
    """Each word is a message, received once and in order."""
    sent = command(worker, "send", "1", "hello", "wörld")
    assert (sent.returncode, sent.stderr) == (0, b"2 of 2 messages acknowledged\n")
    took = command(worker, "recv", "1", "--idle", "0")
    assert (took.returncode, took.stdout) == (0, "hello\nwörld\n".encode())
    took = command(worker, "recv", "1", "--idle", "0.2", "--count", "5")
    assert (took.stdout, took.stderr) == (b"", b"received 0 of 5 messages; then none for 0.2 s\n")
    refused = command(worker, "send", "99999", "hello")
    assert (refused.returncode, refused.stderr.count(b"UNKNOWN_TASK")) == (1, 1)
    assert refused.stderr.startswith(b"0 of 1 messages acknowledged\n")  # the error has the next step
    refused = command(worker, "send", "1", "hello", "--topology=other")
    assert (refused.returncode, refused.stderr.count(b"belongs to 'other'")) == (1, 1)


def test_a_count_leaves_the_others(worker: LocalWorkerProcess) -> None:
    """Messages beyond the count are not acknowledged, and go to the next consumer."""
    command(worker, "send", "2", given=b"a\nb\n\nd\n")
    assert command(worker, "recv", "2", "--count", "1").stdout == b"a\n"
    assert command(worker, "recv", "2", "--count", "3").stdout == b"b\n\nd\n"


def test_json_lines(worker: LocalWorkerProcess) -> None:
    """`send` reads the lines that `recv` writes, text or base64; keys and headers stay the same."""
    lines = [
        {"task": 9, "message": "text", "key": "k", "headers": [["a", "1"], ["a", "zoë"]]},
        {"task": 9, "base64": "/w==", "key": {"base64": "/w=="}, "headers": [["b", {"base64": "/g=="}]]},
        {"task": 9, "message": "", "key": ""},
        {"task": 9, "message": "neither"},
    ]
    given = "".join(f"{json.dumps(line)}\n" for line in [*lines, {"message": "no task"}]).encode()
    sent = command(worker, "send", "--format", "json", given=given)
    assert (sent.returncode, b"message 5 names no task: give TASK" in sent.stderr) == (64, True)
    took = command(worker, "recv", "9", "--format", "json", "--count", "4")
    assert [json.loads(line) for line in took.stdout.splitlines()] == lines
    assert command(worker, "send", "--format", "json", given=took.stdout).returncode == 0
    with worker.client() as client, client.recv([9]) as subscription:
        first, second, *_ = subscription.messages(4)
    assert (first.key, first.headers) == (b"k", (("a", b"1"), ("a", "zoë".encode())))
    assert (second.payload, second.key, second.headers) == (b"\xff", b"\xff", (("b", b"\xfe"),))


@pytest.mark.parametrize(
    "line",
    [
        '{"task": "x", "message": "m"}',
        '{"task": 5}',
        '{"task": 5, "message": "m", "key": 1}',
        '{"task": 5, "message": "m", "headers": {"ab": "x"}}',
        '{"task": 5, "message": "m", "headers": ["ab"]}',
        '{"task": 5, "message": "m", "headers": [[1, "x"]]}',
        '{"task": 5, "base64": "?"}',
        "[]",
        "[" * 100_000,
        "m",
    ],
)
def test_what_is_no_message_is_refused(line: str) -> None:
    """An invalid line is refused with its number and the expected form."""
    with pytest.raises(ConfigError, match=r"message 1 is not of the form .*headers"):
        list(read_messages([line.encode()], MessageFormat.JSON, None))
    with pytest.raises(ConfigError, match="unknown key 'headrs' in message 1; did you mean headers"):
        list(read_messages([b'{"headrs": [["a", "b"]]}'], MessageFormat.JSON, 5))


def test_a_file_or_standard_output(worker: LocalWorkerProcess, tmp_path: Path) -> None:
    """Messages replace the given file, unless the worker refuses; `-` is standard output, as without one."""
    command(worker, "send", "10", "a", "b")
    assert b"for several tasks, write 1,2" in command(worker, "recv", "10", "11", "--count", "1").stderr
    assert command(worker, "recv", "10", "-", "--count", "1").stdout == b"a\n"
    assert command(worker, "recv", "10", str(tmp_path / "b"), "--count", "1").stdout == b""
    for task, *flags in [("99999",), ("10", "--address=127.0.0.1:1", "--timeout=0.2")]:
        assert command(worker, "recv", task, str(tmp_path / "b"), *flags).returncode == 1
        assert (tmp_path / "b").read_bytes() == b"b\n"
    command(worker, "send", "10", "c")
    command(worker, "recv", "10", str(tmp_path / "b"), "--count", "1")
    assert (tmp_path / "b").read_bytes() == b"c\n"
    wrong = command(worker, "recv", "10", str(tmp_path), "--count", "1")
    assert wrong.returncode == 1
    assert wrong.stderr == f"tuplewire recv: {tmp_path}: Is a directory\n".encode()


def test_any_bytes_with_a_prefix(worker: LocalWorkerProcess) -> None:
    """With the format `prefixed`, a pipe from recv to send forwards any bytes."""
    stream = b"\0\0\0\2\n\0" + b"\0\0\0\0" + b"\0\0\0\1\xff"
    assert command(worker, "send", "6", "-", "--format", "prefixed", given=stream).returncode == 0
    assert command(worker, "recv", "6", "--format", "prefixed", "--count", "3").stdout == stream
    cut = command(worker, "send", "6", "--format", "prefixed", given=b"\0\0\0\5abc")
    assert cut.returncode == 64
    assert b"the input ends within a message" in cut.stderr


@pytest.mark.parametrize(("timeout", "lines"), [("0.3", 1), ("1.2", 2)])
def test_nobody_there_is_told_at_once(timeout: str, lines: int) -> None:
    """A wrong address is an error with its reason, once; a wait of over a second is announced first."""
    ran = run_command("recv", "1", "--address", "127.0.0.1:1", "--timeout", timeout)
    assert ran.returncode == 1
    said = ran.stderr.splitlines()
    assert said[:-1] == [f"waiting for the worker at 127.0.0.1:1 (at most {timeout} s)"] * (lines - 1)
    assert f"at 127.0.0.1:1: not ready after {timeout} s: no connection: " in said[-1]
    assert "Connection refused; start a worker there" in said[-1]


def test_a_worker_without_tls(worker: LocalWorkerProcess, tmp_path: Path) -> None:
    """A command with TLS suggests to check the worker, and not to start one."""
    authority = files_of(Authority().issue("w"), tmp_path).tls_ca
    said = command(worker, "recv", "1", "--tls-ca", str(authority), "--timeout", "0.3").stderr
    assert (b"does the worker use TLS" in said, b"start a worker" in said) == (True, False)


def test_a_reader_says_what_it_waits_for(worker: LocalWorkerProcess) -> None:
    """After a second without a message, `recv` prints the tasks, the worker and the limit of the wait."""
    took = command(worker, "recv", "11,12", "--idle", "1.2")
    said = f"waiting for messages to task 11-12 at {worker.address} (at most 1.2 s)\n"
    assert (took.returncode, took.stdout, took.stderr.decode()) == (0, b"", said)
    with started(*COMMAND, "recv", "11", "--address", worker.address) as process:
        assert process.stderr is not None
        said = f"waiting for messages to task 11 at {worker.address} (Ctrl-C to stop)\n"
        assert process.stderr.readline() == said
        process.send_signal(signal.SIGINT)
        assert process.wait(_SECONDS) == 130


def test_a_sender_says_what_it_waits_for(tmp_path: Path) -> None:
    """`send` prints that it waits for capacity, and in the end the number of acknowledged messages."""
    queue = ["--tasks=0-9", "--receive-queue-messages=1000", "--drain-seconds=0.2"]
    lines = b"x\n" * 200_000  # more than the queue and a sender's bound for one task
    with running(tmp_path, *queue) as full:
        sent = command(full, "send", "1", "--timeout", "1.2", given=lines)
    waiting, counts, error = sent.stderr.decode().splitlines()
    assert sent.returncode == 1
    assert waiting == "waiting for capacity for task 1 (at most 1.2 s)"
    acknowledged, total, rest = map(int, re.findall(r"\d+", counts))
    assert acknowledged > 0 < rest == total - acknowledged
    assert error.startswith("tuplewire send: ")


def test_a_sender_on_a_terminal_says_what_to_type(worker: LocalWorkerProcess) -> None:
    """On a terminal, `send` explains how to enter messages and how to end the input."""
    words = [sys.executable, "-m", "tuplewire", "send", "14", "--address", worker.address]
    with on_terminal(words, os.environ) as shown:
        eventually(lambda: b"type one message per line; Ctrl-D ends the input" in shown.seen(), _SECONDS)
        os.write(shown.controller, b"typed\n\x04")
        eventually(shown.ended, _SECONDS)
        assert b"1 of 1 messages acknowledged" in shown.seen()
        assert shown.process.returncode == 0
    assert command(worker, "recv", "14", "--count", "1").stdout == b"typed\n"


def test_an_admin_port_is_recognised(tmp_path: Path) -> None:
    """A command that gets the admin port instead of the message port names it."""
    with running(tmp_path, "--tasks=0-9") as worker:
        admin = urlsplit(str(worker.bound["metrics_url"])).netloc
        for words in (["status"], ["send", "1", "x"], ["recv", "1"]):
            asked = run_command(*words, "--address", admin, "--timeout", "0.9")
            assert asked.returncode == 1
            (line,) = asked.stderr.splitlines()
            assert f"{admin} does not answer in gRPC's protocol; if it is the admin port of a worker" in line


@pytest.mark.parametrize("count", [28, 20_000])
def test_what_a_pipe_has_not_read_stays_at_the_worker(worker: LocalWorkerProcess, count: int) -> None:
    """If the reader closes the pipe, `recv` ends, and acknowledges only the messages that it has read."""
    sent = command(worker, "send", "12", given=b"".join(b"%d\n" % n for n in range(count)))
    assert sent.returncode == 0
    receiving = [*COMMAND, "recv", "12", "--address", worker.address]
    with subprocess.Popen(receiving, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        taken = b""
        while taken != b"0\n1\n":
            taken += process.stdout.read(1)
        process.stdout.close()
        assert process.wait(_SECONDS) == 1
    left = command(worker, "recv", "12", "--idle", "1").stdout.split()
    assert left == [b"%d" % n for n in range(2, count)]


def test_messages_continue_within_a_batch(worker: LocalWorkerProcess) -> None:
    """A second call returns the rest of a batch before later ones, which would acknowledge it."""
    with worker.client() as client, client.recv([7]) as subscription:
        deliver(client, tuplewire.TaskMessageBatch.from_columns(7, [b"%d" % n for n in range(5)]))
        assert [each.payload for each in subscription.messages(2)] == [b"0", b"1"]
        deliver(client, tuplewire.TaskMessageBatch.from_columns(7, [b"5"]))
        for each in subscription.messages(quiet=5):
            if each.payload == b"3":
                break
        assert [each.payload for each in subscription.messages(3, quiet=5)] == [b"3", b"4", b"5"]


def test_a_part_of_a_batch_acknowledged_in_a_loop(worker: LocalWorkerProcess) -> None:
    """acknowledge(n) within the loop ends its batch; the rest arrives next, once."""
    with worker.client() as client, client.recv([9]) as subscription:
        deliver(client, tuplewire.TaskMessageBatch.from_columns(9, [b"%d" % n for n in range(8)]))
        got: list[bytes] = []
        for each in subscription.messages(quiet=0.5):
            got.append(each.payload)
            if each.payload == b"3":
                subscription.acknowledge(4)
        assert got == [b"%d" % n for n in range(8)]


def test_messages_end_by_count_quiet_and_time(worker: LocalWorkerProcess) -> None:
    """In a program, an iteration ends by count, quiet time or duration, and acknowledges read messages."""
    with worker.client() as client:
        deliver(client, tuplewire.TaskMessageBatch.from_columns(8, [b"%d" % n for n in range(10)]))
        with client.recv([8]) as subscription:
            assert [each.payload for each in subscription.messages(3)] == [b"0", b"1", b"2"]
        with client.recv([8]) as subscription:
            for each in subscription.messages():
                if each.payload == b"5":
                    break  # 5 itself is not acknowledged
        with client.recv([8]) as subscription:
            left = [each.payload for each in subscription.messages(quiet=0.5)]
            assert left == [b"5", b"6", b"7", b"8", b"9"]
        with client.recv([8]) as subscription:
            assert list(subscription.messages(seconds=0.3)) == []
            client.send(8, b"first")
            began = time.monotonic()
            for _ in subscription.messages(seconds=0.3):
                assert time.monotonic() - began < 3, "a steady flow extends the iteration"
                client.send(8, b"next")
                time.sleep(0.2)  # so that each request finds a message
            list(subscription.messages(quiet=0.5))
