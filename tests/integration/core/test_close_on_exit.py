"""Clients that are dropped, or open when their program ends, disconnect and report lost messages."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
from helpers.tools import ran
from helpers.topology import TOPOLOGY, metric
from helpers.traffic import take

from tuplewire import Client, aio
from tuplewire.processes.worker_processes import Endpoint
from tuplewire_service.testing import eventually

TASK = 1
CONNECTED = 'tuplewire_senders{state="connected"}'
RESUMABLE = 'tuplewire_senders{state="resumable"}'
NOBODY = "127.0.0.1:1"
MESSAGES = 1000


def no_session_is_left(endpoint: Endpoint) -> None:
    """Wait until the worker has removed all sessions, long before they would expire."""
    eventually(lambda: metric(endpoint, CONNECTED) == metric(endpoint, RESUMABLE) == 0, 20)


def drop(clients: list[Client] | list[aio.Client], warning: str) -> None:
    """Drop the last reference to each client, and expect a warning."""
    with pytest.warns(ResourceWarning, match=warning):
        clients.clear()


def program(address: str, ending: str) -> subprocess.CompletedProcess[str]:
    """Run a program that sends and does not close its client."""
    code = f"""
import asyncio, os, sys
import tuplewire
from tuplewire import aio
client = tuplewire.Client({address!r}, topology={TOPOLOGY!r})
for number in range({MESSAGES}):
    client.send({TASK}, b"x")
{ending}
"""
    return ran(sys.executable, "-W", "always", "-c", code)


@pytest.mark.parametrize("ending", ["", "del client", "client.flush()"])
def test_a_program_ends_without_closing(endpoint: Endpoint, ending: str) -> None:
    """Without close(), the messages arrive, the session is removed, and a ResourceWarning gives advice."""
    ended = program(endpoint.address, ending)
    assert ended.returncode == 0
    assert "ResourceWarning" in ended.stderr
    assert "call close()" in ended.stderr
    assert "client.not_closed" not in ended.stderr
    no_session_is_left(endpoint)
    take(endpoint, TASK, MESSAGES)


def test_a_program_that_closes_is_told_nothing(endpoint: Endpoint) -> None:
    """A program that closes its client causes neither a warning nor a log line."""
    ended = program(endpoint.address, "client.flush(); client.close()")
    assert (ended.returncode, ended.stderr) == (0, "")
    take(endpoint, TASK, MESSAGES)


def test_what_a_program_loses_at_its_end_is_told() -> None:
    """If no worker answers, the program ends within seconds and logs the number of lost messages."""
    ended = program(NOBODY, "")
    assert ended.returncode == 0
    assert f"client.not_closed address={NOBODY} messages={MESSAGES}" in ended.stderr


def test_dropped_clients_leave_nothing(endpoint: Endpoint) -> None:
    """Fifty clients send and are dropped: every message arrives, and no session or sender remains."""
    for _ in range(50):
        client = Client(endpoint.address, topology=TOPOLOGY)
        for _ in range(MESSAGES // 50):
            client.send(TASK, b"x")
        dropped = [client]
        del client
        drop(dropped, "was dropped without close")
    no_session_is_left(endpoint)
    take(endpoint, TASK, MESSAGES)


def test_a_dropped_client_tells_what_was_lost(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its close times out, a dropped client logs the number of lost messages."""
    monkeypatch.setattr("tuplewire.connection.close_on_exit._COLLECTED_SECONDS", 0.2)
    client = Client(NOBODY, topology=TOPOLOGY)
    client.send(TASK, b"x")
    dropped = [client]
    del client
    drop(dropped, "1 message not acknowledged")
    eventually(lambda: "messages=1 reason" in caplog.text, 10)


async def test_a_dropped_asyncio_client(endpoint: Endpoint) -> None:
    """A dropped asyncio client on a running loop disconnects in the same way as the blocking client."""
    client = aio.Client(endpoint.address, topology=TOPOLOGY)
    for _ in range(MESSAGES):
        await client.send(TASK, b"x")
    dropped = [client]
    del client
    drop(dropped, "was dropped without close")
    await asyncio.to_thread(no_session_is_left, endpoint)

    take(endpoint, TASK, MESSAGES)


def test_an_asyncio_client_whose_loop_has_ended(endpoint: Endpoint) -> None:
    """After the loop has closed, nothing can be sent: the number of lost messages is logged."""
    code = f"""
client.close()
async def send():
    client = aio.Client({NOBODY!r}, topology={TOPOLOGY!r})
    await client.send({TASK}, b"x")
asyncio.run(send())"""
    ended = program(endpoint.address, code)
    assert "with 1 message not acknowledged" in ended.stderr
    assert f"client.not_closed address={NOBODY} messages=1" in ended.stderr
