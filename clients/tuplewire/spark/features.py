"""The features of the installed Spark, from 3.5 on: all checks are here.

They check for the feature itself, not for the version, because vendors backport features. A missing feature
is replaced here, or raises UnsupportedSparkVersionError. data_source_api.py does the same for the classes of
data sources. Used by the format, executors.py and Spark topologies. Owns no state. Thread-safe.
See docs/how-to/spark.md.
"""

from __future__ import annotations

import inspect
import shutil
import sys
import threading
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from tuplewire.errors import ConfigError, TopologyError
from tuplewire.text.events import event_logger

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

logger = event_logger(__name__)

_HINT = "set PYSPARK_PYTHON to this program's Python before the session starts, or install tuplewire in both"
LIMIT_OPTIONS = ("maxMessagesPerTrigger", "maxBytesPerTrigger", "minMessagesPerTrigger", "maxTriggerDelay")
"""Options of readStream that need a Spark which passes a limit to its sources."""


class UnsupportedSparkVersionError(ConfigError):
    """The installed Spark lacks a required feature."""


def is_remote(spark: SparkSession) -> bool:
    """Return True for a session of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def unsupported(feature: str, first: str, instead: str) -> UnsupportedSparkVersionError:
    """Return the error for a feature of Spark `first` and later. instead: the advice for the user."""
    from pyspark import __version__ as installed

    return UnsupportedSparkVersionError(f"{feature} needs Spark {first}, this is {installed}: {instead}")


def has_admission_control() -> bool:
    """Return True if Spark passes a start and a limit to a stream's reader: from 4.2 on."""
    return find_spec("pyspark.sql.streaming.datasource") is not None


def check_stream_options(options: Mapping[str, str]) -> None:
    """Raise UnsupportedSparkVersionError for options of readStream that this Spark does not support."""
    names = {name.lower() for name in options}
    limits = [name for name in LIMIT_OPTIONS if name.lower() in names]
    if limits and not has_admission_control():
        raise unsupported(
            f"the option {' and '.join(limits)}", "4.2", "omit it: a trigger then reads all queued messages"
        )


def check_topology_session(spark: SparkSession) -> None:
    """Raise UnsupportedSparkVersionError if a session cannot run a topology: Spark Connect before 4.0."""
    if is_remote(spark) and not hasattr(type(spark.range(0)), "localCheckpoint"):
        raise unsupported("a topology on Spark Connect", "4.0", "submit it from a program with SparkContext")


def parse_schema(text: str) -> StructType:
    """Parse columns in SQL's form, `name type, name type`; raise TopologyError for anything else."""
    from pyspark.sql.types import StructType, _parse_datatype_string

    from_ddl = getattr(StructType, "fromDDL", _parse_datatype_string)  # not in 3.5
    parsed = from_ddl(text)
    if not isinstance(parsed, StructType):
        raise TopologyError(f"the schema {text!r} is not a list of columns: write `name type, name type`")
    return parsed


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema in which mapInArrow accepts rows of a schema; times are in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)  # before 4.3, always in UTC


def activate_session(spark: SparkSession) -> None:
    """Let the calling thread find the formats of a session; log a warning if Spark runs a different Python.

    The JVM looks up formats in the session of the calling thread. A new thread of a program has no session.
    """
    session: Any = spark
    try:
        kind = session._get_j_spark_session_class(session._jvm)
    except AttributeError:  # before 4.1
        kind = session._jvm.SparkSession
    kind.setActiveSession(session._jsparkSession)
    python = shutil.which(spark.sparkContext.pythonExec)
    if python != sys.executable:
        extra = {"spark_python": python, "program_python": sys.executable, "reason": _HINT}
        logger.warning("spark.python_mismatch", extra=extra)


def inheritable_thread(spark: SparkSession, target: Callable[[], None]) -> threading.Thread:
    """Return a new daemon thread, not started, with the caller's local properties or Spark Connect's tags."""
    from pyspark import InheritableThread

    with_session = "session" in inspect.signature(InheritableThread).parameters  # not in 3.5
    return InheritableThread(target, daemon=True, **({"session": spark} if with_session else {}))
