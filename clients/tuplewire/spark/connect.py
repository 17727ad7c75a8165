"""What is a client of Spark Connect, and what it cannot do."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tuplewire.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def is_remote(spark: SparkSession) -> bool:
    """Whether a session is one of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def check_classic(spark: SparkSession, what: str) -> None:
    """Raise ConfigError when `what` is to run on a session of Spark Connect, and needs a SparkContext."""
    if is_remote(spark):
        raise ConfigError(
            f"{what} needs a SparkContext, which a session of Spark Connect does not have: give it a session "
            "of SparkSession.builder.master(...), or write it as a topology (run_topology): that runs on both"
        )


def check_no_remote() -> None:
    """Raise ConfigError when this process is a client of Spark Connect, or is to become one."""
    for variable in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"):
        if os.environ.get(variable):
            raise ConfigError(
                f"this process is a client of Spark Connect ({variable} is set), and can have no Spark of "
                "its own beside that: unset it, or start another process"
            )
