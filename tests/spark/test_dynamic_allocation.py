"""A streaming query while dynamic allocation starts and stops executors, each with its worker."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(700)]

DRIVER = Path(__file__).with_name("allocation_driver.py")
DRIVER_SECONDS = 650.0


def test_executors_come_and_go_under_a_query(tmp_path: Path) -> None:
    """The query's source and sink follow the workers: each message arrives once, and in order per task."""
    driver = subprocess.run(
        [sys.executable, str(DRIVER)],
        check=True,
        cwd=tmp_path,
        input=json.dumps({"home": str(tmp_path)}),
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
        timeout=DRIVER_SECONDS,
    )
    found: dict[str, Any] = json.loads(driver.stdout.splitlines()[-1])
    assert found["got"] == [list(range(count)) for count in found["sent"]]
    assert len(found["exit codes"]) >= 3, "so many executors have gone"
    assert set(found["exit codes"]) == {0}, "their workers have dropped nothing"
