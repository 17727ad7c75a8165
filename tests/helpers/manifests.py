"""The chart's manifests, rendered by Helm, as plain dicts."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from helpers.tools import ROOT, missing, ran

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
