"""A fixture for the tests of a worker that they do not change."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers.worker_process import Running, running


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Run one worker without an assignment for the tests of a file that leave it as it is."""
    with running(tmp_path_factory.mktemp("shared")) as started:
        yield started
