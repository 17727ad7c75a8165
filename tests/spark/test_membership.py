"""Workers next to executors that Spark decommissions and starts, and the tasks that follow them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tuplewire.errors import ConfigError
from tuplewire.spark import membership

pytestmark = pytest.mark.spark

DRIVER = Path(__file__).with_name("membership_driver.py")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.long
def test_executors_come_and_go(tmp_path: Path) -> None:
    """A decommissioned executor loses no message, and the executor that follows gets its share of tasks."""
    driver = subprocess.run(
        [sys.executable, str(DRIVER)],
        check=True,
        cwd=tmp_path,
        input=json.dumps({"home": str(tmp_path)}),
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
        timeout=240,
    )
    found: dict[str, Any] = dict(json.loads(line) for line in driver.stdout.splitlines())
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
