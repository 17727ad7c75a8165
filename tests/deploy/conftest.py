"""What the checks of production share: the image, built once."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.image import build_image, unpack
from helpers.tools import ROOT


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep a file's tests together where several run at a time, and those of the image: it is built once."""
    for item in items:
        needs_image = "image" in getattr(item, "fixturenames", ())
        item.add_marker(pytest.mark.xdist_group("image" if needs_image else item.path.stem))


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
