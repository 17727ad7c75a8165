"""Fixtures shared by the tests of the published files."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.packaging import ROOT, build_wheel


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from the source tree."""
    return build_wheel(ROOT, tmp_path_factory.mktemp("wheel"))
