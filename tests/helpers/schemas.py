"""The schemas of Kubernetes, in several versions."""

from __future__ import annotations

from helpers.manifests import Manifest
from helpers.tools import missing

NEWEST = "newest"
VERSIONS = ("1.29", "1.32", NEWEST)
"""The oldest that has native sidecars by default, one between, and the newest that there is a schema of."""


def validate(manifest: Manifest, version: str) -> None:
    """Fail unless an object is one of its kind, without unknown fields."""
    try:
        import kubernetes_validate
    except ImportError:
        missing("kubernetes-validate is missing; pip install kubernetes-validate, or make deploy-check")
    known = kubernetes_validate.latest_version() if version == NEWEST else version
    kubernetes_validate.validate(manifest, known, strict=True)
