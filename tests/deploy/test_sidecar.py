"""Two executors' pods, as local processes started according to the template and the ConfigMap."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from helpers import eventually
from helpers.manifests import PROFILES, cluster, container, executor, the, variables, write_files
from helpers.pod_here import PodHere, pod_here
from helpers.secured import Authority, secret_file
from helpers.tools import ran
from helpers.worker_process import environment_without_ours

from tuplewire.connection.control_client import ControlClient
from tuplewire.identity.credentials import Credentials
from tuplewire_service.control.control_messages import assignment_to_wire
from tuplewire_service.worker.assignment import AssignedWorker, Assignment

SEND = """
import tuplewire
with tuplewire.Client(source=1) as client:
    client.send(2, b"from the other executor")
    client.flush(30)
"""
RECEIVE = """
import tuplewire
with tuplewire.Client() as client, client.recv([2], timeout=30) as batches:
    print([message.message for message in next(batches)])
    batches.acknowledge()
"""
STATUS = """
from tuplewire.connection.control_client import ControlClient
with ControlClient() as control:
    control.status()
"""
CONTROL = """
from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import PermissionDeniedError
from tuplewire.wire.control_pb2 import Assignment
with ControlClient() as control:
    control.status()
    for call in (control.drain, lambda: control.update_assignment(Assignment(version=9, topology="default"))):
        try:
            call()
        except PermissionDeniedError as error:
            print(error)
"""
STAGE = """
import base64, pickle
import pyarrow as pa
from pyspark import TaskContext
from tuplewire.spark.options import sink_options
from tuplewire.spark.writer import TuplewireStreamWriter
context = TaskContext()
context._partitionId, context._taskAttemptId = 0, 1
context._localProperties = {"sql.streaming.queryId": "q", "streaming.sql.batchId": "0"}
TaskContext._setTaskContext(context)
writer = TuplewireStreamWriter(sink_options({"address": "ADDRESS", "timeout": "20"}))
tasks, messages = pa.array([1, 2], pa.int32()), pa.array(["row", "other"])
rows = pa.RecordBatch.from_pydict({"task": tasks, "message": messages})
print(base64.b64encode(pickle.dumps((writer, writer.write(iter([rows]))))).decode())
"""
COMMIT = """
import base64, pickle
writer, written = pickle.loads(base64.b64decode("WRITTEN"))
writer.commit([written], 0)
"""
SECURE = "prod"


class Pods(NamedTuple):
    """Two pods with tasks 1 and 2; `before` has their probes' status codes before the first assignment."""

    near: PodHere
    far: PodHere
    before: list[tuple[int, int]]
    driver: dict[str, str]


@pytest.fixture(scope="module", params=["dev", SECURE])
def profile(request: pytest.FixtureRequest) -> str:
    """Return a profile's name: one without certificates, and one with."""
    name: str = request.param
    assert name in PROFILES
    return name


@pytest.fixture(scope="module")
def pods(profile: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pods]:
    """Run two pods, and assign their tasks, as a driver does."""
    folder = tmp_path_factory.mktemp(profile)
    secrets = _secrets(folder / "secrets")
    if profile == SECURE:
        name = "tuplewire-permissions"
        secrets[name] = write_files(profile, name, folder / name)
    config = the(cluster(profile), "ConfigMap", "tuplewire-config")["data"]["worker.toml"]
    template = executor(profile)
    with ExitStack() as stack:
        near, far = (
            stack.enter_context(pod_here(template, name, folder / name, config, secrets))
            for name in ("near", "far")
        )
        before = [(pod.probe("startupProbe"), pod.probe("readinessProbe")) for pod in (near, far)]
        assignment = Assignment(
            1,
            "default",
            (AssignedWorker("near", near.address, (1,)), AssignedWorker("far", far.address, (2,))),
        )
        driver = _driver_variables(secrets) if profile == SECURE else {"TUPLEWIRE_ALLOW_PLAINTEXT": "true"}
        for pod in (near, far):
            with ControlClient(pod.address, credentials=Credentials.from_environment(driver)) as control:
                control.update_assignment(assignment_to_wire(assignment))
        yield Pods(near, far, before, driver if profile == SECURE else {})


def _secrets(folder: Path) -> dict[str, Path]:
    """Create the Secrets that an operator creates in the cluster; the certificates contain no addresses."""
    authority = Authority()
    program, driver = "programs 0123456789abcdef0123456789abcdef\n", "programs/driver fedcba9876543210\n"
    for name, content in (("token", program), ("driver", driver), ("worker", driver + program)):
        (folder / name).mkdir(parents=True)
        secret_file(folder / name / "token", content)
    return {
        "tuplewire-tls": authority.issue("worker.tuplewire").write(folder / "tls"),
        "tuplewire-client-tls": authority.issue("client.tuplewire").write(folder / "client"),
        "tuplewire-token": folder / "token",
        "tuplewire-driver-token": folder / "driver",
        "tuplewire-worker-tokens": folder / "worker",
    }


def _driver_variables(secrets: dict[str, Path]) -> dict[str, str]:
    pod = executor(SECURE, "driver")
    program = container(pod, "spark-kubernetes-driver")
    found = variables(program)
    for mount in program["volumeMounts"]:
        if mount["name"] in secrets:
            folder = str(secrets[mount["name"]])
            found = {name: value.replace(mount["mountPath"], folder) for name, value in found.items()}
    del found["TUPLEWIRE_ADDRESS"]  # this program does not run in a pod
    return found


def test_the_executor_need_not_wait_for_an_assignment(pods: Pods) -> None:
    """The startup probe succeeds immediately, also with TLS; readiness requires the assignment."""
    assert pods.before == [(200, 503), (200, 503)]
    for pod in (pods.near, pods.far):
        eventually(lambda pod=pod: pod.probe("readinessProbe") == 200, 30, "ready")  # type: ignore[misc]
        assert pod.probe("livenessProbe") == 200


def test_executors_reach_each_other(pods: Pods) -> None:
    """A program of one executor can send to a program of the other with its own environment."""
    sent = pods.near.run(SEND)
    assert sent.returncode == 0, sent.stderr
    received = pods.far.run(RECEIVE)
    assert received.stdout.strip() == "[b'from the other executor']", received.stderr


@pytest.mark.parametrize("profile", [SECURE], indirect=True, scope="module")
def test_an_executor_may_not_control(pods: Pods) -> None:
    """The executor's token does not let user code drain a worker or reassign tasks, locally or remotely."""
    for address in ("", repr(pods.far.address)):
        done = pods.near.run(CONTROL.replace("ControlClient()", f"ControlClient({address})"))
        assert done.returncode == 0, done.stderr
        drain, assign = done.stdout.splitlines()
        assert "may not call Drain" in drain
        assert "may not call UpdateAssignment" in assign


def test_a_sink_needs_both_tokens_and_no_more(profile: str, pods: Pods) -> None:
    """Executors stage rows with their token, and the driver publishes them with its own, at both workers."""
    written = pods.near.run(STAGE.replace("ADDRESS", pods.near.address))
    assert written.returncode == 0, written.stderr
    driver = {**environment_without_ours(), **pods.driver}
    done = ran(sys.executable, "-c", COMMIT.replace("WRITTEN", written.stdout.strip()), env=driver)
    assert done.returncode == 0, done.stderr
    for pod, task, payload in ((pods.near, 1, "row"), (pods.far, 2, "other")):
        received = pod.run(RECEIVE.replace("[2]", f"[{task}]"))
        assert received.stdout.strip() == f"[b'{payload}']", (profile, received.stderr)


def test_the_socket_alone_is_not_enough(profile: str, pods: Pods) -> None:
    """If tokens are required, a program without a token is rejected, although it can open the socket."""
    done = pods.near.run(STATUS, "TUPLEWIRE_TOKEN_FILE")
    assert ("UnauthenticatedError" in done.stderr) == (profile == SECURE)
    assert (done.returncode == 0) == (profile != SECURE)


def test_an_operator_asks_within_the_pod(profile: str, pods: Pods) -> None:
    """The commands of the guide, run by `kubectl exec`, reach the worker by its socket and token."""
    token = ["--token-file", "/etc/tuplewire/token/token"] if profile == SECURE else []
    done = pods.near.ask("status", "--address", "unix:///run/tuplewire/worker.sock", *token)
    assert done.returncode == 0, done.stderr
    assert "ready" in done.stdout


def test_sigterm_ends_it_in_time(pods: Pods) -> None:
    """Without pending messages, the worker drains and exits with 0, well within the grace period."""
    assert [pods.near.end(), pods.far.end()] == [0, 0]
