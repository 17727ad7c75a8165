"""The Helm chart with every choice of values: valid, current, and rolled out when needed."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest
import yaml
from helpers.manifests import (
    CHART,
    PROFILES,
    VERSIONS,
    Manifest,
    chart,
    check_pod,
    cluster,
    container,
    executor,
    helm,
    rendered,
    selects,
    the,
    validate,
    variables,
)
from helpers.tools import ROOT, missing, ran

from tuplewire.settings.settings import BOOLEAN, Setting, settings_of
from tuplewire_service.command.cli import command_parser
from tuplewire_service.config.worker_config import WorkerConfig

CLUSTER = ("membership.enabled=true", "autoscaling.kind=keda", "program.reference=a.b:c", "program.conf.x=1")
CHOICES: Mapping[str, tuple[str, ...]] = {
    "plain": ("secure=false", "networkPolicy.enabled=false"),
    "program": ("program.reference=a.b:c",),
    "cluster": CLUSTER,
    "cluster-plain": (*CLUSTER, "secure=false"),
    "hpa": ("membership.enabled=true", "autoscaling.kind=hpa"),
}

every_choice = pytest.mark.parametrize("choice", [*PROFILES, *CHOICES])


def chosen(choice: str) -> tuple[Manifest, ...]:
    """Return the manifests of a profile or of a choice."""
    return cluster(choice) if choice in PROFILES else chart(*CHOICES[choice])


def workers(*settings: str) -> Manifest:
    """Return the pod template of the workers outside Spark."""
    pod: Manifest = the(chart(*settings), "StatefulSet")["spec"]["template"]
    return pod


def test_the_linter_has_nothing_to_say() -> None:
    """`helm lint --strict` reports no problems."""
    done = helm("lint", "--strict", "--quiet", CHART)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stdout


@every_choice
@pytest.mark.parametrize("version", VERSIONS)
def test_the_schemas_are_kept(choice: str, version: str) -> None:
    """Every object and template matches its schema, in old and new Kubernetes and for operators' kinds."""
    objects = chosen(choice)
    templates = (
        yaml.safe_load(text)
        for each in objects
        if each["metadata"]["name"].endswith("-template")
        for text in each["data"].values()
    )
    for manifest in (*objects, *templates):
        validate(manifest, version)


@every_choice
def test_objects_are_different_and_pods_whole(choice: str) -> None:
    """No two objects share a kind and a name, none is a Secret, and every volume of a pod exists."""
    objects = chosen(choice)
    names = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert len(names) == len(set(names))
    assert "Secret" not in dict(names)
    maps = {name for kind, name in names if kind == "ConfigMap"}
    for each in objects:
        if each["kind"] in {"StatefulSet", "Deployment"}:
            pod = each["spec"]["template"]
            check_pod(pod)
            named = {
                volume["configMap"]["name"]
                for volume in pod["spec"].get("volumes", [])
                if "configMap" in volume
            }
            assert named <= maps


def test_settings_that_are_read_at_the_start_roll() -> None:
    """The pods change only with worker.toml and the program's settings, which are read at startup."""
    program = ("program.reference=a.b:c",)
    pods = workers(*program)
    assert workers(*program, "settings.log_format=text") != pods
    assert workers(*program, "program.conf.a=1") != pods
    assert workers(*program, "secure=false") != pods
    for reloaded in ("permissions=# nobody", "assignment.version=2", "assignment.tasksPerWorker=9"):
        assert chart(*program, reloaded) != chart(*program)
        assert workers(*program, reloaded) == pods, reloaded


def test_the_workers_take_any_setting() -> None:
    """The real loader accepts the rendered worker.toml, and the schema contains each setting."""
    text = the(
        chart("settings.max_connections=7", "settings.receive_queue_bytes=1MiB"),
        "ConfigMap",
        "tuplewire-config",
    )
    settings = tomllib.loads(text["data"]["worker.toml"])
    assert (settings["max_connections"], settings["receive_queue_bytes"]) == (7, "1MiB")
    assert settings.keys() <= settings_of(WorkerConfig).keys()


OF_THE_CHART = {
    *("listen", "listen_unix", "listen_admin", "state_file", "staging_directory"),
    *("worker_id", "advertise", "assignment_file", "tasks", "address_file", "allow_plaintext"),
    *("program", "program_conf_file", "program_state_file", "permissions_file", "token_file"),
    *("tls_certificate", "tls_key", "tls_ca", "tls_worker_names", "session"),
}
"""Settings that the pods' ports, mounts and arguments depend on, or that do not belong in worker.toml."""


def test_the_schema_has_every_other_setting() -> None:
    """The types in the schema are the worker's: a size may have a unit, and null means the default."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    found = {name: each["type"] for name, each in schema["properties"]["settings"]["properties"].items()}
    known = settings_of(WorkerConfig)
    assert found == {name: types_of(known[name]) for name in known if name not in OF_THE_CHART}


def types_of(each: Setting) -> list[str]:
    """Return the JSON types that the worker accepts for a setting."""
    types = each.kind.types if isinstance(each.kind.types, tuple) else (each.kind.types,)
    kinds = {{bool: "boolean", int: "integer", float: "number"}.get(one, "string") for one in types}
    if each.kind is not BOOLEAN:
        kinds.add("string")  # a size has units, and every string is parsed as the value of a flag
    if "number" in kinds:
        kinds.discard("integer")
    return [*sorted(kinds), "null"]


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ("settings.lisen=x", "additional properties 'lisen'"),
        ("settings.listen=x", "additional properties 'listen'"),
        ("workers.replica=3", "additional properties 'replica'"),
        ("autoscaling.kind=hpa", "at '/membership/enabled'"),
        ("membership.tasks=a-b", "at '/membership/tasks'"),
        ("image.digest=latest", "at '/image/digest'"),
        ("secure=1", "at '/secure'"),
        ("monitoring.runbookBase=https://git.example/main", "at '/monitoring/runbookBase'"),
    ],
)
def test_wrong_values_are_named(wrong: str, complaint: str) -> None:
    """Unknown values and values of the wrong type are rejected before anything is applied."""
    done = helm("template", "a-release", CHART, f"--set={wrong}")
    assert done.returncode != 0
    assert complaint in done.stderr


def test_an_image_by_digest() -> None:
    """A digest overrides the tag, for workers, executors and the membership."""
    digest = "sha256:" + "0" * 64
    objects = chart(*CLUSTER, f"image.digest={digest}")
    image = f"registry.example.com/tuplewire@{digest}"
    template = yaml.safe_load(
        the(objects, "ConfigMap", "tuplewire-executor-template")["data"]["executor-template.yaml"]
    )
    membership = the(objects, "Deployment")["spec"]["template"]
    workers_ = the(objects, "StatefulSet")["spec"]["template"]
    assert container(template)["image"] == container(workers_)["image"] == image
    assert container(membership, "membership")["image"] == image


def test_workers_with_a_program() -> None:
    """They get the program and its settings, in addition to the certificates that all workers have."""
    pod = workers(*CHOICES["cluster"])
    worker = container(pod)
    assert "--program=a.b:c" in worker["args"]
    mounts = {each["mountPath"] for each in worker["volumeMounts"]}
    assert {"/etc/tuplewire/program", "/etc/tuplewire/tls", "/etc/tuplewire/permissions"} <= mounts
    assert not any("assignment" in each for each in [*worker["args"], *mounts]), "the membership assigns"
    conf = the(chart(*CHOICES["cluster"]), "ConfigMap", "tuplewire-program")["data"]["program.json"]
    assert json.loads(conf) == {"x": 1}


def test_a_program_is_spread() -> None:
    """A topology without a membership spreads its tasks round-robin; otherwise each worker has a range."""

    def tasks(*settings: str) -> list[list[int]]:
        return [each["tasks"] for each in assignment(*settings)["workers"]]

    assert tasks("assignment.tasksPerWorker=2") == [[0, 1], [2, 3], [4, 5]]
    spread = tasks("assignment.tasksPerWorker=2", "program.reference=a.b:c")
    assert spread == [[0, 3], [1, 4], [2, 5]]


def test_the_membership_takes_its_arguments() -> None:
    """The real command parses them: the workers' Service, the tasks, the topology."""
    objects = chart(*CLUSTER, "membership.tasks=1-9", "settings.topology=flights")
    pod = the(objects, "Deployment")["spec"]["template"]
    program = container(pod, "membership")
    read = command_parser(program["args"]).parse_args(program["args"])
    service = the(objects, "Service")
    assert read.address == f"{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    assert (read.tasks, read.topology) == ("1-9", "flights")
    environment = variables(program)
    assert environment["TUPLEWIRE_TOKEN_FILE"] == "/etc/tuplewire/token/token"  # noqa: S105 - a path
    secrets = {volume["secret"]["secretName"] for volume in pod["spec"]["volumes"]}
    assert secrets == {"tuplewire-client-tls", "tuplewire-driver-token"}
    plain = the(chart(*CHOICES["cluster-plain"]), "Deployment")["spec"]["template"]
    assert variables(container(plain, "membership"))["TUPLEWIRE_ALLOW_PLAINTEXT"] == "true"


def test_the_membership_connects_to_what_it_needs() -> None:
    """It can connect to DNS and the workers' port, and accepts no connections."""
    objects = chart(*CLUSTER)
    labels = the(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    found = the(objects, "NetworkPolicy", "tuplewire-membership-egress")["spec"]
    assert selects(found["podSelector"], labels)
    assert found["policyTypes"] == ["Egress"]
    names, peers = found["egress"]
    (others,) = [each for each in objects if each["metadata"]["name"] == "tuplewire-egress"]
    assert names == others["spec"]["egress"][0]
    assert peers["ports"] == others["spec"]["egress"][1]["ports"]
    assert selects(peers["to"][0]["podSelector"], workers(*CLUSTER)["metadata"]["labels"])
    ingress = the(objects, "NetworkPolicy", "tuplewire")["spec"]
    assert selects(ingress["podSelector"], labels), "what is let in there it does not listen on"
    pod = the(objects, "Deployment")["spec"]["template"]["metadata"]
    ways_out = ("traffic.sidecar.istio.io/excludeOutboundPorts", "config.linkerd.io/skip-outbound-ports")
    assert pod["annotations"] == dict.fromkeys(ways_out, "6700"), "workers have certificates of their own"
    plain = the(chart(*CHOICES["cluster-plain"]), "Deployment")["spec"]["template"]["metadata"]
    assert "annotations" not in plain, "a mesh may carry what has none"
    open_ = chart(*CLUSTER, "networkPolicy.enabled=false")
    assert not [each for each in open_ if each["kind"] == "NetworkPolicy"]


def test_workers_are_scaled_by_metrics_that_are_there() -> None:
    """The queries use documented metrics of this namespace, and workers are removed one at a time."""
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    sets = (f"--set={each}" for each in CLUSTER)
    keda = the(rendered("--namespace=team-a", *sets), "ScaledObject")["spec"]
    hpa = the(chart(*CHOICES["hpa"]), "HorizontalPodAutoscaler")["spec"]
    queries = "".join(each["metadata"]["query"] for each in keda["triggers"])
    names = {
        *re.findall(r"tuplewire_\w+", queries),
        *(each["pods"]["metric"]["name"] for each in hpa["metrics"]),
    }
    assert len(names) == 2
    assert queries.count('namespace="team-a"') == len(keda["triggers"]), "not those of other teams"
    assert all(f"`{name}`" in page for name in names)
    behaviors = (keda["advanced"]["horizontalPodAutoscalerConfig"]["behavior"], hpa["behavior"])
    for behavior in behaviors:
        (policy,) = behavior["scaleDown"]["policies"]
        assert (policy["type"], policy["value"]) == ("Pods", 1)


@pytest.mark.parametrize("kind", ["hpa", "keda"])
def test_an_autoscaler_takes_over_what_is_there(kind: str) -> None:
    """The number of workers is always set: if the field is removed, Kubernetes sets it to 1."""
    scaled = chart("membership.enabled=true", f"autoscaling.kind={kind}", "autoscaling.minReplicas=4")
    assert the(scaled, "StatefulSet")["spec"]["replicas"] == 4


def assignment(*settings: str) -> Mapping[str, Any]:
    """Return the assignment that the workers read."""
    data = the(chart(*settings), "ConfigMap", "tuplewire-assignment")["data"]["assignment.json"]
    found: Mapping[str, Any] = json.loads(data)
    return found


def test_an_assignment_with_other_tasks_has_another_version() -> None:
    """A worker rejects changed tasks under a version it knows, and any lower version."""
    before = assignment()
    for change in ("workers.replicas=4", "assignment.tasksPerWorker=9", "settings.topology=other"):
        assert assignment(change)["version"] != before["version"], change
    assert assignment("workers.resources.requests.cpu=2") == before
    last = assignment("assignment.version=7")["version"]
    for change in ("workers.replicas=1", "workers.replicas=9", "assignment.tasksPerWorker=1"):
        assert assignment("assignment.version=8", change)["version"] > last


def test_the_policy_lets_in_whom_values_name() -> None:
    """A driver outside the cluster, admitted by its address, reaches only the message port."""
    named = {"ipBlock": {"cidr": "10.1.0.0/16"}}
    objects = chart("networkPolicy.programs[0].ipBlock.cidr=10.1.0.0/16")
    rules = the(objects, "NetworkPolicy", "tuplewire")["spec"]["ingress"]
    assert [rule["ports"][0]["port"] for rule in rules if named in rule["from"]] == [6700]


def test_the_manifests_are_current() -> None:
    """deploy/manifests.yaml, for clusters without Helm, is the chart rendered with its defaults."""
    done = helm("template", "tuplewire", CHART)
    written = (ROOT / "deploy" / "manifests.yaml").read_text(encoding="utf-8")
    assert written == done.stdout, "run make manifests"


def test_the_spark_application_is_current() -> None:
    """deploy/spark-application.yaml is generated from the manifests."""
    deploy = ROOT / "deploy"
    rendered = (deploy / "manifests.yaml").read_text(encoding="utf-8")
    script = deploy / "make_spark_application.py"
    made = ran(sys.executable, script, input=rendered, check=True).stdout
    assert (deploy / "spark-application.yaml").read_text(encoding="utf-8") == made, "run make manifests"


def test_the_operator_knows_every_field() -> None:
    """The operator's own models parse the application without dropping any field."""
    if find_spec("kubeflow_spark_api") is None:
        missing("kubeflow-spark-api is missing; make deploy-check installs it")
    models: Any = import_module("kubeflow_spark_api.models")
    application = yaml.safe_load((ROOT / "deploy" / "spark-application.yaml").read_text(encoding="utf-8"))
    read = models.SparkV1beta2SparkApplication.from_dict(application)
    again = read.to_dict()
    for role in ("executor", "driver"):
        for port in again["spec"][role]["template"]["spec"]["initContainers"][0]["ports"]:
            assert port.pop("protocol") == "TCP"  # a default, which the operator fills in
    assert again == application
    with pytest.raises(ValueError, match="mainApplicationFile"):
        models.SparkV1beta2SparkApplicationSpec.from_dict({"type": "Python"})


@pytest.mark.parametrize("role", ["executor", "driver"])
def test_the_application_has_the_charts_templates(role: str) -> None:
    """Its executors and driver match the chart, and each pod is valid in Kubernetes."""
    application = yaml.safe_load((ROOT / "deploy" / "spark-application.yaml").read_text(encoding="utf-8"))
    template = application["spec"][role]["template"]
    pod = executor("default", role)
    assert template["spec"] == pod["spec"]
    assert template["metadata"]["labels"] == pod["metadata"]["labels"]
    validate({"apiVersion": "v1", "kind": "Pod", **template}, VERSIONS[0])
