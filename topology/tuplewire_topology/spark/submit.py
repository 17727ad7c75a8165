"""Submits a topology to Spark. Source: Storm's `StormSubmitter`.

Used by programs and the demos. Owns no state. Thread-safe. Design: docs/design/topologies.md.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from tuplewire.errors import TopologyError
from tuplewire.settings.config import SessionSettings
from tuplewire.settings.settings import KEY_PREFIX, keys_of, unknown_error
from tuplewire.spark.executors import check_slots
from tuplewire.spark.features import check_topology_session, is_remote
from tuplewire.text.events import event_logger
from tuplewire_topology.authoring.description import Topology, schedule_evenly, with_ackers
from tuplewire_topology.authoring.topology_settings import TopologySettings
from tuplewire_topology.spark.member import Submission
from tuplewire_topology.spark.plan import RunToken, ensure_worker
from tuplewire_topology.spark.rows import Output, has_dead_letters, rows_spout
from tuplewire_topology.spark.topology import ProgressPrinter, SparkTopology, TopologyProgress, TopologyResult

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

logger = event_logger(__name__)

_CANCEL_SECONDS = 15.0


def submit_topology(
    spark: SparkSession,
    topology: Topology,
    *,
    conf: Mapping[str, Any] | None = None,
    outputs: Mapping[str, str | StructType | None] | None = None,
    rows: DataFrame | None = None,
    workers: Sequence[str] = (),
    name: str = "topology",
) -> SparkTopology:
    """Run a topology as a Spark job of `topology.workers` PySpark tasks, and return immediately.

    Guarantee: the result is from one generation. If a process is lost, Spark runs all PySpark tasks again
    from the start of the spouts, at most spark.stage.maxConsecutiveAttempts times. No message of an earlier
    generation reaches a later one or the result, but side effects of bolts on other systems are repeated.
    Errors of the user's code are final.

    Args:
        conf: Settings by Storm's keys, and the user's own.
        outputs: The bolts that return their default stream, each with a schema of its fields, or None for
            strings. Default: all bolts without subscribers.
        rows: The rows for a Rows spout.
        workers: Addresses that Spark's executors and this program reach. These workers serve only this
            topology while it runs. Default: each process uses the worker at its TUPLEWIRE_ADDRESS, or starts
            one with a token that only this program and its PySpark tasks have.

    Raises:
        ConfigError: Spark has too few slots for the PySpark tasks, or a setting is wrong.
        TopologyError: A schema or the rows do not match the topology.
        UnsupportedSparkVersionError: The session uses Spark Connect before 4.0.
        UnreachableError, LaunchError: A worker for this program does not answer, or cannot be started.
    """
    conf = dict(conf or {})
    settings = TopologySettings.from_conf(conf)
    for key in conf:  # on Spark, workers have their own settings, so only settings of sessions apply
        if key.startswith(KEY_PREFIX) and not key.startswith(SessionSettings.PREFIX):
            raise unknown_error(f"setting {key!r} of a topology on Spark", key, keys_of(SessionSettings))
    tracked = with_ackers(topology, settings.n_ackers)
    size = len(schedule_evenly(tracked, settings.workers))
    check_topology_session(spark)
    output = Output.of(topology, outputs, letters=has_dead_letters(topology, conf))
    input_frame = _input_frame(spark, topology, rows, size)
    check_slots(spark, size, f"topology {name!r}")
    run_id = uuid.uuid4().hex
    token = RunToken()
    with ExitStack() as stack:
        worker = None
        token_file = stack.enter_context(token.as_file())
        if workers or not is_remote(spark):  # otherwise Spark's machines may be unreachable for this program
            address = workers[0] if workers else None
            host = "127.0.0.1" if is_remote(spark) else spark.conf.get("spark.driver.host", "127.0.0.1")
            worker = stack.enter_context(ensure_worker(address, str(host), name, token_file))
        has_rows = rows is not None
        submission = Submission(
            name, run_id, tracked, conf, size, output, tuple(workers), worker, has_rows=has_rows, token=token
        )
        _check_picklable(submission)
        stage = input_frame.mapInArrow(submission, output.stage_schema(), barrier=True)
        checked = output.with_check(stage.repartition(size))  # see Output.with_check() for the shuffle
        # The checkpoint stores the rows, so that a use of the result does not run the topology again.
        run_job = partial(checked.localCheckpoint, eager=True)
        running = SparkTopology(spark, submission, run_job, stack, token_file)
        if running.watch_command:
            logger.info("topology.started", extra={"topology": name, "watch": running.watch_command})
        return running


def run_topology(
    spark: SparkSession,
    topology: Topology,
    *,
    conf: Mapping[str, Any] | None = None,
    outputs: Mapping[str, str | StructType | None] | None = None,
    rows: DataFrame | None = None,
    workers: Sequence[str] = (),
    name: str = "topology",
    progress: Callable[[TopologyProgress], None] | None = None,
) -> TopologyResult:
    """Submit a topology as submit_topology() does, wait until it has finished, and return its result.

    For other arguments and errors, see submit_topology() and SparkTopology.result(). An exception here, such
    as Ctrl-C, cancels the job (see SparkTopology.cancel()), and is raised again.

    Args:
        progress: Called with each update. The default prints the updates to standard error, and first a
            command that shows more. Over Spark Connect, updates need `workers` that this program reaches;
            otherwise `progress` raises ConfigError.
    """
    job = submit_topology(spark, topology, conf=conf, outputs=outputs, rows=rows, workers=workers, name=name)
    try:
        if progress is not None or job.can_control:
            job.listen(progress or ProgressPrinter(name, job.watch_command))
        return job.result()
    except BaseException:
        job.cancel()
        job.wait(_CANCEL_SECONDS)
        raise


def _check_picklable(submission: Submission) -> None:
    from pyspark import cloudpickle

    for component in submission.topology.components.values():
        try:
            cloudpickle.dumps(component)  # type: ignore[no-untyped-call]
        except Exception as error:
            raise TopologyError(
                f"{component.id!r} cannot be sent to Spark's executors: {error}; "
                "create in open() or prepare() objects that cannot be pickled"
            ) from error


def _input_frame(spark: SparkSession, topology: Topology, rows: DataFrame | None, members: int) -> DataFrame:
    """Return a DataFrame with a partition for each PySpark task."""
    spout = rows_spout(topology)
    if (spout is None) != (rows is None):
        raise TopologyError(
            "rows=... is for a Rows spout, and the topology has no such spout"
            if spout is None
            else f"{spout!r} emits the rows of a DataFrame: pass it as rows=..."
        )
    if rows is None or spout is None:
        return spark.range(0, members, 1, members)
    component = topology.component(spout)
    if not component.parallelism == component.n_tasks == members:
        raise TopologyError(
            f"{spout!r} has {component.n_tasks} tasks in {component.parallelism} executors, and there are "
            f"{members} PySpark tasks: give it an executor for each, as many as topology.workers"
        )
    fields = component.prototype.outputs
    if missing := [column for column in fields if column not in rows.columns]:
        known = ", ".join(rows.columns)
        raise TopologyError(f"{spout!r} emits {', '.join(missing)}, and the DataFrame has only {known}")
    return rows.select(*fields).repartition(members)  # one partition for each PySpark task
