"""The page for Spark users: what it tells to paste runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parents[2] / "clients" / "SPARK.md"


@pytest.mark.long
def test_five_minutes(spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The blocks of the page, one after the other, in the session that is there."""
    page = PAGE.read_text(encoding="utf-8").replace("/tmp/", f"{tmp_path}/")  # noqa: S108 - the page's own
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(block, str(PAGE), "exec"), names)  # noqa: S102 - our own page
    assert names["spark"] is spark
    shown = capfd.readouterr().out
    for word in ("to", "be", "or", "not"):
        assert re.search(rf"\|\s*{word}\|", shown), shown
    assert "[54 4F]" in shown, "TO, as binary, in the last table"
    assert re.search(r"\|9\s*\|\{.*\}\|\d+\s*\|", shown), "clicks on page 9, by window"
