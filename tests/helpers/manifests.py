"""The chart's manifests, rendered by Helm, as plain dicts, with their schemas and other checks."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from helpers.tools import ROOT, missing, ran, require_tool

Manifest = dict[str, Any]

CHART = ROOT / "deploy" / "helm" / "tuplewire"
_DEV = f"--values={CHART.parent / 'dev.yaml'}"
PROFILES: dict[str, tuple[str, ...]] = {
    "dev": (_DEV,),
    "mtls": (_DEV, "--set=secure=true"),
    "prod": ("--set=monitoring.enabled=true",),
    "default": (),
}
"""Values of the chart, as Helm's flags, by the name of the profile."""
_HELM = ROOT / "build" / "bin" / "helm"


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run Helm, preferably the one built by the installer."""
    program = shutil.which(_HELM) or shutil.which("helm")
    if program is None:
        missing("helm is not there; deploy/install-tools.sh builds it")
    return ran(program, *arguments)


@functools.cache
def rendered(*flags: str) -> tuple[Manifest, ...]:
    """Return the chart's manifests, rendered with these flags."""
    done = helm("template", "a-release", CHART, *flags)
    assert done.returncode == 0, done.stderr
    return tuple(filter(None, yaml.safe_load_all(done.stdout)))


def chart(*settings: str) -> tuple[Manifest, ...]:
    """Return the chart's manifests with values, each as `a.b=c`."""
    return rendered(*(f"--set={each}" for each in settings))


def cluster(profile: str) -> tuple[Manifest, ...]:
    """Return the manifests that are applied to a cluster with this profile."""
    return rendered(*PROFILES[profile])


def executor(profile: str, role: str = "executor") -> Manifest:
    """Return Spark's template of an executor's pod, or of a driver's pod."""
    data = the(cluster(profile), "ConfigMap", f"tuplewire-{role}-template")["data"]
    found: Manifest = yaml.safe_load(data[f"{role}-template.yaml"])
    return found


def the(manifests: tuple[Manifest, ...], kind: str, name: str = "") -> Manifest:
    """Return the only manifest of a kind, or of a kind and name."""
    (found,) = [each for each in manifests if each["kind"] == kind and name in {"", each["metadata"]["name"]}]
    return found


def pods(profile: str) -> dict[str, Manifest]:
    """Return the pods, as metadata and spec: of the workers outside Spark, of executors and drivers."""
    return {
        "worker": the(cluster(profile), "StatefulSet")["spec"]["template"],
        "executor": executor(profile),
        "driver": executor(profile, "driver"),
    }


def write_files(profile: str, config_map: str, folder: Path) -> Path:
    """Write the files of a ConfigMap into a folder, which is made if it is missing; return the folder."""
    folder.mkdir(exist_ok=True)
    for name, text in the(cluster(profile), "ConfigMap", config_map)["data"].items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def containers(pod: Manifest) -> Iterator[Manifest]:
    """Yield all containers of a pod, in the order in which they start."""
    yield from pod["spec"].get("initContainers", [])
    yield from pod["spec"]["containers"]


def container(pod: Manifest, name: str = "tuplewire") -> Manifest:
    """Return a pod's container; by default the worker."""
    (found,) = [each for each in containers(pod) if each["name"] == name]
    return found


def variables(one: Manifest) -> dict[str, str]:
    """Return the environment of a container. A variable that the pod fills in has the value $(name)."""
    return {each["name"]: each.get("value", f"$({each['name']})") for each in one.get("env", [])}


def selects(selector: Manifest, labels: Manifest) -> bool:
    """Return True if a label selector (matchLabels, matchExpressions with In) matches these labels."""
    by_label = selector.get("matchLabels", {}).items() <= labels.items()
    return by_label and all(
        labels.get(each["key"]) in each["values"] for each in selector.get("matchExpressions", [])
    )


_UNITS = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
}
_UNITS |= {f"{prefix}i": Decimal(1024) ** power for power, prefix in enumerate("KMGT", 1)}
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)(m|k|M|G|Ki|Mi|Gi|Ti|)")
_PORT_NAME = re.compile(r"(?=.*[a-z])(?!.*--)[a-z0-9](?:[a-z0-9-]{0,13}[a-z0-9])?")
_PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


def quantity(text: str | float) -> Decimal:
    """Return a quantity in its base unit: cores, or bytes."""
    match = _QUANTITY.fullmatch(str(text))
    assert match, f"{text!r} is no quantity"
    return Decimal(match[1]) * _UNITS[match[2]]


def check_pod(pod: Manifest) -> None:
    """Fail if a pod would be rejected, or its containers could not start or would be unreachable."""
    _are_different([each["name"] for each in containers(pod)])
    _are_different([each["name"] for each in pod["spec"].get("volumes", [])])
    ports = [port for each in containers(pod) for port in each.get("ports", [])]
    _are_different([port["name"] for port in ports])
    _are_different([port["containerPort"] for port in ports])
    _mounts(pod)
    for each in containers(pod):
        _are_different([variable["name"] for variable in each.get("env", [])])
        _resources(each)
        _ports_and_probes(each)


def check_sidecar(pod: Manifest) -> None:
    """Fail unless the worker starts before, and stops after, all other containers."""
    first = next(containers(pod))
    assert first["name"] == "tuplewire"
    assert first in pod["spec"]["initContainers"]
    assert first["restartPolicy"] == "Always"
    # Readiness depends on the assignment, which arrives after the start of the executor.
    assert first["startupProbe"]["httpGet"]["path"] == "/livez"


def check_restricted(pod: Manifest, name: str) -> None:
    """Fail if a container exceeds Kubernetes' `restricted`, or is not user 185 (186 as a sidecar)."""
    context = container(pod, name)["securityContext"]
    assert context["allowPrivilegeEscalation"] is False
    assert context["runAsNonRoot"] is True
    beside = name == "tuplewire" and len(list(containers(pod))) > 1
    assert context["runAsUser"] == (186 if beside else 185)
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert pod["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["spec"]["securityContext"]["fsGroup"] == 185
    if pod["metadata"]["labels"]["app.kubernetes.io/component"] != "driver":  # which creates its executors
        assert pod["spec"]["automountServiceAccountToken"] is False


def mounted(one: Manifest, path: str) -> Manifest | None:
    """Return the mount of a container that contains a path, or None."""
    for mount in one.get("volumeMounts", []):
        if PurePosixPath(path).is_relative_to(mount["mountPath"]):
            return dict(mount)
    return None


def _are_different(names: Iterable[object]) -> None:
    names = list(names)
    assert len(names) == len(set(names)), names


def _mounts(pod: Manifest) -> None:
    volumes = {each["name"] for each in pod["spec"].get("volumes", [])}
    used = set()
    for each in containers(pod):
        mounts = each.get("volumeMounts", [])
        _are_different([mount["mountPath"] for mount in mounts])
        used |= {mount["name"] for mount in mounts}
    assert used == volumes


def _resources(one: Manifest) -> None:
    resources = one.get("resources", {})
    requests, limits = resources.get("requests", {}), resources.get("limits", {})
    for name, text in requests.items():
        assert quantity(text) > 0
        assert quantity(limits.get(name, text)) >= quantity(text), (one["name"], name)


def _ports_and_probes(one: Manifest) -> None:
    ports = {port["name"] for port in one.get("ports", [])}
    for name in ports:
        assert _PORT_NAME.fullmatch(name), name
    for probe in _PROBES:
        if probe in one:
            assert one[probe]["httpGet"]["port"] in ports


NEWEST = "newest"
VERSIONS = ("1.29", "1.32", NEWEST)
"""The oldest version with native sidecars by default, one between, and the newest version with a schema."""

_MODELS = {
    "monitoring.coreos.com/v1": "@kubernetes-models/prometheus-operator",
    "keda.sh/v1alpha1": "@kubernetes-models/keda",
}
"""The npm modules with the schemas of kinds that are not part of Kubernetes."""
_VALIDATE = """
import {{ readFileSync }} from "node:fs";
import * as kinds from "{models}/{version}";
const manifest = JSON.parse(readFileSync(0));
new kinds[manifest.kind](manifest).validate();
"""


def validate(manifest: Manifest, version: str) -> None:
    """Fail unless an object is valid for its kind. Kubernetes' own kinds also reject unknown fields."""
    if manifest["apiVersion"] in _MODELS:
        _validate_by_operator(manifest, _MODELS[manifest["apiVersion"]])
        return
    try:
        import kubernetes_validate
    except ImportError:
        missing("kubernetes-validate is missing; pip install kubernetes-validate, or make deploy-check")
    known = kubernetes_validate.latest_version() if version == NEWEST else version
    kubernetes_validate.validate(manifest, known, strict=True)


def _validate_by_operator(manifest: Manifest, models: str) -> None:
    node = require_tool("node", "Debian's package nodejs")
    modules = ROOT / "build" / "npm"
    if not (modules / "node_modules" / models).is_dir():
        missing(f"{models} is not in {modules}; make deploy-tools installs it")
    script = _VALIDATE.format(models=models, version=manifest["apiVersion"])
    run = ran(node, "--input-type=module", "--eval", script, cwd=modules, input=json.dumps(manifest))
    assert run.returncode == 0, run.stderr
