"""The chart's values and their schema, made of the worker's own settings and of what the overlay prod has."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import yaml

from tuplewire.settings import FLAG, Setting, settings_of
from tuplewire_service.process.worker_config import WorkerConfig

FIXED = ("listen", "listen_unix", "admin", "state_file", "staging_directory")
"""Settings that ports, probes and mounts of the pods depend on."""
_OTHERS = {
    *FIXED,
    *("worker_id", "advertise", "assignment_file", "tasks", "address_file", "allow_plaintext"),
    *("program", "program_conf", "program_state_file", "permissions_file", "token_file"),
    *("tls_certificate", "tls_key", "tls_ca", "tls_worker_names", "session", "limits"),
}
"""Settings that the chart makes itself."""

_TEXT: dict[str, Any] = {"type": "string"}
_MAP: dict[str, Any] = {"type": "object"}

_VALUES = """\
# Made of deploy/kustomize by `make chart`. values.schema.json says what each may be; helm checks it.

image:
  repository: {repository}
  # Empty: the chart's version. A digest, sha256:..., comes before the tag.
  tag: ""
  digest: ""
  pullPolicy: IfNotPresent
  pullSecrets: []

# Certificates, tokens and permissions (docs/how-to/deploy.md has the Secrets). Without them
# whoever reaches the port is let in.
secure: true

# Who may do what, in TOML; empty: programs send and receive, drivers control. Read again when it changes.
permissions: ""

# worker.toml of every worker, by the names of docs/reference/settings.md. A change rolls the
# workers outside Spark, and counts for executors that start after it.
settings:
{settings}

# Workers outside Spark.
workers:
  replicas: {replicas}
  # What the memory was reckoned for (docs/how-to/tune.md).
  sizedFor: {sized_for}
  resources:
{resources}
  nodeSelector: {{}}
  tolerations: []
  affinity: {{}}

# The worker beside each executor of Spark: the ConfigMap tuplewire-executor-template.
executor:
  sizedFor: {executor_sized_for}
  resources:
{executor_resources}

# Who has which tasks, where no membership says: the tasks from 0 on, in equal parts; with a program
# by turns. Raise the version with every change. Read again when it changes. items: each worker's
# worker_id, address and tasks, in place of equal parts.
assignment:
  version: 1
  tasksPerWorker: 8
  items: []

# A program that assigns the tasks to the workers as these come and go.
membership:
  enabled: false
  # Tasks as 0-23 or 1,2,10-19.
  tasks: 0-23
  resources:
{membership_resources}
  nodeSelector: {{}}
  # A lost node is left after 15 s.
  tolerations:
    - {{key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 15}}
    - {{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 15}}
  affinity: {{}}

# Workers outside Spark that run a topology of your image: package.module:function. A change rolls them.
program:
  reference: ""
  # Its settings, by Storm's keys.
  conf: {{}}

# More and fewer workers: none, keda or hpa. Needs the membership.
autoscaling:
  kind: none
  min: 2
  max: 8
  # For keda.
  prometheus: http://prometheus.monitoring:9090

networkPolicy:
  enabled: true

# Kinds of the Prometheus operator, and a dashboard for Grafana.
monitoring:
  enabled: false
"""


def values(kustomize: Path) -> str:
    """Return values.yaml; what stands in the overlay prod is the default."""
    prod = kustomize / "overlays" / "prod"
    overlay = yaml.safe_load((prod / "kustomization.yaml").read_text(encoding="utf-8"))
    workers = yaml.safe_load((prod / "workers.yaml").read_text(encoding="utf-8"))["spec"]
    executor = yaml.safe_load((prod / "executor/resources.yaml").read_text(encoding="utf-8"))
    member = yaml.safe_load((kustomize / "components/membership/membership.yaml").read_text(encoding="utf-8"))
    settings = tomllib.loads((kustomize / "base/worker.toml").read_text(encoding="utf-8"))
    shown = {name: value for name, value in settings.items() if name not in _OTHERS}
    return _VALUES.format(
        repository=overlay["images"][0]["newName"],
        settings="\n".join(f"  {name}: {json.dumps(value)}" for name, value in shown.items()),
        replicas=workers["replicas"],
        sized_for=workers["template"]["metadata"]["annotations"]["tuplewire/sized-for"],
        resources=_yaml(workers["template"]["spec"]["containers"][0]["resources"]),
        executor_sized_for=executor["metadata"]["annotations"]["tuplewire/sized-for"],
        executor_resources=_yaml(executor["spec"]["initContainers"][0]["resources"]),
        membership_resources=_yaml(member["spec"]["template"]["spec"]["containers"][0]["resources"]),
    )


def _yaml(resources: dict[str, dict[str, str]]) -> str:
    return "\n".join(f"    {name}: {json.dumps(each)}" for name, each in resources.items())


def _closed(**properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _setting(each: Setting) -> dict[str, Any]:
    kinds: set[str] = set()
    types = each.kind.types if isinstance(each.kind.types, tuple) else (each.kind.types,)
    for one in types:
        kinds.add({bool: "boolean", int: "integer", float: "number"}.get(one, "string"))
    if not kinds & {"string"} and each.kind is not FLAG:
        kinds.add("string")  # a size has units, and every text is read as a flag's is
    if "number" in kinds:
        kinds.discard("integer")
    return {"type": [*sorted(kinds), "null"], "description": f"{each.help}. It is {each.kind.allowed}."}


def schema() -> dict[str, Any]:
    """Return values.schema.json. A setting has the worker's own words; what it may be the worker checks."""
    scheduled = {"nodeSelector": _MAP, "tolerations": {"type": "array"}, "affinity": _MAP}
    resources = _closed(requests=_MAP, limits=_MAP)
    known = settings_of(WorkerConfig)
    settings = {name: _setting(known[name]) for name in known if name not in _OTHERS}
    whole: dict[str, Any] = {"type": "integer", "minimum": 0}
    task = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
    worker = _closed(worker_id=_TEXT, address=_TEXT, tasks={"type": "array", "items": task})
    found = _closed(
        image=_closed(
            repository={"type": "string", "minLength": 1},
            tag=_TEXT,
            digest={"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
            pullPolicy={"enum": ["Always", "IfNotPresent", "Never"]},
            pullSecrets={"type": "array", "items": _closed(name=_TEXT)},
        ),
        secure={"type": "boolean"},
        permissions=_TEXT,
        settings=_closed(**settings),
        workers=_closed(replicas=whole, sizedFor=_TEXT, resources=resources, **scheduled),
        executor=_closed(sizedFor=_TEXT, resources=resources),
        assignment=_closed(
            version={"type": "integer", "minimum": 1},
            tasksPerWorker={"type": "integer", "minimum": 1},
            items={"type": "array", "items": worker},
        ),
        membership=_closed(
            enabled={"type": "boolean"},
            tasks={"type": "string", "pattern": "^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$"},
            resources=resources,
            **scheduled,
        ),
        program=_closed(reference={"type": "string", "pattern": "^([\\w./-]+:\\w+)?$"}, conf=_MAP),
        autoscaling=_closed(
            kind={"enum": ["none", "hpa", "keda"]},
            min={"type": "integer", "minimum": 1},
            max={"type": "integer", "minimum": 1},
            prometheus=_TEXT,
        ),
        networkPolicy=_closed(enabled={"type": "boolean"}),
        monitoring=_closed(enabled={"type": "boolean"}),
    )
    found["properties"]["global"] = _MAP  # Helm's own
    found["required"] = [name for name in found["properties"] if name != "global"]
    scales = {"properties": {"autoscaling": {"properties": {"kind": {"enum": ["hpa", "keda"]}}}}}
    follows = {"properties": {"membership": {"properties": {"enabled": {"const": True}}}}}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the chart tuplewire",
        "if": scales,
        "then": follows,
        **found,
    }
