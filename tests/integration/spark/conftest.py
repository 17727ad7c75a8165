"""The end of each test next to Spark: no Spark task, and no client of one, is left."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers.spark_calls import end_attempt

from tuplewire.spark.client_handle import close_clients


@pytest.fixture(autouse=True)
def _no_task_left() -> Iterator[None]:
    yield
    end_attempt()
    close_clients()
