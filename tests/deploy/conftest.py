"""Fixtures for the deployment tests: the image, built once per run."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest
from helpers.container import build_image, unpack
from helpers.tools import ROOT


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the image, once for all processes that run tests, and return its OCI layout."""
    layout = ROOT / "build" / "image" / "oci"
    layout.parent.mkdir(parents=True, exist_ok=True)
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    built = tmp_path_factory.getbasetemp().parent / f"image-{run}"
    with (layout.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            build_image(layout)
            built.touch()
    return layout


@pytest.fixture(scope="session")
def bundle(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack the image, and return the bundle that an OCI runtime starts. Tests must not change it."""
    unpacked = tmp_path_factory.mktemp("image") / "bundle"
    unpack(image, unpacked)
    return unpacked
