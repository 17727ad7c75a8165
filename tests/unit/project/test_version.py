"""All files contain the same version as clients/tuplewire/__init__.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tuplewire

ROOT = Path(__file__).parents[3]
PLACES = {
    "CHANGELOG.md": r"^## (\d\S+), unreleased$|^## (\d\S+), \d{4}-\d\d-\d\d$",
    "docs/how-to/deploy.md": r"registry\.example/tuplewire:(\d\S+)",
    "deploy/build-image.sh": r"docker://\S+/tuplewire:(\d\S+)",
    "deploy/helm/tuplewire/Chart.yaml": r"^(?:appVersion|version): \"?([^\s\"]+)",
    "deploy/manifests.yaml": r"image: \"registry.example.com/tuplewire:(\S+)\"",
    "deploy/prometheus/rules_test.yml": r"tuplewire_build_info\{.*?version=\"([^\"]+)\"",
}


@pytest.mark.parametrize("place", PLACES)
def test_the_version_is_the_same(place: str) -> None:
    """Every file has the package's version, and the changelog starts with it."""
    found = re.findall(PLACES[place], (ROOT / place).read_text(encoding="utf-8"), re.MULTILINE)
    versions = ["".join(each) for each in found]
    assert versions, f"{place} does not name the version"
    assert set(versions[:1] if place == "CHANGELOG.md" else versions) == {tuplewire.__version__}
