"""The pods that Spark builds from our templates, requested from a stub of the Kubernetes API.

Spark's pod builder requests an executor, and the real spark-submit a driver, in cluster mode. A whole
program runs without a cluster, too: the containers of its executor's pod are processes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyspark
import pytest
import yaml
from helpers import eventually
from helpers.drivers import DRIVER_SECONDS, as_program
from helpers.manifests import (
    VERSIONS,
    Manifest,
    check_pod,
    check_restricted,
    check_sidecar,
    cluster,
    container,
    executor,
    mounted,
    selects,
    the,
    validate,
    variables,
)
from helpers.pod_here import SPARK, PodHere, pod_here
from helpers.served import JsonHandler, served
from helpers.tools import ran
from helpers.topology import collect

from tuplewire import Client, TaskMessageBatch
from tuplewire.identity.credentials import Credentials
from tuplewire.identity.files import write_atomically
from tuplewire.spark import kubernetes, membership
from tuplewire_demos.local_session import create_java_home, find_java, local_session

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
SUBMITTED = "mtls"
"""The profile of the submitted program, with certificates."""
DRIVER = "spark-kubernetes-driver"
IMAGE = "apache/spark:4.3.0"
MESSAGES = 100
_SECONDS = 240.0


_KINDS = {"pods": "Pod", "configmaps": "ConfigMap"}


class KubernetesApi(ThreadingHTTPServer):
    """Accepts every resource, and reports it as running without starting anything. Run it by served()."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.created: list[Manifest] = []

    @property
    def master(self) -> str:
        """The address of this server, as a Spark master."""
        return f"k8s://http://127.0.0.1:{self.server_port}"

    def of_kind(self, kind: str) -> list[Manifest]:
        """Return the created resources of one kind."""
        return [each for each in self.created if each["kind"] == kind]


class _Handler(JsonHandler, BaseHTTPRequestHandler):
    server: KubernetesApi

    def do_GET(self) -> None:
        kind = _KINDS.get(self._resource, "Status")
        version = {"apiVersion": "v1", "kind": f"{kind}List", "metadata": {"resourceVersion": "1"}}
        items = [{**each, "status": {"phase": "Running"}} for each in self.server.of_kind(kind)]
        self.answer(HTTPStatus.OK, {**version, "items": items})

    def do_POST(self) -> None:
        asked = json.loads(self.body())
        self.server.created.append(asked)
        # The answer is a copy: the recorded resource stays unchanged.
        metadata = {**asked["metadata"], "uid": str(len(self.server.created)), "resourceVersion": "1"}
        self.answer(HTTPStatus.CREATED, {**asked, "metadata": metadata})

    def do_PATCH(self) -> None:
        # Server-side apply, which Spark uses for everything except pods.
        asked = yaml.safe_load(self.body())
        self.server.created.append(asked)
        self.answer(HTTPStatus.OK, asked)

    def do_DELETE(self) -> None:
        self.answer(HTTPStatus.OK, {"apiVersion": "v1", "kind": "Status", "status": "Success"})

    @property
    def _resource(self) -> str:
        return self.path.partition("?")[0].rsplit("/", 1)[-1]


def _template(folder: Path, profile: str, role: str) -> Path:
    path = folder / f"{role}-template.yaml"
    path.write_text(yaml.safe_dump(executor(profile, role)), encoding="utf-8")
    return path


def _settings(api: KubernetesApi, template: Path) -> dict[str, str]:
    """Return the settings of a driver outside the cluster, with one executor."""
    return {
        **kubernetes.settings(template),
        "spark.master": api.master,
        "spark.kubernetes.container.image": IMAGE,
        "spark.kubernetes.executor.enableApiWatcher": "false",
        "spark.executor.instances": "1",
    }


def _check(pod: Manifest, program: str) -> None:
    """Check that Kubernetes accepts a pod, that its worker starts first, and that it has few rights."""
    check_pod(pod)
    check_sidecar(pod)
    for name in ("tuplewire", program):
        check_restricted(pod, name)
    for version in VERSIONS:
        validate(pod, version)


@pytest.fixture(scope="module", params=["dev", SUBMITTED])
def profile(request: pytest.FixtureRequest) -> str:
    """Return a profile's name: one without certificates, and one with."""
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def pod(profile: str, tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """Return the executor's pod that Spark requests, with the template of the profile."""
    template = _template(tmp_path_factory.mktemp(profile), profile, "executor")
    with served(KubernetesApi()) as api:
        settings = {
            **_settings(api, template),
            "spark.scheduler.minRegisteredResourcesRatio": "0",
            "spark.decommission.enabled": "true",
        }
        command, environment = as_program(__file__, json.dumps(settings))
        driver = subprocess.Popen(
            command, stdin=subprocess.PIPE, env={**environment, "KUBECONFIG": os.devnull}
        )
        try:
            eventually(lambda: api.of_kind("Pod") or driver.poll() is not None, DRIVER_SECONDS, "a pod")
            assert driver.poll() is None, "the driver has ended; its error is above"
        finally:
            driver.communicate(timeout=_SECONDS)
        return api.of_kind("Pod")[0]


def test_the_executors_pod_is_one(profile: str, pod: Manifest) -> None:
    """Spark's additions leave the pod valid and restricted, and the sidecar as in the template."""
    _check(pod, SPARK)
    assert container(pod) == container(executor(profile))


def test_the_executor_is_sparks(profile: str, pod: Manifest) -> None:
    """Its image, command and resources come from Spark; address, mounts and rights from the template."""
    merged, ours = container(pod, SPARK), container(executor(profile), SPARK)
    assert merged["image"] == IMAGE
    assert merged["args"] == ["executor"]
    assert merged["resources"]["limits"]["memory"]
    assert variables(merged).items() >= variables(ours).items()
    assert "SPARK_EXECUTOR_POD_IP" in variables(merged)
    assert all(mount in merged["volumeMounts"] for mount in ours["volumeMounts"])
    assert merged["securityContext"] == ours["securityContext"]


def test_the_end_of_an_executor(pod: Manifest) -> None:
    """The grace period follows our settings, not Spark's default; Spark's hook is on its own container."""
    assert pod["spec"]["terminationGracePeriodSeconds"] == 45
    assert "preStop" in container(pod, SPARK)["lifecycle"]
    assert "lifecycle" not in container(pod), "the worker drains at SIGTERM"


def test_the_network_policy_takes_it(profile: str, pod: Manifest) -> None:
    """The policy selects the pod and admits similar pods, and Spark's block manager port is the usual one."""
    spec = the(cluster(profile), "NetworkPolicy", "tuplewire")["spec"]
    labels = pod["metadata"]["labels"]
    assert selects(spec["podSelector"], labels)
    ports = {port["name"]: port["containerPort"] for port in container(pod, SPARK)["ports"]}
    (blocks,) = [rule for rule in spec["ingress"] if rule["ports"][0]["port"] == ports["blockmanager"]]
    assert any(selects(peer["podSelector"], labels) for peer in blocks["from"])


@pytest.fixture(scope="module")
def submitted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesApi]:
    """Submit a program with our settings, and return the API with the requested objects."""
    folder = tmp_path_factory.mktemp("submit")
    template, drivers = (_template(folder, SUBMITTED, role) for role in ("executor", "driver"))
    with served(KubernetesApi()) as api:
        settings = {
            **kubernetes.settings(template, driver_template=drivers),
            "spark.kubernetes.container.image": IMAGE,
            "spark.kubernetes.submission.waitAppCompletion": "false",
        }
        flags = ["--master", api.master, "--deploy-mode", "cluster", "--name", "tuplewire"]
        flags += [f"--conf={name}={value}" for name, value in settings.items()]
        environment = {
            **os.environ,
            "JAVA_HOME": str(create_java_home(find_java(), folder / "java")),
            "KUBECONFIG": os.devnull,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        done = ran(SUBMIT, *flags, "local:///opt/program.py", env=environment, seconds=DRIVER_SECONDS)
        assert done.returncode == 0, done.stderr
        yield api


@pytest.fixture
def driver(submitted: KubernetesApi) -> Manifest:
    """Return the driver's pod."""
    (pod,) = submitted.of_kind("Pod")
    return pod


def test_the_drivers_pod_is_one(driver: Manifest) -> None:
    """It is valid and restricted, its worker starts first, and it has the worker's address and ports."""
    _check(driver, DRIVER)
    assert variables(container(driver, DRIVER))["TUPLEWIRE_ADDRESS"] == "unix:///run/tuplewire/worker.sock"
    ports = {each["containerPort"] for each in container(driver, DRIVER)["ports"]}
    assert ports >= {kubernetes.DRIVER_PORT, kubernetes.BLOCK_MANAGER_PORT}


def test_the_driver_shows_who_it_is(driver: Manifest) -> None:
    """The driver's credentials are files of mounted Secrets: a program's, not a worker's."""
    one = container(driver, DRIVER)
    credentials = Credentials.from_environment(variables(one))
    assert credentials.tls_worker_names == ("worker.tuplewire",)
    volumes = [each for each in driver["spec"]["volumes"] if "secret" in each]
    secrets = {each["name"]: each["secret"]["secretName"] for each in volumes}
    found = {}
    for path in (*map(str, credentials.tls_files), str(credentials.token_file)):
        mount = mounted(one, path)
        assert mount, path
        found[path] = secrets[mount["name"]]
    assert set(found.values()) == {"tuplewire-client-tls", "tuplewire-driver-token"}
    assert found[str(credentials.token_file)] == "tuplewire-driver-token"


def test_the_template_travels(submitted: KubernetesApi) -> None:
    """The driver gets the unchanged template, and creates its executors from it."""
    (travels,) = [each for each in submitted.of_kind("ConfigMap") if "podspec-configmap-key" in each["data"]]
    assert yaml.safe_load(travels["data"]["podspec-configmap-key"]) == executor(SUBMITTED)


def test_sparks_own_policy_leaves_ours_room(submitted: KubernetesApi, driver: Manifest) -> None:
    """Spark admits only a program's own pods to executors; our policy also admits workers and Prometheus."""
    (sparks,) = submitted.of_kind("NetworkPolicy")
    of_driver = driver["metadata"]["labels"]
    labels = {
        **executor(SUBMITTED)["metadata"]["labels"],
        "spark-role": "executor",
        "spark-app-selector": of_driver["spark-app-selector"],
    }
    # Policies are additive, so neither one restricts the other.
    assert selects(sparks["spec"]["podSelector"], labels)
    ours = the(cluster(SUBMITTED), "NetworkPolicy", "tuplewire")["spec"]
    assert selects(ours["podSelector"], labels)
    (peer,) = sparks["spec"]["ingress"][0]["from"]
    assert not selects(peer["podSelector"], {"app.kubernetes.io/name": "prometheus"})
    assert any(
        selects(each["podSelector"], of_driver)
        for rule in ours["ingress"]
        for each in rule["from"]
        if rule["ports"][0]["port"] == 6700
    )


def _executor_command(pod: Manifest) -> list[str | Path]:
    """Return the command of the entry point in Spark's image. Source: Spark's `entrypoint.sh`, `executor`."""
    given = variables(container(pod, SPARK))
    options = [value for name, value in sorted(given.items()) if name.startswith("SPARK_JAVA_OPT_")]
    return [
        find_java().home / "bin" / "java",
        *options,
        "-Xmx512m",
        "-cp",
        f"{Path(pyspark.__file__).parent}/jars/*",
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
        *("--driver-url", given["SPARK_DRIVER_URL"]),
        *("--executor-id", given["SPARK_EXECUTOR_ID"]),
        *("--cores", given["SPARK_EXECUTOR_CORES"]),
        *("--app-id", given["SPARK_APPLICATION_ID"]),
        *("--hostname", "127.0.0.1"),
        *("--resourceProfileId", given["SPARK_RESOURCE_PROFILE_ID"]),
        *("--podName", pod["metadata"]["name"]),
    ]


@pytest.mark.slow
def test_executors_send_through_the_worker_beside_them(tmp_path: Path) -> None:
    """The driver finds the worker at the executor's address, and the executor by the template alone."""
    template = _template(tmp_path, "dev", "executor")
    config = the(cluster("dev"), "ConfigMap", "tuplewire-config")["data"]["worker.toml"]
    port_file = tmp_path / "port"
    with served(KubernetesApi()) as api:
        settings = {**_settings(api, template), "spark.executor.memory": "512m"}
        command, environment = as_program(__file__, json.dumps(settings), port_file)
        driver = subprocess.Popen(
            command, stdout=subprocess.PIPE, env={**environment, "KUBECONFIG": os.devnull}
        )
        try:
            eventually(lambda: api.of_kind("Pod") or driver.poll() is not None, _SECONDS, "a pod")
            (pod,) = api.of_kind("Pod")
            with pod_here(pod, pod["metadata"]["name"], tmp_path / "pod", config, {}) as here:
                write_atomically(port_file, here.address.rpartition(":")[2])
                with here.running(*_executor_command(pod)):
                    said, _ = driver.communicate(timeout=_SECONDS)
                assert driver.returncode == 0, here.log
                _check_messages(here, json.loads(said))
                assert here.end() == 0, here.log
        finally:
            driver.kill()
            driver.wait(60)


def _check_messages(here: PodHere, seen: list[tuple[str, int]]) -> None:
    """Check that all messages were sent through the pod's socket, acknowledged, and delivered."""
    one = container(here.pod, SPARK)
    socket = here.local(one, variables(one)["TUPLEWIRE_ADDRESS"])
    assert {address for address, _ in seen} == {socket}
    assert sum(acknowledged for _, acknowledged in seen) == MESSAGES
    with Client(socket) as client:
        received = collect(client.recv([1], timeout=30), MESSAGES)
    assert sorted(int(payload) for _, payload in received) == list(range(MESSAGES))


def send(numbers: Iterable[int]) -> Iterable[tuple[str, int]]:
    """Send each number to task 1; yield the address of the worker and the number of acknowledged messages."""
    with Client(source=7) as client:
        client.send(TaskMessageBatch.from_columns(1, [str(number).encode() for number in numbers]))
        client.flush(60)
        yield os.environ["TUPLEWIRE_ADDRESS"], client.ledger().acknowledged


def main(text: str, port_file: str = "") -> None:
    """Request an executor. Wait for the end of standard input, or send: a file has the worker's port."""
    with local_session("tuplewire", conf=json.loads(text)) as spark:
        if not port_file:
            sys.stdin.read()
            return
        eventually(Path(port_file).exists, _SECONDS, "the worker's port")
        with membership(spark, [1], port=int(Path(port_file).read_text()), min_workers=1) as workers:
            workers.wait(1, _SECONDS)
            seen = spark.sparkContext.parallelize(range(MESSAGES), 2).mapPartitions(send).collect()
            print(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
