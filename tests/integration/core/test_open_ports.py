"""By default, every process listens only on the loopback interface, according to the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import words
from helpers.leaks import children
from helpers.listening import listening_hosts

import tuplewire
from tuplewire.processes.worker_processes import WorkerProcesses
from tuplewire.settings.addresses import is_loopback, split_host_port
from tuplewire.settings.settings import settings_of
from tuplewire_service.config.worker_config import HOST_PORT, WorkerConfig
from tuplewire_topology.clusters.cluster import DistributedCluster

LOOPBACK = {"127.0.0.1"}
SECONDS = 60.0


def of_all_children() -> list[set[str]]:
    """Return the listening addresses of each child process."""
    return [listening_hosts(process) for process in children()]


def test_the_defaults_of_a_worker() -> None:
    """Each default listening address of a worker is on the loopback interface, or is empty."""
    config = WorkerConfig()
    known = settings_of(WorkerConfig)
    addresses = {name: getattr(config, name) for name in known if known[name].kind is HOST_PORT}
    assert addresses.keys() == {"listen", "admin", "listen_peers"}
    assert all(is_loopback(split_host_port(each)[0]) for each in addresses.values() if each)


@pytest.mark.parametrize("transport", ["grpc", "zmq"])
def test_workers_of_a_test(transport: str, tmp_path: Path) -> None:
    """Messages, control, metrics and the port for peers on another transport use the loopback interface."""
    with WorkerProcesses(2, "shut", directory=tmp_path, flags=[f"--transport={transport}"]):
        assert of_all_children() == [LOOPBACK, LOOPBACK]


def test_the_worker_of_a_program() -> None:
    """The worker of `tuplewire.local()` listens on the loopback interface."""
    with tuplewire.local("1"):
        assert of_all_children() == [LOOPBACK]


def test_the_processes_of_a_topology() -> None:
    """The executor processes of a topology listen on the loopback interface."""
    with DistributedCluster() as cluster:
        conf = {"topology.workers": 2}
        running = cluster.submit("words", conf, "helpers.words:topology", collect=["count"])
        assert of_all_children() == [LOOPBACK, LOOPBACK]
        assert len(running.finish(SECONDS).tuples("count")) == len(words.EXPECTED)


def test_an_open_address_would_be_seen(tmp_path: Path) -> None:
    """The check finds an address that is open to the network."""
    flags = ["--listen=[::]:0", "--allow-plaintext"]
    with WorkerProcesses(1, "wide", directory=tmp_path, flags=flags):
        assert of_all_children() == [{"::", *LOOPBACK}]
