"""What every transport must tell besides messages: counts, loads, and backpressure."""

from __future__ import annotations

from tuplewire.message import TaskMessageBatch
from tuplewire_service.messaging.reception import ReceiveMetric
from tuplewire_service.testing.scenery import (
    HOST,
    TOPOLOGY,
    Recorder,
    Scenery,
    eventually,
    is_ready,
    is_settled,
)


class NewsConformance(Scenery):
    """Counts on both sides, and what a server tells its clients."""

    def test_load_reaches_the_clients(self) -> None:
        """Loads come to every client, also to one that connects later, and are no messages."""
        recorder = Recorder()
        with self.context() as context:
            server = context.bind(TOPOLOGY, 0, recorder)
            client = context.connect(TOPOLOGY, HOST, server.port)
            eventually(lambda: is_ready(client))
            assert client.get_load([1, 2]) == {}
            for load in (0.5, 0.75, 0.25):  # what was last said of a task counts
                server.send_load_metrics({1: load, 2: 1.0})
            eventually(lambda: client.get_load([1, 2, 3]) == {1: 0.25, 2: 1.0})
            late = context.connect(TOPOLOGY, HOST, server.port)
            eventually(lambda: late.get_load([2]) == {2: 1.0})
            assert recorder.seen() == []

    def test_backpressure_status_reaches_the_clients(self) -> None:
        """Congested tasks are known to the client until they are relieved."""
        with self.pair(Recorder()) as (server, client):
            eventually(lambda: is_ready(client))
            server.send_backpressure_status("w", [1, 2], [])
            eventually(lambda: client.congested == {1, 2})
            server.send_backpressure_status("w", [], [1])
            eventually(lambda: client.congested == {2})

    def test_a_client_learns_the_assignment_version_on_connecting(self) -> None:
        """A client that connects hears which assignment the receiver has then."""

        class Assigned(Recorder):
            """Routes by an assignment."""

            assignment_version = 7

        with self.pair(Assigned()) as (_, client):
            eventually(lambda: client.statistics().receiver_assignment_version == 7)

    def test_counts_are_by_source(self) -> None:
        """Both sides count; each worker is a source of its own, and all programs are one, named client."""
        with self.context() as program, self.context("w1") as one, self.context("w2") as other:
            server = program.bind(TOPOLOGY, 0, Recorder())
            contexts = (program, program, one, other)
            clients = [context.connect(TOPOLOGY, HOST, server.port) for context in contexts]
            for count, client in enumerate(clients, start=1):
                client.send(TaskMessageBatch.from_columns(1, [b"12"] * count))
                eventually(is_settled(client))
                assert client.statistics().sent_messages == count
            received = {each.source: (each.messages, each.bytes) for each in server.statistics().received}
            assert received == {"client": (3, 6), "w1": (3, 6), "w2": (4, 8)}

    def test_counts_since_the_last_look(self) -> None:
        """Who polls gets what came since, by source; pollers and statistics take nothing from each other.

        Source: Storm's `IMetric.getValueAndReset`.
        """
        with self.pair(Recorder()) as (server, client):
            polled, other = ReceiveMetric(server), ReceiveMetric(server)
            assert polled.get_value_and_reset() == {}
            for count in (3, 5):
                client.send(TaskMessageBatch.from_columns(1, [b"x"] * count))
                eventually(is_settled(client))
                (value,) = polled.get_value_and_reset().values()
                assert (value.source, value.messages, value.bytes) == ("client", count, count)
            assert value.batches >= 1
            assert polled.get_value_and_reset() == {}
            assert other.get_value_and_reset()["client"].messages == 8
            assert server.statistics().received[0].messages == 8

    def test_news_that_is_not_reported_again_expires(self) -> None:
        """What a receiver said once, of loads or of congestion, is not believed for ever."""
        with self.pair(Recorder(), load_expires_seconds=0.5) as (server, client):
            eventually(lambda: is_ready(client))
            server.send_backpressure_status("w", [1], [])
            eventually(lambda: client.congested == {1})
            eventually(lambda: client.congested == frozenset())
            server.send_load_metrics({1: 0.25})
            eventually(lambda: client.get_load([1]) == {1: 0.25})
            eventually(lambda: client.get_load([1]) == {})
            server.send_load_metrics({1: 0.5})
            eventually(lambda: client.get_load([1]) == {1: 0.5})

    def test_load_goes_both_ways(self) -> None:
        """Two workers, each with a server and a client of the other's, know each other's load."""
        with self.context() as one, self.context() as other:
            servers = [each.bind(TOPOLOGY, 0, Recorder()) for each in (one, other)]
            clients = [
                each.connect(TOPOLOGY, HOST, server.port)
                for each, server in zip((other, one), servers, strict=True)
            ]
            for client in clients:
                eventually(lambda client=client: is_ready(client))  # type: ignore[misc]
            servers[0].send_load_metrics({1: 0.5})
            servers[1].send_load_metrics({2: 0.75})
            eventually(lambda: [client.get_load([1, 2]) for client in clients] == [{1: 0.5}, {2: 0.75}])
