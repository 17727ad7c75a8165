"""What a poller is told of what has arrived."""

from __future__ import annotations

from typing import Any, cast

from tuplewire_service.messaging.base import IServerConnection, ReceiveCount, ServerStatistics
from tuplewire_service.messaging.reception import ReceiveMetric


class Server:
    """Has received so much."""

    def __init__(self) -> None:
        self.received: list[ReceiveCount] = []

    def statistics(self) -> ServerStatistics:
        """Return it."""
        return ServerStatistics(self.received, 0)


def test_a_source_that_comes_back_begins_anew() -> None:
    """A server that has forgotten a worker counts it from 0: nobody is told less than nothing."""
    server: Any = Server()
    metric = ReceiveMetric(cast("IServerConnection", server))
    server.received = [ReceiveCount("w", 9, 3, 90)]
    assert metric.get_value_and_reset() == {"w": ReceiveCount("w", 9, 3, 90)}
    server.received = [ReceiveCount("w", 2, 1, 20)]
    assert metric.get_value_and_reset() == {"w": ReceiveCount("w", 2, 1, 20)}


def test_counts_since_the_last_poll() -> None:
    """Each poller gets the counts since its own last poll. Source: Storm's `IMetric.getValueAndReset`."""
    server: Any = Server()
    polled, other = (ReceiveMetric(cast("IServerConnection", server)) for _ in range(2))
    assert polled.get_value_and_reset() == {}
    for messages in (3, 8):
        server.received = [ReceiveCount("client", messages, messages, 10 * messages)]
        value = polled.get_value_and_reset()["client"]
    assert value == ReceiveCount("client", 5, 5, 50)
    assert polled.get_value_and_reset() == {}
    assert other.get_value_and_reset()["client"].messages == 8
