"""The manifests that Helm renders from the chart: valid, and consistent with the worker."""

from __future__ import annotations

import functools
import re
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml
from helpers.manifests import (
    PROFILES,
    VERSIONS,
    Manifest,
    check_pod,
    check_restricted,
    check_sidecar,
    cluster,
    container,
    containers,
    executor,
    mounted,
    pods,
    selects,
    the,
    validate,
    variables,
    write_files,
)
from helpers.tools import ROOT, ran
from helpers.worker_process import environment_without_ours

from tuplewire.settings.addresses import split_host_port
from tuplewire.spark import kubernetes
from tuplewire_service.security.permissions import ACTIONS, permissions_of, read_rules
from tuplewire_service.worker.assignment import load_assignment

CONFIG = "/etc/tuplewire/worker.toml"
FILES = ("assignment_file", "tls_certificate", "tls_key", "tls_ca", "token_file", "permissions_file")
SECURE = ("mtls", "prod", "default")
PLACES = [(profile, kind) for profile in PROFILES for kind in ("worker", "executor", "driver")]

every_profile = pytest.mark.parametrize("profile", PROFILES)
every_pod = pytest.mark.parametrize(("profile", "kind"), PLACES)


@functools.cache
def config_of(profile: str, kind: str) -> Mapping[str, Any]:
    """Return the configuration that the real command reads from a pod's arguments, environment and file."""
    worker = container(pods(profile)[kind])
    with tempfile.TemporaryDirectory() as folder:
        path = write_files(profile, "tuplewire-config", Path(folder)) / "worker.toml"
        known = {**variables(worker), "POD_NAME": "a-pod", "POD_IP": "10.1.2.3"}
        arguments = [
            re.sub(r"\$\((\w+)\)", lambda found: known[found[1]], text).replace(CONFIG, str(path))
            for text in worker["args"]
        ]
        command = [sys.executable, "-m", "tuplewire_service", *arguments, "--print-config"]
        environment = {**environment_without_ours(), **known}
        done = ran(*command, env=environment)
    assert done.returncode == 0, done.stderr
    return tomllib.loads(done.stdout)


@every_pod
def test_pods_are_whole(profile: str, kind: str) -> None:
    """Mounts have volumes, names are unique, limits are at least the requests, and probes use open ports."""
    check_pod(pods(profile)[kind])


@every_profile
def test_the_worker_is_a_native_sidecar(profile: str) -> None:
    """It starts before the executor, stops after it, and its startup does not need an assignment."""
    check_sidecar(executor(profile))


@every_pod
def test_nobody_has_more_rights_than_needed(profile: str, kind: str) -> None:
    """Every container satisfies the `restricted` standard; the worker's root is read-only."""
    pod = pods(profile)[kind]
    for each in containers(pod):
        check_restricted(pod, each["name"])
    assert container(pod)["securityContext"]["readOnlyRootFilesystem"] is True
    assert container(pod)["securityContext"]["runAsGroup"] == 185


@every_pod
def test_memory_is_guaranteed_and_cpu_is_not_throttled(profile: str, kind: str) -> None:
    """The worker's memory request equals its limit; its CPU has a request and no limit."""
    resources = container(pods(profile)[kind])["resources"]
    assert resources["requests"]["memory"] == resources["limits"]["memory"]
    assert "cpu" in resources["requests"]
    assert "cpu" not in resources["limits"]


@every_pod
def test_the_worker_takes_its_settings(profile: str, kind: str) -> None:
    """The real command line and loader accept its settings; ports match its listening addresses."""
    worker = container(pods(profile)[kind])
    config = config_of(profile, kind)
    assert config["worker_id"] == "a-pod"
    ports = {port["name"]: port["containerPort"] for port in worker["ports"]}
    messages = "tls-grpc" if profile in SECURE else "grpc"
    listening = {messages: config["listen"], "metrics": config["listen_admin"]}
    assert ports == {name: split_host_port(address)[1] for name, address in listening.items()}
    assert {split_host_port(address)[0] for address in listening.values()} == {"::"}
    assert config["advertise"] in {
        "10.1.2.3",
        f"a-pod.{the(cluster(profile), 'Service')['metadata']['name']}",
    }


@every_pod
def test_files_are_mounted(profile: str, kind: str) -> None:
    """Every configured file is in a volume; files that the worker writes are in a writable volume."""
    pod = pods(profile)[kind]
    worker, config = container(pod), config_of(profile, kind)
    for path in (CONFIG, *filter(None, (config.get(name) for name in FILES))):
        mount = mounted(worker, path)
        assert mount, path
        assert mount["readOnly"] is True, path
        assert _has(profile, pod, mount, PurePosixPath(path).name), path
    mount = mounted(worker, config["listen_unix"])
    assert mount
    assert "readOnly" not in mount


def _has(profile: str, pod: Manifest, mount: Manifest, name: str) -> bool:
    """Return True if the ConfigMap of a mount has a file. For a Secret, check for an expected name."""
    (volume,) = [each for each in pod["spec"]["volumes"] if each["name"] == mount["name"]]
    if "secret" in volume:
        return name in {"tls.crt", "tls.key", "ca.crt", "token"}
    return name in the(cluster(profile), "ConfigMap", volume["configMap"]["name"])["data"]


@every_profile
def test_the_executor_finds_its_worker(profile: str) -> None:
    """Its address is the worker's socket, in a volume that only the worker can write to."""
    for role in ("executor", "driver"):
        pod = executor(profile, role)
        spark = container(pod, f"spark-kubernetes-{role}")
        path = config_of(profile, role)["listen_unix"]
        assert variables(spark)["TUPLEWIRE_ADDRESS"] == f"unix://{path}"
        assert mounted(spark, path) == {**(mounted(container(pod), path) or {}), "readOnly": True}


@every_profile
def test_a_drain_has_its_time(profile: str) -> None:
    """The grace period exceeds a worker's drain and close time, also next to an executor."""
    stateful = the(cluster(profile), "StatefulSet")["spec"]["template"]["spec"]
    drain = config_of(profile, "worker")["drain_seconds"]
    assert stateful["terminationGracePeriodSeconds"] >= drain + kubernetes.CLOSE_SECONDS
    drain = config_of(profile, "executor")["drain_seconds"]
    given = kubernetes.settings("t.yaml", drain_seconds=drain)
    assert given == kubernetes.settings("t.yaml")


@every_profile
def test_selectors_find_the_pods(profile: str) -> None:
    """Every selector matches exactly the intended pods."""
    labels = {kind: pod["metadata"]["labels"] for kind, pod in pods(profile).items()}
    stateful = the(cluster(profile), "StatefulSet")
    service = the(cluster(profile), "Service")
    assert stateful["spec"]["serviceName"] == service["metadata"]["name"]
    offered = {
        port["name"]: port["containerPort"] for port in container(stateful["spec"]["template"])["ports"]
    }
    for port in service["spec"]["ports"]:
        assert offered[port["name"]] == port["targetPort"] == port["port"]
    for selector in _selectors_of_workers(profile):
        assert [kind for kind in labels if selects(selector, labels[kind])] == ["worker"], selector
    policy = the(cluster(profile), "NetworkPolicy", "tuplewire")["spec"]["podSelector"]
    assert all(selects(policy, each) for each in labels.values())


def _selectors_of_workers(profile: str) -> Iterator[Manifest]:
    for each in cluster(profile):
        if each["kind"] == "Service":
            yield {"matchLabels": each["spec"]["selector"]}
        if each["kind"] in {"StatefulSet", "PodDisruptionBudget"}:
            yield each["spec"]["selector"]
        if each["kind"] == "StatefulSet":
            spread = each["spec"]["template"]["spec"].get("topologySpreadConstraints", [])
            yield from (constraint["labelSelector"] for constraint in spread)


@every_profile
def test_the_network_is_closed_but_for_those_who_need_it(profile: str) -> None:
    """Workers and drivers reach the message port, only Prometheus the metrics, and Spark its own pods."""
    spec = the(cluster(profile), "NetworkPolicy", "tuplewire")["spec"]
    ports = {port["name"]: port["containerPort"] for port in container(executor(profile))["ports"]}
    ports["grpc"] = ports.get("grpc") or ports["tls-grpc"]
    allowed = {rule["ports"][0]["port"]: rule["from"] for rule in spec["ingress"]}
    assert spec["policyTypes"] == ["Ingress"]
    assert all(len(rule["ports"]) == 1 for rule in spec["ingress"])
    assert set(allowed) == {ports["grpc"], ports["metrics"], 7078, 7079}
    executors = {**executor(profile)["metadata"]["labels"], "spark-role": "executor"}
    workers = pods(profile)["worker"]["metadata"]["labels"]
    driver, program, stranger = {"spark-role": "driver"}, {"tuplewire/program": "true"}, {"app": "another"}

    def comes_in(port: int, labels: Manifest) -> bool:
        return any(
            "namespaceSelector" not in peer and selects(peer["podSelector"], labels) for peer in allowed[port]
        )

    assert all(comes_in(6700, labels) for labels in (executors, workers, driver, program))
    assert all(comes_in(7079, labels) for labels in (executors, driver))
    assert not any(comes_in(port, labels) for port in (7078, 7079) for labels in (workers, program))
    assert comes_in(7078, executors)
    assert not any(comes_in(port, stranger) for port in allowed)
    (prometheus,) = allowed[9464]
    assert set(prometheus) == {"namespaceSelector", "podSelector"}


@every_profile
def test_workers_connect_to_names_and_each_other_only(profile: str) -> None:
    """Workers outside Spark reach only DNS and all workers' message port; executors are not restricted."""
    spec = the(cluster(profile), "NetworkPolicy", "tuplewire-egress")["spec"]
    labels = {kind: pod["metadata"]["labels"] for kind, pod in pods(profile).items()}
    assert selects(spec["podSelector"], labels["worker"])
    assert not selects(spec["podSelector"], labels["executor"])
    assert spec["policyTypes"] == ["Egress"]
    names, peers = spec["egress"]
    assert {(port["protocol"], port["port"]) for port in names["ports"]} == {("UDP", 53), ("TCP", 53)}
    assert all(names["to"])
    port = split_host_port(config_of(profile, "worker")["listen"])[1]
    assert peers["ports"] == [{"protocol": "TCP", "port": port}]
    (to,) = peers["to"]
    assert all(selects(to["podSelector"], each) for each in labels.values())
    assert not selects(to["podSelector"], {"app": "another"})


@every_profile
def test_meshes_read_the_port_rightly(profile: str) -> None:
    """Its protocol is gRPC, or TLS if the worker has certificates; in that case traffic bypasses meshes."""
    service = the(cluster(profile), "Service")["spec"]
    (port,) = service["ports"]
    secure = profile in SECURE
    assert (port["name"], port["appProtocol"]) == (("tls-grpc", "tls") if secure else ("grpc", "grpc"))
    assert service["ipFamilyPolicy"] == "PreferDualStack"
    for kind, pod in pods(profile).items():
        assert ("tls_ca" in config_of(profile, kind)) == secure
        passed = {
            name: value
            for name, value in pod["metadata"]["annotations"].items()
            if "istio" in name or "linkerd" in name
        }
        ways = (
            "traffic.sidecar.istio.io/excludeInboundPorts",
            "traffic.sidecar.istio.io/excludeOutboundPorts",
            "config.linkerd.io/skip-inbound-ports",
            "config.linkerd.io/skip-outbound-ports",
        )
        assert passed == (dict.fromkeys(ways, str(port["port"])) if secure else {})


def test_prometheus_finds_every_worker() -> None:
    """The PodMonitor selects all pods with a worker, at a port that exists and that the policy opens."""
    monitor = the(cluster("prod"), "PodMonitor")["spec"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    for pod in pods("prod").values():
        assert selects(monitor["selector"], pod["metadata"]["labels"])
        ports = {port["name"]: port["containerPort"] for port in container(pod)["ports"]}
        assert ports[endpoint["port"]] == 9464


@every_profile
def test_the_assignment_names_the_workers(profile: str, tmp_path: Path) -> None:
    """The real loader accepts it, and it lists each pod of the StatefulSet by its name in the Service."""
    assignment = load_assignment(write_files(profile, "tuplewire-assignment", tmp_path) / "assignment.json")
    config = config_of(profile, "worker")
    stateful = the(cluster(profile), "StatefulSet")
    name, service = stateful["metadata"]["name"], stateful["spec"]["serviceName"]
    port = split_host_port(config["listen"])[1]
    assert assignment.topology == config["topology"]
    assert {each.worker_id: each.address for each in assignment.workers} == {
        f"{name}-{index}": f"{name}-{index}.{service}:{port}" for index in range(stateful["spec"]["replicas"])
    }


@every_profile
def test_secrets_are_only_where_they_are_needed(profile: str) -> None:
    """Profile dev has no Secrets; elsewhere each pod has its own, readable only by its group."""
    secrets = {
        kind: {
            each["secret"]["secretName"]: each["secret"]["defaultMode"]
            for each in pod["spec"]["volumes"]
            if "secret" in each
        }
        for kind, pod in pods(profile).items()
    }
    workers = dict.fromkeys(("tuplewire-tls", "tuplewire-worker-tokens"), 0o440)
    programs = dict.fromkeys(("tuplewire-client-tls", "tuplewire-token"), 0o440)
    drivers = dict.fromkeys(("tuplewire-client-tls", "tuplewire-driver-token"), 0o440)
    expected = {"worker": workers, "executor": {**workers, **programs}, "driver": {**workers, **drivers}}
    assert secrets == (expected if profile in SECURE else {kind: {} for kind in expected})


@pytest.mark.parametrize("profile", SECURE)
def test_programs_have_a_certificate_of_their_own(profile: str) -> None:
    """Spark's containers have a program's certificate and token, and never the worker's key."""
    spark, driver = (
        container(executor(profile, role), f"spark-kubernetes-{role}") for role in ("executor", "driver")
    )
    for one, token in ((spark, "tuplewire-token"), (driver, "tuplewire-driver-token")):
        mounts = {each["mountPath"]: each["name"] for each in one["volumeMounts"]}
        assert mounts["/etc/tuplewire/tls"] == "tuplewire-client-tls"
        assert mounts["/etc/tuplewire/token"] == token
        assert not {"tuplewire-tls", "tuplewire-worker-tokens"} & set(mounts.values())
    environment = variables(spark)
    assert environment == variables(driver)
    del environment["TUPLEWIRE_ADDRESS"]
    names = environment.pop("TUPLEWIRE_TLS_WORKER_NAMES")
    assert names == config_of(profile, "executor")["tls_worker_names"]
    assert all(mounted(spark, path) for path in environment.values())


@pytest.mark.parametrize("profile", SECURE)
def test_executors_may_not_control(profile: str, tmp_path: Path) -> None:
    """The real loader accepts the permissions: executors send and receive; drivers also control."""
    rules = read_rules(write_files(profile, "tuplewire-permissions", tmp_path) / "permissions.toml")
    topology = str(config_of(profile, "worker")["topology"])
    names = ["any.certificate"]
    driver, executor_, topologies, nobody, unnamed = (
        permissions_of(rules, names, token, topology)
        for token in ("programs/driver", "programs", "topologies", "another", "")
    )
    assert driver.control == set(ACTIONS)
    assert executor_.control == set()
    assert topologies.control == {"assign"}
    senders = (driver, executor_, topologies)
    assert all(each.send.contains_all and each.receive.contains_all for each in senders)
    assert not nobody.has_rule
    assert not unnamed.has_rule
    for pod in pods(profile).values():
        for one in containers(pod):
            paths = [mount["mountPath"] for mount in one["volumeMounts"]]
            assert ("/etc/tuplewire/permissions" in paths) == (one["name"] == "tuplewire")


PAGE = (ROOT / "docs" / "how-to" / "deploy.md").read_text(encoding="utf-8")
EXAMPLES = tuple(yaml.safe_load(text) for text in re.findall(r"(?ms)^```yaml\n(.*?)^```$", PAGE))


def test_the_page_has_a_program(tmp_path: Path) -> None:
    """The program's pod has the files and variables of an executor, and can reach the first worker."""
    pod, other = the(EXAMPLES, "Pod"), executor("prod")
    check_pod(pod)
    spark, program = container(other, "spark-kubernetes-executor"), container(pod, "program")
    expected = {**variables(spark), "TUPLEWIRE_ADDRESS": "tuplewire-worker-0.tuplewire-workers:6700"}
    assert variables(program) == expected
    path = write_files("prod", "tuplewire-assignment", tmp_path) / "assignment.json"
    assert expected["TUPLEWIRE_ADDRESS"] in {each.address for each in load_assignment(path).workers}
    assert all(mounted(program, path) for path in expected.values() if path.startswith("/"))
    secrets = [each.get("secret") for each in other["spec"]["volumes"]]
    assert all(each["secret"] in secrets for each in pod["spec"]["volumes"])
    assert pod["spec"]["securityContext"]["fsGroup"] == other["spec"]["securityContext"]["fsGroup"]
    messages = the(cluster("prod"), "NetworkPolicy", "tuplewire")["spec"]["ingress"][0]["from"]
    assert any(selects(peer["podSelector"], pod["metadata"]["labels"]) for peer in messages)


def test_the_page_has_a_certificate() -> None:
    """The workers' Secret has the name that workers accept."""
    certificate = the(EXAMPLES, "Certificate")["spec"]
    assert certificate["dnsNames"] == [config_of("prod", "worker")["tls_worker_names"]]
    assert certificate["secretName"] == "tuplewire-tls"


@pytest.mark.parametrize("version", VERSIONS)
def test_the_examples_of_the_page_keep_the_schemas(version: str) -> None:
    """Pod and NetworkPolicy are valid; the policy opens the metrics of every worker."""
    for kind in ("Pod", "NetworkPolicy"):
        validate(the(EXAMPLES, kind), version)
    policy = the(EXAMPLES, "NetworkPolicy")["spec"]
    assert all(selects(policy["podSelector"], pod["metadata"]["labels"]) for pod in pods("prod").values())


def test_the_page_names_what_is_there() -> None:
    """Every folder and file of deploy/ in the commands of docs/how-to/deploy.md exists."""
    named = set(re.findall(r"(?<![\w./-])deploy/[\w./-]+", PAGE))
    assert "deploy/helm/tuplewire" in named
    assert {path for path in named if not (ROOT / path).exists()} == set()
