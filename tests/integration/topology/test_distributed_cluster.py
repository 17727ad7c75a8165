"""DistributedCluster: workers in separate processes, from launch to clean shutdown."""

from __future__ import annotations

import os
import pwd
import signal
import socket
import stat
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers import words
from helpers.admin import get, samples
from helpers.ports import free_ports
from helpers.tools import missing, ran, started
from helpers.words import EXPECTED, LINES, topology_of

from tuplewire.errors import ClosedError, ConfigError, TopologyError
from tuplewire.processes.child import LaunchError
from tuplewire_service.testing import eventually
from tuplewire_topology.clusters.capture import CapturedTuples
from tuplewire_topology.clusters.cluster import DistributedCluster, cluster_of
from tuplewire_topology.clusters.distributed_topology import DistributedTopology
from tuplewire_topology.clusters.launching import load_topology, save_topology
from tuplewire_topology.running.statistics import ProcessFailedError

SECONDS = 120.0
TESTS = str(Path(words.__file__).parents[1])
PATH = os.pathsep.join([TESTS, *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
CONF: dict[str, Any] = {"storm.cluster.mode": "distributed", "topology.workers": 2}


@contextmanager
def running(topology: Any = "helpers.words:topology", **conf: Any) -> Iterator[DistributedTopology]:
    """Run a topology in processes, and check that all of them have exited after the block."""
    with DistributedCluster() as cluster:
        topology_running = cluster.submit("words", CONF | conf, topology, collect=["count"])
        yield topology_running
        processes = process_ids(topology_running)
    for process in processes:
        assert not Path(f"/proc/{process}").exists()


def process_ids(topology: DistributedTopology) -> list[int]:
    """Return the process ids of the workers' latest processes."""
    return [worker.child.process.pid for worker in topology._workers]


def counts_of(captured: CapturedTuples) -> dict[str, int]:
    """Return the emitted counts."""
    return {word: count for word, count, _ in captured.tuples("count")}


@pytest.mark.parametrize("mode", ["local", "distributed"])
def test_the_mode_decides_where_workers_run(mode: str) -> None:
    """A setting selects workers in this process or in separate processes; the results are equal."""
    conf = {**CONF, "storm.cluster.mode": mode}
    with cluster_of(conf) as cluster:
        submitted = cluster.submit("words", conf, words.topology(), collect=["count"])
        captured = submitted.finish(SECONDS)
    assert counts_of(captured) == EXPECTED
    processes = {process for _, _, process in captured.tuples("count")}
    assert (processes == {os.getpid()}) == (mode == "local")
    assert len(processes) == (1 if mode == "local" else 2)
    for change in (submitted.activate, submitted.deactivate, partial(submitted.move_task, 1, 0)):
        with pytest.raises(ClosedError, match="topology 'words' is closed"):
            change()


def test_an_error_comes_with_its_traceback() -> None:
    """A bolt's error is raised here, with its location in the user's code."""
    with (
        running(topology_of([*LINES, words.POISON])) as topology,
        pytest.raises(ProcessFailedError, match=r"'split': ValueError: an unbearable word") as raised,
    ):
        topology.finish(SECONDS)
    assert "in execute" in raised.value.__notes__[0]
    assert "words.py" in raised.value.__notes__[0]
    assert topology.log_dir


def test_a_result_that_cannot_leave_its_process() -> None:
    """A collected value that cannot be serialized raises an error that names the component."""
    with (
        running(topology_of([words.STRANGE])) as topology,
        pytest.raises(ProcessFailedError, match="a tuple of 'count', which is collected, cannot leave"),
    ):
        topology.finish(SECONDS)


def test_results_come_in_parts() -> None:
    """Results larger than one part arrive complete."""
    long = [f"{number:>04}{'x' * 300_000}" for number in range(12)]
    with running(topology_of(long)) as topology:
        captured = topology.finish(SECONDS)
    assert sorted(word for word, _, _ in captured.tuples("count")) == long


def test_a_process_that_dies_fails_the_topology() -> None:
    """Without restarts, a killed process raises an error with its name and its last log lines."""
    with running(topology_of(LINES * 1000)) as topology:
        os.kill(process_ids(topology)[1], signal.SIGKILL)
        with pytest.raises(LaunchError, match=r"words-worker-1 ended with code -9\nthe last lines of"):
            topology.wait(SECONDS)


@pytest.mark.parametrize(
    ("conf", "problem"),
    [
        ({"tuplewire.session.max_block_seconds": "1"}, "max_block_seconds must be a time in seconds"),
        ({"tuplewire.transport.receive_bytes": 0}, "receive_bytes must be a number of bytes from 1"),
        ({"tuplewire.grpc.channel_factory": "mine"}, "unknown setting 'tuplewire.grpc.channel_factory'"),
        ({"supervisor.slots.ports": [0]}, r"supervisor\.slots\.ports names 1 port"),
        ({"storm.messaging.transport": "local"}, "connects workers of one process only"),
        ({"supervisor.run.worker.as.user": True, "topology.submitter.user": "no-such-user"}, "no-such-user"),
    ],
)
def test_wrong_settings_start_no_process(conf: dict[str, Any], problem: str) -> None:
    """submit() raises an error for a setting that cannot work, before any process starts."""
    with pytest.raises(ConfigError, match=problem):
        DistributedCluster().submit("words", {**CONF, **conf}, words.topology())


def test_a_log_directory_that_cannot_be_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the log directory cannot be created, the temporary directory is removed."""
    temporary, file = tmp_path / "temporary", tmp_path / "file"
    temporary.mkdir()
    file.touch()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    conf = {**CONF, "storm.log.dir": str(file / "logs")}
    with pytest.raises(NotADirectoryError):
        DistributedCluster().submit("words", conf, words.topology())
    assert not list(temporary.iterdir())


@pytest.mark.parametrize("transport", ["grpc", "zmq"])
def test_sessions_between_processes_have_the_topologys_settings(transport: str) -> None:
    """Sessions between processes use the topology's settings: a higher limit allows larger tuples."""
    long = [f"{number}{'x' * (3 << 20)}" for number in range(4)]
    limits = {
        "storm.messaging.transport": transport,
        "tuplewire.session.max_message_bytes": 8 << 20,
        "tuplewire.session.max_block_seconds": 30,
    }
    with running(topology_of(long), **limits) as topology:
        topology.wait(SECONDS)
        (counted,) = (
            sum(each.counts.executed for each in topology.status().executors if each.component == "count"),
        )
    assert counted == len(long)


def test_options_environment_ports_and_logs_of_workers(tmp_path: Path) -> None:
    """Workers get options, with placeholders replaced, and variables, ports in order, and a log each."""
    ports = free_ports(2)
    conf: dict[str, Any] = {
        "worker.childopts": "-X importtime=0 -X tuplewire=%WORKER-ID%",
        "topology.environment": {"GIVEN": "this"},
        "supervisor.slots.ports": ports,
        "storm.log.dir": str(tmp_path),
    }
    with running(**conf) as topology:
        for number, process in enumerate(process_ids(topology)):
            assert b"GIVEN=this" in Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
            command = Path(f"/proc/{process}/cmdline").read_bytes().decode().split("\0")
            assert f"tuplewire=words-worker-{number}" in command
        for port in ports:
            socket.create_connection(("127.0.0.1", port), timeout=10).close()
        assert topology.finish(SECONDS).tuples("count")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["words-worker-0.log", "words-worker-1.log"]


def test_processes_end_with_their_parent(tmp_path: Path) -> None:
    """If their parent process is killed, the worker processes exit."""
    program = (
        "import sys\n"
        "from tuplewire_topology.clusters.cluster import DistributedCluster\n"
        f"running = DistributedCluster().submit('words', {CONF!r}, 'helpers.words:topology')\n"
        "print(*(worker.child.process.pid for worker in running._workers), flush=True)\n"
        "sys.stdin.read()\n"
    )
    environment = {**os.environ, "PYTHONPATH": PATH, "TMPDIR": str(tmp_path)}
    with started(sys.executable, "-c", program, stdin=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        processes = [int(word) for word in parent.stdout.readline().split()]
        assert len(processes) == 2
        parent.kill()
        parent.communicate()
    eventually(lambda: not any(Path(f"/proc/{process}").exists() for process in processes), 60)


AS_NOBODY = """
import os
from helpers import words
from tuplewire_topology.clusters.cluster import DistributedCluster
conf = {"topology.workers": 2, "supervisor.run.worker.as.user": True, "topology.submitter.user": USER}
with DistributedCluster() as cluster:
    running = cluster.submit("words", conf, words.topology(), collect=["count"])
    children = [worker.child for worker in running._workers]
    users = {os.stat(f"/proc/{child.process.pid}").st_uid for child in children}
    counts = {word: count for word, count, _ in running.finish().tuples("count")}
    print(users, counts == words.EXPECTED)
"""


def run_by_anybody(program: str, user: str | None) -> subprocess.CompletedProcess[str]:
    """Run a program with an interpreter that every user may run; skip the test if there is none."""
    system = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    for interpreter in (sys.executable, system):
        with suppress(OSError):
            subprocess.run([interpreter, "-c", ""], user="nobody", check=True)
            break
    else:
        missing(f"no interpreter here may be run by another user; Debian's package python3 has {system}")
    # This interpreter's packages, without its standard library: its compiled modules fit no other build.
    standard = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
    packages = [
        path
        for path in sys.path
        if path.endswith("site-packages") or not (path.startswith(standard) or path.endswith(".zip"))
    ]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([PATH, *packages])}
    return ran(interpreter, "-c", program, env=variables, user=user)


def require_root() -> None:
    """Skip the test unless it runs as root."""
    if os.geteuid() != 0:
        missing("only root may start processes of other users; run the tests as root")


def test_workers_run_as_another_user() -> None:
    """With permission, the worker processes run as another user, and the topology reaches them."""
    require_root()
    ended = run_by_anybody(AS_NOBODY.replace("USER", "'nobody'"), None)
    assert ended.stdout == f"{{{pwd.getpwnam('nobody').pw_uid}}} True\n", ended.stderr


def test_another_user_where_that_is_not_permitted() -> None:
    """Without root privileges, running as another user raises an error with advice."""
    require_root()
    ended = run_by_anybody(AS_NOBODY.replace("USER", "'root'"), "nobody")
    assert "cannot run as root: only root may start processes of other users" in ended.stderr


def test_a_saved_topology_is_private(tmp_path: Path) -> None:
    """Only the owner can read a saved topology, and a file that others can write is refused."""
    path = tmp_path / "topology.pickle"
    assert save_topology(words.topology(), path) == str(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_topology(str(path)).components == words.topology().components
    path.chmod(0o620)
    with pytest.raises(ConfigError, match="chmod 600"):
        load_topology(str(path))


@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        ("words", "names no topology"),
        ("no.such.module:topology", "cannot load the topology"),
        ("helpers.words:nothing", "has no attribute 'nothing'"),
        ("helpers.words:LINES", "gives list, not a Topology"),
        ("/no/such.pickle", "cannot read the topology in /no/such.pickle"),
    ],
)
def test_wrong_references(reference: str, problem: str) -> None:
    """A reference that names no topology raises an error with the step that failed."""
    with pytest.raises(ConfigError, match=problem):
        load_topology(reference)


def test_a_topology_that_does_not_travel(tmp_path: Path) -> None:
    """A spout with an attribute that cannot be pickled raises an error with advice."""
    topology = words.topology()
    topology.components["lines"].prototype.lock = threading.Lock()
    with pytest.raises(TopologyError, match=r"create in open\(\) or prepare\(\)"):
        save_topology(topology, tmp_path / "topology.pickle")


NOTEBOOK = """
import sys
from tuplewire.errors import TopologyError
from tuplewire_topology import BasicBolt, Spout, TopologyBuilder
from tuplewire_topology.clusters.cluster import DistributedCluster

SUFFIX = "!"

def louder(word):
    return word.upper() + SUFFIX

class Words(Spout):
    outputs = ("word",)

    def __init__(self, words):
        self.left = words

    def next_tuple(self):
        self.collector.emit([self.left.pop()])

    @property
    def exhausted(self):
        return not self.left

class Shout(BasicBolt):
    outputs = ("loud",)

    def execute(self, message, collector):
        collector.emit([louder(message["word"])])

builder = TopologyBuilder()
builder.set_spout("words", Words(["to", "be"]))
builder.set_bolt("shout", Shout(), 2).shuffle_grouping("words")
for missing in sys.argv[1:]:
    sys.modules[missing] = None
with DistributedCluster() as cluster:
    try:
        topology = builder.create_topology()
        running = cluster.submit("loud", {"topology.workers": 2}, topology, collect=["shout"])
        print(sorted(running.finish(100).tuples("shout")))
    except TopologyError as error:
        print(error)
"""


@pytest.mark.parametrize(
    ("missing", "printed"),
    [([], "[('BE!',), ('TO!',)]"), (["cloudpickle", "pyspark"], "pip install 'tuplewire[notebook]'")],
)
def test_a_notebooks_components(missing: list[str], printed: str) -> None:
    """Components of a program without a file run in other processes, or an error recommends cloudpickle."""
    assert printed in ran(sys.executable, "-", *missing, input=NOTEBOOK, check=True).stdout


def test_a_stuck_executor_of_another_process_is_named(tmp_path: Path) -> None:
    """Heartbeats, readiness and metrics name an executor that hangs in user code, until it continues."""
    gate = tmp_path / "gate"
    conf = {"mine.gate": str(gate), "worker.heartbeat.frequency.secs": 0.05, "nimbus.task.timeout.secs": 0.5}
    with running(topology_of([words.SLOW]), **conf) as topology:
        probes = [url.replace("/metrics", "/readyz") for url in topology.metrics_urls]
        (stuck,) = eventually(lambda: [each for each in topology.heartbeats() if each.stuck], SECONDS)
        assert (stuck.component, stuck.activity) == ("split", "execute")
        assert sorted(status for status, _ in map(get, probes)) == [200, 503]
        assert "of 'split' has been in execute() for" in "".join(text for _, text in map(get, probes))
        read = [sample for url in topology.metrics_urls for sample in samples(url).items()]
        for name, least, most in (("executor_stuck", 1, 1), ("executor_call_seconds", 0.5, SECONDS)):
            shown = sum(
                value for each, value in read if each.startswith(f'tuplewire_{name}{{component="split"')
            )
            assert least <= shown <= most
        gate.touch()
        eventually(lambda: not any(each.stuck for each in topology.heartbeats()), SECONDS)
        eventually(lambda: {status for status, _ in map(get, probes)} == {200}, SECONDS)
        assert counts_of(topology.finish(SECONDS)) == {words.SLOW: 1}
