"""What kustomize makes of deploy/kustomize, and Helm of the chart, as plain dicts."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from helpers.tools import ROOT, missing

Manifest = dict[str, Any]

KUSTOMIZE = ROOT / "deploy" / "kustomize"
OVERLAYS = ("dev", "mtls", "prod")
CHART = ROOT / "deploy" / "helm" / "tuplewire"
CHARTS = {"chart": (), "chart-plain": ("secure=false",)}
"""The chart with values that stand for an overlay."""
EVERYWHERE = (*OVERLAYS, *CHARTS)
_BUILT = ROOT / "build" / "bin" / "kustomize"
_HELM = ROOT / "build" / "bin" / "helm"


def _program() -> list[str | Path]:
    """Return what renders a folder; the one that the installer has built comes first: it was needed."""
    if kustomize := shutil.which(_BUILT) or shutil.which("kustomize"):
        return [kustomize, "build"]
    if kubectl := shutil.which("kubectl"):
        return [kubectl, "kustomize"]
    return missing("neither kubectl nor kustomize is there; deploy/install-tools.sh builds kustomize")


@functools.cache
def render(folder: str) -> tuple[Manifest, ...]:
    """Return what a folder below deploy/kustomize comes to."""
    command = [*_program(), KUSTOMIZE / folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return tuple(yaml.safe_load_all(done.stdout))


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run Helm; the one that the installer has built comes first."""
    program = shutil.which(_HELM) or shutil.which("helm")
    if program is None:
        missing("helm is not there; deploy/install-tools.sh builds it")
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False, timeout=60)


@functools.cache
def chart(*settings: str) -> tuple[Manifest, ...]:
    """Return what Helm makes of the chart with values, each as `a.b=c`."""
    flags = [f"--set={each}" for each in settings]
    done = helm("template", "a-release", CHART, *flags)
    assert done.returncode == 0, done.stderr
    return tuple(filter(None, yaml.safe_load_all(done.stdout)))


def cluster(overlay: str) -> tuple[Manifest, ...]:
    """Return what is applied to a cluster, of an overlay or of one of CHARTS."""
    return chart(*CHARTS[overlay]) if overlay in CHARTS else render(f"overlays/{overlay}")


def executor(overlay: str) -> Manifest:
    """Return Spark's template of an executor's pod."""
    if overlay in CHARTS:
        data = the(cluster(overlay), "ConfigMap", "tuplewire-executor-template")["data"]
        found: Manifest = yaml.safe_load(data["executor-template.yaml"])
        return found
    (template,) = render(f"overlays/{overlay}/executor")
    return template


def the(manifests: tuple[Manifest, ...], kind: str, name: str = "") -> Manifest:
    """Return the one of a kind, or of a kind and name."""
    (found,) = [each for each in manifests if each["kind"] == kind and name in {"", each["metadata"]["name"]}]
    return found


def pods(overlay: str) -> dict[str, Manifest]:
    """Return the pods, as metadata and spec: of the workers outside Spark, and of the executors."""
    return {"worker": the(cluster(overlay), "StatefulSet")["spec"]["template"], "executor": executor(overlay)}


def containers(pod: Manifest) -> Iterator[Manifest]:
    """Yield all containers of a pod, in the order in which they start."""
    yield from pod["spec"].get("initContainers", [])
    yield from pod["spec"]["containers"]


def container(pod: Manifest, name: str = "tuplewire") -> Manifest:
    """Return a pod's container; by default the worker."""
    (found,) = [each for each in containers(pod) if each["name"] == name]
    return found


def variables(one: Manifest) -> dict[str, str]:
    """Return the environment of a container; what the pod fills in is written $(name)."""
    return {each["name"]: each.get("value", f"$({each['name']})") for each in one.get("env", [])}


def selects(selector: Manifest, labels: Manifest) -> bool:
    """Whether a label selector (matchLabels, matchExpressions with In) takes something with these labels."""
    by_label = selector.get("matchLabels", {}).items() <= labels.items()
    return by_label and all(
        labels.get(each["key"]) in each["values"] for each in selector.get("matchExpressions", [])
    )
