"""What the checks of production share: the image, built once."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.image import build_image, unpack


@pytest.fixture(scope="session")
def image() -> Path:
    """Build the image, and return its OCI layout."""
    return build_image()


@pytest.fixture(scope="session")
def bundle(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack the image, and return what an OCI runtime starts; tests leave it as it is."""
    unpacked = tmp_path_factory.mktemp("image") / "bundle"
    unpack(image, unpacked)
    return unpacked
