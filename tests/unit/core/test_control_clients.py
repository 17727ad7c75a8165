"""One client for each worker, and calls to all of them at once."""

from __future__ import annotations

import pickle
import threading

from tuplewire.connection.control_client import ControlClient
from tuplewire.connection.control_clients import ControlClients
from tuplewire.errors import RefusedError, UnreachableError


class Made(list[ControlClient]):
    """The clients that were made, in turn; they connect to nothing."""

    def __call__(self, address: str) -> ControlClient:
        """Make one."""
        self.append(ControlClient(address, 1))
        return self[-1]

    @property
    def open(self) -> list[str]:
        """The addresses of the clients that are open."""
        return [each.address for each in self if not each._closed]


def test_each_is_asked_at_once_and_errors_are_results() -> None:
    """Calls run in parallel; an error is the result of its worker alone."""
    meet = threading.Barrier(3, timeout=30)

    def call(client: ControlClient) -> str:
        meet.wait()
        if client.address == "b:1":
            raise RefusedError("not now")
        return client.address

    with ControlClients(Made()) as clients:
        found = clients.each(["a:1", "b:1", "c:1"], call)
    assert isinstance(found.pop("b:1"), RefusedError)
    assert found == {"a:1": "a:1", "c:1": "c:1"}


def test_a_client_is_kept_while_its_worker_answers() -> None:
    """A worker that is out of reach gets a new client at the next call; one that refuses keeps its own."""

    def call(client: ControlClient) -> None:
        raise UnreachableError("away") if client.address == "a:1" else RefusedError("not now")

    made = Made()
    with ControlClients(made) as clients:
        clients.each(["a:1", "b:1"], call)
        assert made.open == ["b:1"]
        clients.each(["a:1", "b:1"], call)
        assert len(made) == 3
        assert clients["b:1"] in made
        assert clients["c:1"].address == "c:1"
        clients.keep(["c:1"])
        assert made.open == ["c:1"]
    assert made.open == []


def test_clients_travel_before_their_first_call() -> None:
    """Spark pickles a reader with its clients: threads begin with the first call."""
    clients = pickle.loads(pickle.dumps(ControlClients(ControlClient)))  # noqa: S301 - our own
    assert clients.each([], ControlClient.status) == {}
    clients.close()
