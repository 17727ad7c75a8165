"""Reports of an unreachable worker: a log entry immediately, and an error after the timeout."""

from __future__ import annotations

import functools
import math
import threading
import time

import pytest
from helpers.logged import logged
from helpers.topology import Pair
from helpers.traffic import client_of, deliver

from tuplewire import Client
from tuplewire.errors import FlushTimeoutError
from tuplewire_service.testing import eventually


@pytest.fixture(params=["send", "recv"])
def trying(request: pytest.FixtureRequest, nobody: str) -> Client:
    """Return a client that tries to reach an address without a worker until the test ends."""
    client = client_of(nobody)
    request.addfinalizer(functools.partial(client.close, 0))
    if request.param == "send":
        client.send(1, b"x")
    else:
        request.addfinalizer(client.recv([1]).close)  # noqa: PT021
    return client


def test_the_log_says_that_nobody_is_there(trying: Client, caplog: pytest.LogCaptureFixture) -> None:
    """A warning is logged once, with the address and the reason in its text."""
    eventually(lambda: logged(caplog, "worker.unreachable"), 10)
    (told,) = [each for each in caplog.records if "worker.unreachable" in each.message]
    assert f"worker.unreachable peer={trying.address} reason=" in told.message
    assert "Connection refused" in told.message
    assert told.levelname == "WARNING"


def test_a_client_that_closes_has_lost_nothing(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    """The log reports a closed connection, not a lost one."""
    task = pair.near_task()
    with caplog.at_level("INFO", "tuplewire"), client_of(pair.near.address) as client:
        client.send(task, b"x")
    assert logged(caplog, "connection.ready")
    assert logged(caplog, "connection.closed")
    assert not logged(caplog, "connection.lost")
    assert not logged(caplog, "worker.unreachable")
    with client_of(pair.near.address) as client:
        assert next(client.recv(task)).payloads == [b"x"]


def test_an_error_is_seen_as_it_is(nobody: str) -> None:
    """A block that ends with an error waits briefly for acknowledgements and adds no error of its own."""
    client = client_of(nobody, flush_seconds=0.1)

    def fail() -> None:
        with client:
            client.send(1, b"x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert client.ledger().dropped["closed"] == 1


def test_a_block_does_not_wait_twice(nobody: str) -> None:
    """If a flush has timed out on an unreachable worker, the end of the block does not wait again."""
    patience = []

    class Noting(Client):
        def close(self, timeout: float | None = None) -> None:
            patience.append(timeout)
            super().close(timeout)

    client = Noting(nobody)
    client.send(1, b"x")
    with pytest.raises(FlushTimeoutError, match=r"after 0.2 s"), client:
        client.flush(0.2)
    assert patience == [0.0]


def test_a_quiet_subscription_waits(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    """A subscription that the worker has accepted waits for messages longer than connect_seconds."""
    task = pair.near_task()
    caplog.set_level("INFO", "tuplewire")
    with client_of(pair.near.address, connect_seconds=0.3) as client, client.recv(task) as batches:
        eventually(lambda: logged(caplog, "subscription.ready"), 20)
        got: list[bytes] = []
        reading = threading.Thread(target=lambda: got.extend(next(batches).payloads))
        began = time.monotonic()
        reading.start()
        eventually(lambda: time.monotonic() - began > 0.7, 10)
        assert reading.is_alive()
        client.send(task, b"at last")
        reading.join(20)
        assert got == [b"at last"]


def test_waits_may_last_for_ever(pair: Pair) -> None:
    """math.inf removes the time limit, as a setting and as the timeout of one subscription."""
    task = pair.near_task()
    with client_of(pair.near.address, flush_seconds=math.inf, connect_seconds=math.inf) as client:
        deliver(client, task, b"x")
        assert next(client.recv(task, timeout=math.inf)).payloads == [b"x"]
