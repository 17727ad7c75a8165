"""Writes the chart's templates, schema and files, made of deploy/kustomize; `make chart` runs it.

What the chart and the overlays have in common stands in deploy/kustomize alone. Here is what a chart has
beside it: which places are values, and under which value a component of kustomize counts.

    deploy/helm/make_chart.py DIRECTORY
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from chart_values import FIXED, schema, values
from templating import Block, Expression, template

ROOT = Path(__file__).resolve().parents[2]
KUSTOMIZE = ROOT / "deploy" / "kustomize"
COMPONENTS = KUSTOMIZE / "components"

SECURE = ".Values.secure"
MEMBERSHIP = ".Values.membership.enabled"
PROGRAM = ".Values.program.reference"
MONITORING = ".Values.monitoring.enabled"
KEDA = '(eq .Values.autoscaling.kind "keda")'
HPA = '(eq .Values.autoscaling.kind "hpa")'
POLICIES = ".Values.networkPolicy.enabled"

_CONDITIONS = {
    SECURE: ["mtls"],
    MEMBERSHIP: ["membership"],
    PROGRAM: ["program"],
    KEDA: ["autoscaling/keda"],
    HPA: ["autoscaling/hpa"],
}
_HEAD = "{{- /* Made of deploy/kustomize by `make chart`; change it there. */ -}}"
_NAMES = {"tuplewire-worker-config": "tuplewire-config", "tuplewire-program": "tuplewire-program"}
"""What kustomize ends in a hash of what it holds, and how the chart calls it, which has checksums."""
_IMAGE = Expression('{{ include "tuplewire.image" . | quote }}')

Manifest = dict[str, Any]
Manifests = dict[tuple[str, str], Manifest]


def render(resource: str, components: Sequence[str]) -> Manifests:
    """Return what kustomize makes of a folder with components, by kind and name."""
    folder = ROOT / "build" / "chart" / "-".join([resource, *components]).replace("/", "-")
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [f"../../../deploy/kustomize/{resource}"],
        "components": [f"../../../deploy/kustomize/components/{each}" for each in components],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    built = ROOT / "build" / "bin" / "kustomize"
    program = shutil.which(built) or shutil.which("kustomize")
    command = [program, "build"] if program else ["kubectl", "kustomize"]
    done = subprocess.run([*command, folder], capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        sys.exit(done.stderr)
    shutil.rmtree(folder)
    return {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(done.stdout)}


# --- places that are values ---------------------------------------------------------------------------


def _pod(pod: Manifest, values_of: str, container: Manifest) -> None:
    container["image"] = _IMAGE
    container["imagePullPolicy"] = Expression("{{ .Values.image.pullPolicy }}")
    container["resources"] = Block(f"toYaml .Values.{values_of}.resources")
    for volume in pod["spec"].get("volumes", []):
        name = volume.get("configMap", {}).get("name", "")
        for begin, called in _NAMES.items():
            if name.startswith(begin):
                volume["configMap"]["name"] = called


def _scheduled(pod: Manifest, values_of: str) -> None:
    pod["spec"]["imagePullSecrets"] = Block("toYaml .Values.image.pullSecrets")
    for key in ("nodeSelector", "tolerations", "affinity"):
        pod["spec"][key] = Block(f"toYaml .Values.{values_of}.{key}")


def with_values(manifests: Manifests) -> Manifests:
    """Put expressions of Helm's where the chart has values; in place."""
    for (kind, _), manifest in manifests.items():
        if kind == "StatefulSet":
            _stateful_set(manifest)
        elif kind == "Deployment":
            _deployment(manifest)
        elif kind == "Pod":
            worker = manifest["spec"]["initContainers"][0]
            _pod(manifest, "executor", worker)
            manifest["metadata"]["annotations"]["tuplewire/sized-for"] = Expression(
                "{{ .Values.executor.sizedFor | quote }}"
            )
        elif kind == "ScaledObject":
            manifest["spec"]["minReplicaCount"] = Expression("{{ .Values.autoscaling.min }}")
            manifest["spec"]["maxReplicaCount"] = Expression("{{ .Values.autoscaling.max }}")
            for trigger in manifest["spec"]["triggers"]:
                address = Expression("{{ .Values.autoscaling.prometheus | quote }}")
                trigger["metadata"]["serverAddress"] = address
        elif kind == "HorizontalPodAutoscaler":
            manifest["spec"]["minReplicas"] = Expression("{{ .Values.autoscaling.min }}")
            manifest["spec"]["maxReplicas"] = Expression("{{ .Values.autoscaling.max }}")
    return manifests


def _stateful_set(manifest: Manifest) -> None:
    spec = manifest["spec"]
    if "replicas" in spec:
        spec["replicas"] = Expression("{{ .Values.workers.replicas }}")
    pod = spec["template"]
    worker = pod["spec"]["containers"][0]
    _pod(pod, "workers", worker)
    _scheduled(pod, "workers")
    pod["spec"]["topologySpreadConstraints"] = _spread()
    pod["spec"]["terminationGracePeriodSeconds"] = Expression(
        "{{ add (int (ceil .Values.settings.drain_seconds)) 5 }}"
    )
    notes = pod["metadata"]["annotations"]
    notes["tuplewire/sized-for"] = Expression("{{ .Values.workers.sizedFor | quote }}")
    # What is read at the start only: a change of it rolls the workers.
    notes["checksum/settings"] = Expression('{{ include "tuplewire.settings" . | sha256sum }}')
    arguments = worker["args"]
    for index, text in enumerate(arguments):
        if text.startswith("--program="):
            arguments[index] = Expression('{{ printf "--program=%s" .Values.program.reference | quote }}')
            notes["checksum/program"] = Expression("{{ .Values.program.conf | toJson | sha256sum }}")


def _deployment(manifest: Manifest) -> None:
    pod = manifest["spec"]["template"]
    _pod(pod, "membership", pod["spec"]["containers"][0])
    _scheduled(pod, "membership")
    arguments = pod["spec"]["containers"][0]["args"]
    for index, text in enumerate(arguments):
        name = text.partition("=")[0]
        if name == "--tasks":
            arguments[index] = Expression('{{ printf "--tasks=%s" .Values.membership.tasks | quote }}')
        elif name == "--topology":
            arguments[index] = Expression('{{ printf "--topology=%s" .Values.settings.topology | quote }}')


def _spread() -> list[Manifest]:
    """Return how the overlay prod keeps workers apart."""
    patch = yaml.safe_load((KUSTOMIZE / "overlays/prod/workers.yaml").read_text(encoding="utf-8"))
    constraints: list[Manifest] = patch["spec"]["template"]["spec"]["topologySpreadConstraints"]
    return constraints


# --- the templates --------------------------------------------------------------------------------------


def _document(plain: Manifest, changed: Mapping[str, Manifest], guards: Sequence[str]) -> str:
    differing = {condition: other for condition, other in changed.items() if other != plain}
    text = "\n".join(template(plain, differing))
    for guard in reversed(guards):
        text = f"{{{{- if {guard} }}}}\n{text}\n{{{{- end }}}}"
    return f"{_HEAD}\n{text}\n"


def templates() -> dict[str, str]:
    """Return the templates that come of manifests, by the names of their files."""
    plain = with_values(render("base", []))
    changed = {
        condition: with_values(render("base", components)) for condition, components in _CONDITIONS.items()
    }
    found = {}
    for (kind, name), manifest in plain.items():
        if kind == "ConfigMap":
            continue  # of values: the chart's own templates
        others = {condition: those[kind, name] for condition, those in changed.items()}
        found[_file(kind, name)] = _document(manifest, others, _guards(kind))
    secure = with_values(render("base", ["membership", "mtls", "membership/mtls"]))
    for condition, those in changed.items():
        for (kind, name), manifest in those.items():
            if (kind, name) in plain or kind == "ConfigMap":
                continue
            others = {SECURE: secure[kind, name]} if condition == MEMBERSHIP else {}
            found[_file(kind, name)] = _document(manifest, others, [condition, *_guards(kind)])
    found["executor-template.yaml"] = _executor_template()
    budget = KUSTOMIZE / "overlays" / "prod" / "poddisruptionbudget.yaml"
    monitor = COMPONENTS / "monitoring" / "podmonitor.yaml"
    for path, guards in ((budget, []), (monitor, [MONITORING])):
        found[path.name] = _document(yaml.safe_load(path.read_text(encoding="utf-8")), {}, guards)
    return found


def _guards(kind: str) -> list[str]:
    return [POLICIES] if kind == "NetworkPolicy" else []


def _file(kind: str, name: str) -> str:
    return f"{name.removeprefix('tuplewire').strip('-') or 'tuplewire'}-{kind.lower()}.yaml"


def _executor_template() -> str:
    (plain,) = with_values(render("base/executor", [])).values()
    (secure,) = with_values(render("base/executor", ["mtls/executor"])).values()
    lines = template(plain, {SECURE: secure}, indent=4)
    head = [
        _HEAD,
        "# Not for the cluster: Spark makes its executors of this.",
        "apiVersion: v1",
        "kind: ConfigMap",
        "metadata:",
        "  name: tuplewire-executor-template",
        "  labels:",
        "    app.kubernetes.io/name: tuplewire",
        "data:",
        "  executor-template.yaml: |",
    ]
    return "\n".join([*head, *lines]) + "\n"


def settings_template() -> str:
    """Return what makes worker.toml of values: what pods and ports depend on is fixed."""
    plain = tomllib.loads((KUSTOMIZE / "base/worker.toml").read_text(encoding="utf-8"))
    secure = tomllib.loads((COMPONENTS / "mtls/worker.toml").read_text(encoding="utf-8"))
    fixed = [f"{name} = {json.dumps(plain[name])}" for name in FIXED]
    only_secure = [f"{name} = {json.dumps(secure[name])}" for name in secure if name not in plain]
    only_plain = [f"{name} = {json.dumps(plain[name])}" for name in plain if name not in secure]
    lines = [
        _HEAD,
        '{{- define "tuplewire.settings" -}}',
        *fixed,
        "{{- range $name, $value := .Values.settings }}",
        '{{- if not (kindIs "invalid" $value) }}',
        "{{ $name }} = {{ $value | toJson }}",
        "{{- end }}",
        "{{- end }}",
        f"{{{{- if {SECURE} }}}}",
        *only_secure,
        "{{- else }}",
        *only_plain,
        "{{- end }}",
        "{{- end }}",
    ]
    return "\n".join(lines) + "\n"


def write(chart: Path) -> None:
    """Write everything that is made into a chart's folder."""
    made = {f"templates/{name}": text for name, text in templates().items()}
    made["templates/_settings.tpl"] = settings_template()
    made["values.yaml"] = values(KUSTOMIZE)
    made["values.schema.json"] = json.dumps(schema(), indent=2) + "\n"
    for name, path in {
        "permissions.toml": COMPONENTS / "mtls/permissions.toml",
        "prometheusrule.yaml": COMPONENTS / "monitoring/prometheusrule.yaml",
        "tuplewire.json": COMPONENTS / "monitoring/tuplewire.json",
    }.items():
        made[f"files/{name}"] = path.read_text(encoding="utf-8")
    for name, text in made.items():
        path = chart / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
