"""The schemas of Kubernetes, in several versions, and those of Prometheus's operator."""

from __future__ import annotations

import json
import subprocess

from helpers.manifests import Manifest
from helpers.tools import ROOT, missing, require_tool

NEWEST = "newest"
VERSIONS = ("1.29", "1.32", NEWEST)
"""The oldest that has native sidecars by default, one between, and the newest that there is a schema of."""

_OPERATOR = "monitoring.coreos.com/v1"
_MODELS = "@kubernetes-models/prometheus-operator"
_VALIDATE = f"""
import {{ readFileSync }} from "node:fs";
import * as kinds from "{_MODELS}/{_OPERATOR}";
const manifest = JSON.parse(readFileSync(0));
new kinds[manifest.kind](manifest).validate();
"""


def validate(manifest: Manifest, version: str) -> None:
    """Fail unless an object is one of its kind; without unknown fields, where Kubernetes knows it."""
    if manifest["apiVersion"] == _OPERATOR:
        _validate_by_operator(manifest)
        return
    try:
        import kubernetes_validate
    except ImportError:
        missing("kubernetes-validate is missing; pip install kubernetes-validate, or make deploy-check")
    known = kubernetes_validate.latest_version() if version == NEWEST else version
    kubernetes_validate.validate(manifest, known, strict=True)


def _validate_by_operator(manifest: Manifest) -> None:
    node = require_tool("node", "Debian's package nodejs")
    modules = ROOT / "build" / "npm"
    if not (modules / "node_modules" / _MODELS).is_dir():
        missing(f"{_MODELS} is not in {modules}; make deploy-tools installs it")
    run = subprocess.run(
        [node, "--input-type=module", "--eval", _VALIDATE],
        cwd=modules,
        input=json.dumps(manifest),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
