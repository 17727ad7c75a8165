"""The schemas of Kubernetes, in several versions, and of the operators of Prometheus and KEDA."""

from __future__ import annotations

import json

from helpers.manifests import Manifest
from helpers.tools import ROOT, missing, ran, require_tool

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
