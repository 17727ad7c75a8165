"""Workers next to executors that Spark decommissions and starts, and the tasks that follow them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tuplewire.errors import ConfigError
from tuplewire.spark import membership

pytestmark = pytest.mark.spark


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.long
def test_executors_come_and_go(drive: Any, tmp_path: Path) -> None:
    """A decommissioned executor loses no message, and the executor that follows gets its share of tasks."""
    settings = json.dumps({"home": str(tmp_path)})
    printed = drive("membership_driver.py", tmp_path, timeout=240, given=settings)
    found: dict[str, Any] = dict(map(json.loads, printed))
    assert found["start"] == {"executor-0": 4, "executor-1": 4}
    assert found["names"] == ["executor 0", "executor 1"]
    assert found["go on"] == ["1"]
    assert found["later"] == {"executor-1": 4, "executor-2": 4}
    assert found["queued"] == found["sent"] == 2 * 8 * 500
    assert found["ended"] == [0]
    assert found["version"]


def test_local_mode_has_no_executors(spark: SparkSession) -> None:
    """Without executors, the error names the option to use instead."""
    with pytest.raises(ConfigError, match="workers="):
        membership(spark, range(4))
