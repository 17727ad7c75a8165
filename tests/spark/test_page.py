"""The pages for Spark users: their blocks run in one fresh Python process, to the end."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.pasted import PASTED_ON_SPARK, check, paste

from tuplewire_demos.local_session import find_java, wrapped_home

_SECONDS = 540.0


def environment(directory: Path) -> dict[str, str]:
    """Return the environment that a page's Spark needs here."""
    return {
        "JAVA_HOME": str(wrapped_home(find_java(), directory)),
        # Spark gives its Python 15 s to respond, which may not be enough on a busy machine.
        "PYSPARK_SUBMIT_ARGS": "--conf spark.python.authenticate.socketTimeout=120s pyspark-shell",
    }


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(600)
def test_pasted_into_a_fresh_session(tmp_path: Path) -> None:
    """Every block of both pages runs when pasted in order; the first block creates the session."""
    check(PASTED_ON_SPARK, paste(PASTED_ON_SPARK.pages, tmp_path, _SECONDS, environment(tmp_path / "java")))
