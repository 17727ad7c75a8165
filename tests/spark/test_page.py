"""The page for Spark users: what it tells to paste runs, in one fresh Python, to its end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tuplewire_demos.java import find_java, wrapped_home

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parents[2] / "clients" / "SPARK.md"
SECONDS = 540.0
_PASTED = """
import sys
for block in sys.stdin.read().split("\\0"):
    exec(compile(block, "<pasted>", "exec"))
"""
"""A Python that gets one block after the other, as the cells of a notebook; it ends with the first error."""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_pasted_into_a_fresh_session(tmp_path: Path) -> None:
    """Every block of the page, one after the other, as a person pastes them; the first makes the session."""
    page = PAGE.read_text(encoding="utf-8").replace("/tmp/", f"{tmp_path}/")  # noqa: S108 - the page's own
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    activated = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ran = subprocess.run(
        [sys.executable, "-c", _PASTED],
        input="\0".join(blocks),
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": activated,
            "JAVA_HOME": str(wrapped_home(find_java())),
            # Spark gives its Python 15 s to answer, which a busy machine may need.
            "PYSPARK_SUBMIT_ARGS": "--conf spark.python.authenticate.socketTimeout=120s pyspark-shell",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert ran.returncode == 0, ran.stderr
    for word in ("to", "be", "or", "not"):
        assert re.search(rf"\|\s*{word}\|", ran.stdout), ran.stdout
    assert "[54 4F]" in ran.stdout, "TO, as binary, in the last table of the five minutes"
    assert re.search(r"\|\s*be\|\s*2\|", ran.stdout), "the topology's counts"
    assert re.search(r"\|9\s*\|\{.*\}\|\d+\s*\|", ran.stdout), "clicks on page 9, by window"
