"""What the checks of production share: the image, built once."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.image import build_image, unpack
from helpers.tools import ROOT


@pytest.fixture(scope="session")
def image() -> Path:
    """Build the image, and return its OCI layout."""
    layout = ROOT / "build" / "image" / "oci"
    build_image(layout)
    return layout


@pytest.fixture(scope="session")
def bundle(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack the image, and return what an OCI runtime starts; tests leave it as it is."""
    unpacked = tmp_path_factory.mktemp("image") / "bundle"
    unpack(image, unpacked)
    return unpacked
