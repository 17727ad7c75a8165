"""What the Spark has that is installed, from 3.5 on: the one place that asks.

It looks for each thing itself and not at the number, since vendors port back. What is missing is either done
another way here, or NeedsSparkError. data_source_api has the same for the classes of data sources.
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

_OTHER = "set PYSPARK_PYTHON to this program's Python before the session starts, or install tuplewire in both"
_ADMISSION = ("maxMessagesPerTrigger", "maxBytesPerTrigger", "minMessagesPerTrigger", "maxTriggerDelay")
"""Options of readStream that take a Spark which asks a source for so much and no more."""
_TIME_ZONE = "UTC"


class NeedsSparkError(ConfigError):
    """The Spark that is installed lacks what is asked for."""


def is_remote(spark: SparkSession) -> bool:
    """Whether a session is one of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def needs(what: str, first: str, instead: str) -> NeedsSparkError:
    """Return the error for what only Sparks from `first` on can do; instead: what the reader does now."""
    from pyspark import __version__ as installed

    return NeedsSparkError(f"{what} needs Spark {first}, this is {installed}: {instead}")


def has_data_sources() -> bool:
    """Whether a format can be written in Python at all: from 4.0 on."""
    return find_spec("pyspark.sql.datasource") is not None


def has_admission_control() -> bool:
    """Whether Spark tells a stream's reader where to begin and how much to read: from 4.2 on."""
    return find_spec("pyspark.sql.streaming.datasource") is not None


def check_data_sources() -> None:
    """Raise NeedsSparkError where .format("tuplewire") cannot be."""
    if not has_data_sources():
        raise needs(
            "the format tuplewire",
            "4.0",
            "use a ClientHandle in foreachBatch, foreachPartition or mapInArrow, or a newer Spark",
        )


def check_stream_options(options: Mapping[str, str]) -> None:
    """Raise NeedsSparkError for options of readStream that this Spark cannot heed."""
    given = {name.lower() for name in options}
    wanted = [name for name in _ADMISSION if name.lower() in given]
    if wanted and not has_admission_control():
        raise needs(
            f"the option {' and '.join(wanted)}",
            "4.2",
            "leave it out, and a trigger reads all that is there",
        )


def check_topology_session(spark: SparkSession, *, remote: bool) -> None:
    """Raise NeedsSparkError where a topology cannot run in a session: over Spark Connect before 4.0."""
    if remote and not hasattr(type(spark.range(0)), "localCheckpoint"):
        raise needs("a topology over Spark Connect", "4.0", "submit it from a program with a SparkContext")


def parse_schema(text: str) -> StructType:
    """Read columns as SQL writes them, `name type, name type`; TopologyError for anything else."""
    from pyspark.sql.types import StructType, _parse_datatype_string

    from_ddl = getattr(StructType, "fromDDL", _parse_datatype_string)  # not in 3.5
    parsed = from_ddl(text)
    if not isinstance(parsed, StructType):
        raise TopologyError(f"the schema {text!r} is no list of columns: write `name type, name type`")
    return parsed


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the columns in which mapInArrow takes rows of a schema; times are in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        return to_arrow_schema(schema, timezone=_TIME_ZONE)
    return to_arrow_schema(schema)  # before 4.3, always in UTC


def use_in_this_thread(spark: SparkSession) -> None:
    """Let the calling thread find what a session has registered; say where Spark runs another Python.

    The JVM looks formats up in the session of the thread that calls it. A new thread of a program has none.
    """
    session: Any = spark
    try:
        kind = session._get_j_spark_session_class(session._jvm)
    except AttributeError:  # before 4.1
        kind = session._jvm.SparkSession
    kind.setActiveSession(session._jsparkSession)
    python = shutil.which(spark.sparkContext.pythonExec)
    if python != sys.executable:
        extra = {"spark": python, "program": sys.executable, "reason": _OTHER}
        logger.warning("spark.other_python", extra=extra)


def inheritable_thread(
    spark: SparkSession, target: Callable[..., None], *arguments: Any, **settings: Any
) -> threading.Thread:
    """Return a thread with the caller's local properties, and over Spark Connect its tags; not started."""
    from pyspark import InheritableThread

    if "session" in inspect.signature(InheritableThread).parameters:  # not in 3.5
        settings["session"] = spark
    return InheritableThread(target, args=arguments, **settings)
