"""Workers, producers and consumers on separate hosts: link failures do not lose messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import permutations

import pytest
from campaigns.chaos.layout import CONSUMERS, PRODUCERS, WORKERS
from campaigns.chaos.workers import WorkerChaos
from campaigns.cluster import Cluster, is_clean
from deploy.namespaces import Hosts
from helpers import eventually

from tuplewire.connection.control_client import ControlClient
from tuplewire.processes.worker_processes import Endpoint
from tuplewire.wire import control_pb2

NEAR, FAR, OTHER = WORKERS
WAYS = tuple(permutations(WORKERS, 2))
RATE = 500.0
"""Rate of each producer, in messages per second."""
DETECTION_SECONDS = 4.0
"""The default keepalive plus its timeout: an unreachable peer is detected within this time."""
SLACK_SECONDS = 20.0
"""Additional time for a loaded machine."""
_WAIT_SECONDS = 60.0
_PROGRAMS = {each.name: "producers" for each in PRODUCERS} | {each.name: "consumers" for each in CONSUMERS}
_BESIDE_THEIR_WORKER = {each.name for each in (*PRODUCERS, *CONSUMERS) if not each.proxied}


@dataclass(frozen=True)
class Apart:
    """A topology with one host per worker, a fourth for its producers and a fifth for its consumers."""

    hosts: Hosts
    cluster: Cluster
    controls: dict[Endpoint, ControlClient] = field(default_factory=dict)

    def close(self) -> None:
        for each in self.controls.values():
            each.close()

    def control(self, worker: str) -> ControlClient:
        """Return a client of a worker's current process, over its Unix socket, which works across hosts."""
        endpoint = self.cluster.endpoints[worker]
        if endpoint not in self.controls:
            self.controls[endpoint] = ControlClient(endpoint.unix_address, _WAIT_SECONDS)
        return self.controls[endpoint]

    def peer(self, near: str, far: str) -> control_pb2.PeerStatus:
        """Return one worker's status of its connection to another worker."""
        peers = {each.address: each for each in self.control(near).status().peers}
        return peers[self.cluster.endpoints[far].address]

    def flow(self, *ways: tuple[str, str]) -> None:
        """Wait until 100 more messages were acknowledged on each of these ways between workers."""
        before = {way: self.peer(*way).ledger.acknowledged for way in ways}
        for way, acknowledged in before.items():
            goal = acknowledged + 100
            eventually(
                lambda: self.peer(*way).ledger.acknowledged >= goal,  # noqa: B023 - called immediately
                _WAIT_SECONDS,
                f"more messages from {' to '.join(way)}",
            )

    def notices(self, near: str, far: str) -> None:
        """Wait until a worker's connection to another is lost. Fails if detection takes too long."""
        what = f"{near} misses {far}"
        eventually(lambda: not self.peer(near, far).connected, DETECTION_SECONDS + SLACK_SECONDS, what)

    def reconnects(self) -> Mapping[tuple[str, str], int]:
        """Return the number of reconnects of each worker to each other worker."""
        return {way: self.peer(*way).reconnects for way in WAYS}


class OnHosts(WorkerChaos):
    """The processes, on hosts; a test injects the faults."""

    def connect(self, _: ExitStack) -> Callable[[str, str], str]:
        """Return addresses without a proxy."""

        def address(near: str, worker: str) -> str:
            endpoint = self.cluster.endpoints[worker]
            return endpoint.unix_address if near in _BESIDE_THEIR_WORKER else endpoint.address

        return address


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apart]:
    """Run the topology; in the end, check that all messages arrived once, in order, and balance."""
    chaos = OnHosts(1, 0.0, directory=tmp_path_factory.mktemp("hosts"), transport="grpc", rate=RATE)
    with ExitStack() as stack:
        hosts = stack.enter_context(Hosts([*WORKERS, "producers", "consumers"]))
        places = {**{name: name for name in WORKERS}, **_PROGRAMS}
        chaos.hosts = {name: hosts[place] for name, place in places.items()}
        stack.enter_context(chaos.opened())
        apart = Apart(hosts, chaos.cluster)
        stack.callback(apart.close)
        apart.flow(*WAYS)  # all are connected, so the leak check blames no test for their threads
        yield apart
        apart.flow(*WAYS)
        chaos.look()
    assert chaos.faults == []
    assert chaos.verdict.received == chaos.verdict.accepted > 0
    for ledger in (*chaos.workers.values(), *chaos.ledgers.values()):
        assert ledger is not None
        assert is_clean(ledger)


def test_a_host_that_is_cut_off_comes_back_without_loss(apart: Apart) -> None:
    """A link is down for longer than the keepalive: the others detect it, keep working, and resume."""
    before = apart.reconnects()
    with apart.hosts.cut(FAR):
        apart.notices(NEAR, FAR)
        apart.flow((NEAR, OTHER), (OTHER, NEAR))
    apart.flow(*WAYS)
    after = apart.reconnects()
    assert after[NEAR, OTHER] == before[NEAR, OTHER]
    assert after[OTHER, NEAR] == before[OTHER, NEAR]
    assert after[NEAR, FAR] > before[NEAR, FAR]


def test_a_black_hole_between_two_hosts_concerns_no_third(apart: Apart) -> None:
    """Every packet between two workers is dropped: both still reach the third worker, and then resume."""
    before = apart.reconnects()
    with apart.hosts.black_hole(NEAR, FAR):
        apart.notices(NEAR, FAR)
        apart.notices(FAR, NEAR)
        apart.flow((NEAR, OTHER), (OTHER, NEAR), (FAR, OTHER), (OTHER, FAR))
    apart.flow(*WAYS)
    after = apart.reconnects()
    assert {way for way in after if after[way] > before[way]} == {(NEAR, FAR), (FAR, NEAR)}


def test_connections_that_are_reset_are_made_again(apart: Apart) -> None:
    """Sessions resume after single resets and after a series of resets; the third worker is not affected."""
    before = apart.reconnects()
    for _ in range(3):
        apart.hosts.kill_connections(NEAR, FAR)
        apart.flow((NEAR, FAR))
    killed = apart.reconnects()
    with apart.hosts.resetting(NEAR, FAR):
        apart.notices(NEAR, FAR)
        apart.flow((NEAR, OTHER))
    apart.flow(*WAYS)
    after = apart.reconnects()
    assert killed[NEAR, FAR] >= before[NEAR, FAR] + 3
    assert after[NEAR, FAR] > killed[NEAR, FAR]
    assert {way for way in after if after[way] > before[way]} == {(NEAR, FAR), (FAR, NEAR)}
