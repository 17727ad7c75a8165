"""Each fault on purpose, between real workers on each transport with streams: by method, peer and rate."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from helpers import eventually
from helpers.topology import TOPOLOGY, Pair, collect, metric, numbers, pair_of_workers

from tuplewire import Client
from tuplewire.connection.control_client import ControlClient

SECONDS = 60.0
ROUNDS = 50
KINDS = {
    "lost": "lose=1",
    "doubled": "double=1",
    "cut": "cut=1",
    "delayed": "delay=0.01",
    "slowed": "slow=100000",
}
BREAKS = {"lost", "cut"}
NEAR = "worker-0"


@pytest.fixture(scope="module", params=["grpc", "zmq"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Run two workers that allow faults."""
    with pair_of_workers(f"--transport={request.param}", "--allow-faults") as pair:
        yield pair


def counts(pair: Pair) -> dict[str, float]:
    """Return how many messages the far worker has done each thing to."""
    return {kind: metric(pair.far, f'tuplewire_faults_total{{kind="{kind}"}}') for kind in KINDS}


class Passage:
    """A program at the near worker, another one at the far worker, and the consumer of a task there."""

    def __init__(self, pair: Pair) -> None:
        self.task = pair.far_task()
        self.sent = 0
        self.got: list[int] = []
        self._through = Client(pair.near.address, topology=TOPOLOGY)
        self._direct = Client(pair.far.address, topology=TOPOLOGY, client_id="shop-1")
        self._consumer = Client(pair.far.address, topology=TOPOLOGY)
        self._messages = self._consumer.recv([self.task], timeout=SECONDS)

    def send(self, *, direct: bool = False, padding: int = 0) -> None:
        """Send a message, and wait until it is there."""
        sender = self._direct if direct else self._through
        payload = b"%d" % self.sent
        sender.send(self.task, payload.rjust(padding))
        self.sent += 1
        self.got += numbers(collect(self._messages, 1))

    def close(self) -> None:
        """See that all came once and in order."""
        assert self.got == list(range(self.sent))
        self._messages.close()
        for client in (self._through, self._direct, self._consumer):
            client.close()


@pytest.fixture
def passage(pair: Pair) -> Iterator[Passage]:
    """Give a way through both workers, and leave it without faults."""
    made = Passage(pair)
    made.send()
    made.send(direct=True)
    yield made
    with ControlClient(pair.far.address) as control:
        control.set_faults()
    made.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_by_method_peer_and_rate(pair: Pair, passage: Passage, kind: str) -> None:
    """A rule is for its method, its peers, and its share of their messages; all come once all the same."""
    word, before = KINDS[kind], counts(pair)
    reconnects = f'tuplewire_reconnects_total{{peer="{pair.far.worker_id}"}}'
    connected = metric(pair.near, reconnects)
    with ControlClient(pair.far.address) as control:
        control.set_faults(f"{word} method=Recv peer={NEAR}; {word} method=Send peer=nobody", 600)
        passage.send()
        passage.send(direct=True)
        assert counts(pair) == before

        # Of the program at the far worker: the other worker does not notice.
        control.set_faults(f"{word} rate=0.1 method=Send peer=shop*", 600)
        while counts(pair)[kind] == before[kind]:
            passage.send()
            passage.send(direct=True)
        assert metric(pair.near, reconnects) == connected

        before, sent = counts(pair), passage.sent
        control.set_faults(f"{word} rate=0.05 method=S*d peer={NEAR}", 600)
        while passage.sent < sent + ROUNDS or counts(pair)[kind] == before[kind]:
            passage.send()
        control.set_faults()
        after = counts(pair)
        assert after[kind] - before[kind] < passage.sent - sent
        assert {each: after[each] for each in KINDS if each != kind} == {
            each: before[each] for each in KINDS if each != kind
        }
        if kind in BREAKS:
            eventually(lambda: metric(pair.near, reconnects) > connected, SECONDS)


@pytest.mark.parametrize("rule", ["delay=0.5", "slow=200000"])
def test_what_waits_takes_its_time(pair: Pair, passage: Passage, rule: str) -> None:
    """100,000 bytes at so many a second, or any message, take half a second between the workers."""
    with ControlClient(pair.far.address) as control:
        control.set_faults(f"{rule} method=Send peer={NEAR}", 600)
        began = time.monotonic()
        passage.send(padding=100_000)
        assert time.monotonic() - began > 0.45
        control.set_faults()
