"""Commands with output in any encoding, with text of other programs, and with closed standard streams."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.ports import free_port
from helpers.terminals import on_terminal
from helpers.topology import TOPOLOGY, queued
from helpers.traffic import deliver

import tuplewire
from tuplewire import Client
from tuplewire.processes.worker_processes import Endpoint
from tuplewire_service.testing import eventually

NAME = "zoë\x1b]0;owned\x07\x9b31m☃"
"""A program's name that contains control sequences for a terminal."""
NAME_IN_ASCII = r"zo\xeb\x1b]0;owned\x07\x9b31m\u2603"
PLAIN = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONIOENCODING": ""}
ENCODINGS = {"ascii": {"PYTHONIOENCODING": "ascii"}, "latin-1": {"PYTHONIOENCODING": "latin-1"}, "C": PLAIN}
SECONDS = 60.0


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Run a worker with a program that has an unusual name, and with unusual messages."""
    with tuplewire.local("0-9") as endpoint, tuplewire.Client(endpoint.address, client_id=NAME) as client:
        for task in range(4):
            client.send(task, NAME.encode())
        deliver(client, 4, b"\xff" + NAME.encode("latin-1", errors="replace"))
        yield endpoint.address
        with client.recv(range(10)) as left:  # a draining worker waits for a consumer
            list(left.messages(quiet=0.2))


def ran(encoding: str, *words: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command until it exits."""
    return subprocess.run(
        [sys.executable, "-m", "tuplewire", *words],
        capture_output=True,
        env={**os.environ, **ENCODINGS[encoding]},
        check=False,
        timeout=SECONDS,
    )


def printed(encoding: str, *words: str, code: int = 0) -> str:
    """Run the command and return its output, checked for unencodable and control characters."""
    ended = ran(encoding, *words)
    assert ended.returncode == code, ended.stderr
    text = (ended.stderr if code else ended.stdout).decode("latin-1" if encoding == "latin-1" else "ascii")
    assert all(line.isprintable() for line in text.split("\n"))
    return text


@pytest.mark.parametrize("encoding", ["latin-1", "C"])
def test_names_of_others(encoding: str, address: str) -> None:
    """The status of a worker shows the names of clients, as text and as JSON."""
    name = NAME_IN_ASCII.replace(r"\xeb", "ë") if encoding == "latin-1" else NAME_IN_ASCII
    assert name in printed(encoding, "status", "--address", address)
    told = json.loads(printed(encoding, "status", "--address", address, "--json"))
    assert NAME in {each["sender_id"] for each in told["sessions"]}


def test_ones_own_words() -> None:
    """An error repeats the invalid argument."""
    assert "zo" in printed("C", NAME, code=64)
    assert "zo" in printed("C", "drain", "--address", f"unix:///{NAME}", code=64)
    topology = printed(
        "C", "recv", "1", f"--topology={NAME}", "--address=127.0.0.1:1", "--timeout=0.1", code=1
    )
    assert "127.0.0.1:1" in topology
    assert "zo" in printed("C", "worker", "--config", NAME, code=64)
    assert r"\x1b]" in printed("C", "recv", "1", f"--{NAME}", code=64)
    assert r'address_file = "a\U0000' in printed("C", "worker", "--address-file=a\x9b", "--print-config")
    assert "set LC_ALL" in printed("C", "worker", "--worker-id=a\x9b", "--print-config", code=64)


def test_messages_are_bytes(address: str) -> None:
    """Messages in a pipe are unchanged, and JSON contains their text unchanged."""
    assert ran("ascii", "recv", "0", "--count=1", f"--address={address}").stdout == NAME.encode() + b"\n"
    line = printed("ascii", "recv", "1", "--count=1", "--format=json", f"--address={address}")
    assert json.loads(line) == {"task": 1, "message": NAME}
    assert ran("C", "send", "5", "ë", f"--address={address}").returncode == 0
    assert ran("C", "recv", "5", "--count=1", f"--address={address}").stdout == "ë\n".encode()


def test_a_terminal_obeys_no_message(address: str) -> None:
    """A terminal shows messages in its encoding; control and other bytes are escaped."""
    for task, encoding, seen in (
        (2, "latin-1", NAME_IN_ASCII.replace(r"\xeb", "ë").encode("latin-1")),
        (4, "ascii", rb"\xffzo\xeb\x1b]0;owned\x07\x9b31m?"),
    ):
        command = [sys.executable, "-m", "tuplewire", "recv", str(task), "--count=1", f"--address={address}"]
        with on_terminal(command, {**os.environ, **ENCODINGS[encoding]}) as shown:
            eventually(shown.ended, SECONDS)
            assert (shown.process.returncode, shown.seen()) == (0, seen + b"\r\n")
    command = [sys.executable, "-m", "tuplewire", "recv", "3", "--format=prefixed", f"--address={address}"]
    with on_terminal(command, os.environ) as shown:
        eventually(shown.ended, SECONDS)
        assert shown.process.returncode == 64
        assert b"a terminal would interpret it" in b" ".join(shown.seen().split())


@pytest.mark.parametrize(
    "words", [["worker", "--print-config"], ["send", "1", "x"], ["status"]], ids=" ".join
)
def test_a_full_disk_is_told_in_a_line(words: list[str], address: str) -> None:
    """A full output device is reported in one line, without a traceback or a second error at exit."""
    with open("/dev/full", "wb") as full:  # noqa: PTH123 - no file
        ended = subprocess.run(
            [sys.executable, "-m", "tuplewire", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            env={**os.environ, "TUPLEWIRE_ADDRESS": address},
            check=False,
            text=True,
            timeout=SECONDS,
        )
    if words[0] == "send":
        assert (ended.returncode, ended.stderr) == (0, "1 of 1 messages acknowledged\n")
    else:
        assert ended.returncode == 1
        assert ended.stderr == f"tuplewire {words[0]}: No space left on device\n"


COMMAND = f"{shlex.quote(sys.executable)} -m tuplewire"
ALL_CLOSED = "<&- >&- 2>&-"


def run(words: str, closed: str, timeout: float = 60) -> int:
    """Run a command in a shell that closes its streams; return its exit code."""
    line = f"exec {COMMAND} {words} {closed}"
    return subprocess.run(["sh", "-c", line], timeout=timeout, check=False).returncode


def test_commands_without_streams(endpoint: Endpoint) -> None:
    """Commands with each kind of output exit with their usual code if all streams are closed."""
    at = endpoint.address
    for words in ("--version", f"status --address {at}", f"top --once --address {at}"):
        assert run(words, ALL_CLOSED) == 0, words
    assert run("status --address 127.0.0.1:1", ALL_CLOSED) == 1
    assert run("nothing", ALL_CLOSED) == 64


@pytest.mark.parametrize("closed", [">&-", ALL_CLOSED])
def test_sending_and_receiving(endpoint: Endpoint, closed: str) -> None:
    """Messages are sent and received; with standard input closed, there are no messages to send."""
    at = f"--topology {TOPOLOGY} --address {endpoint.address}"
    assert run(f"send {at} 1 hello", closed) == 0
    assert queued(endpoint, 1) == 1
    if "<&-" in closed:
        assert run(f"send {at} 1 -", closed) == 0
        assert queued(endpoint, 1) == 1
    assert run(f"recv {at} 1 --count 1", closed) == 0
    eventually(lambda: queued(endpoint, 1) == 0)


def test_a_worker(tmp_path: Path) -> None:
    """A worker without standard streams starts, serves messages and shuts down cleanly."""
    address = f"127.0.0.1:{free_port()}"
    words = f"worker --listen {address} --tasks 0-9 --listen-admin 127.0.0.1:0 --drain-seconds 1"
    worker = subprocess.Popen(["sh", "-c", f"exec {COMMAND} {words} {ALL_CLOSED}"], cwd=tmp_path)
    with Client(address, topology="default") as client:
        client.send(1, b"x")
        assert len(list(client.recv([1]).messages(1, seconds=60))) == 1
    worker.terminate()
    assert worker.wait(60) == 0
