"""One client for each worker, and parallel calls to all workers."""

from __future__ import annotations

import threading
from itertools import chain, repeat

import pytest

from tuplewire.connection.control_client import ControlClient, ControlClients
from tuplewire.errors import RefusedError, UnreachableError


class Made(list[ControlClient]):
    """Records the created clients in order; they do not connect."""

    def __call__(self, address: str) -> ControlClient:
        self.append(ControlClient(address, 1))
        return self[-1]

    @property
    def open(self) -> list[str]:
        return [each.address for each in self if not each._closed]


def test_each_is_asked_at_once_and_errors_are_results() -> None:
    """Calls run in parallel; an error is the result of its worker only."""
    meet = threading.Barrier(3, timeout=30)

    def call(client: ControlClient) -> str:
        meet.wait()
        if client.address == "b:1":
            raise RefusedError("not now")
        return client.address

    with ControlClients(Made()) as clients:
        found = clients.call_all(["a:1", "b:1", "c:1"], call)
    assert isinstance(found.pop("b:1"), RefusedError)
    assert found == {"a:1": "a:1", "c:1": "c:1"}


def test_a_client_is_kept_while_its_worker_is_listed() -> None:
    """Each worker has one client for all calls, until the worker is no longer listed."""
    made = Made()
    with ControlClients(made) as clients:
        for _ in range(2):
            clients.call_all(["a:1", "b:1"], lambda client: client.address)
        assert made.open == ["a:1", "b:1"]
        assert clients["b:1"] in made
        assert clients["c:1"].address == "c:1"
        clients.close_except(["c:1"])
        assert made.open == ["c:1"]
    assert made.open == []


def test_a_worker_out_of_reach_gets_a_new_channel() -> None:
    """After a failed call, the client opens a new channel, because the old one would wait to reconnect."""
    with ControlClient("localhost:1", 5) as client:
        for _ in range(2):
            with pytest.raises(UnreachableError):
                client.status()
            assert client._connection is None


def test_a_short_last_attempt_does_not_hide_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of wait_ready() has the reason of an earlier attempt, not the timeout of the last one."""
    texts = chain(["a:1: no connection: refused"], repeat("the worker at a:1: not all answers within 0.1 s"))

    def fail(*_: object) -> None:
        raise UnreachableError(next(texts))

    with ControlClient("a:1", 1) as client:
        monkeypatch.setattr(client, "_stream", fail)
        with pytest.raises(UnreachableError, match=r"not ready after 0.3 s: no connection: refused$"):
            client.wait_ready(0.3)
