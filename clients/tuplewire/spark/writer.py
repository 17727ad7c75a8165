"""Batch and stream writers of the format `tuplewire`.

atLeastOnce: Spark's tasks send their rows; a task that Spark runs again sends them again. exactlyOnce: each
attempt stages its messages at the workers of their tasks, where consumers do not see them. Spark chooses one
attempt of each partition. The driver publishes these by name, as an epoch that each task gets once.
Used by Spark through data_source.py. Owns the name and the placement of one write, and a
temporary file for rows that are not yet checked. Not thread-safe. Design: docs/design/sinks.md.
"""

from __future__ import annotations

import os
import tempfile
import uuid
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import IO, TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from tuplewire.client import Client
from tuplewire.connection.task_owners import TaskOwners
from tuplewire.errors import (
    EpochTooLargeError,
    MessageError,
    PayloadTooLargeError,
    PermissionDeniedError,
    StaleEpochError,
    TaskNotLocalError,
    TuplewireError,
    UnknownTaskError,
    WrongTopologyError,
)
from tuplewire.session.pieces import frame_pieces
from tuplewire.settings.addresses import Peer, resolve_addresses
from tuplewire.settings.config import MIB
from tuplewire.spark.data_source_api import DataSourceStreamArrowWriter
from tuplewire.spark.options import FAIL, DeliveryGuarantee, SinkOptions
from tuplewire.spark.row_router import PIECE_BYTES, RowRouter, split_batches
from tuplewire.spark.staging import AttemptStager, Publisher, SinkWorkers
from tuplewire.spark.version_check import VersionChecked
from tuplewire.text.events import event_logger
from tuplewire.tracing import get_tracing
from tuplewire.values.batch import TaskMessageBatch
from tuplewire.wire.control_pb2 import StagedAttempt

if TYPE_CHECKING:
    from tuplewire.tracing.spans import Attributes

logger = event_logger(__name__)

_MAX_MEMORY_BYTES = 32 * MIB
_LOCAL_DIRS_VARIABLE = "SPARK_LOCAL_DIRS"
"""The variable with spark.local.dir for Spark's Python processes; directories are separated by commas."""
_QUERY_ID = "sql.streaming.queryId"
"""The property of a Spark task with the query's id, which is stored in the checkpoint."""
_BATCH_ID = "streaming.sql.batchId"
"""The property with the number of the micro-batch."""
_RUN_ID = "spark.jobGroup.id"
"""The property with the run of the query: it differs for each start."""
_NON_RETRYABLE = (
    MessageError,
    PayloadTooLargeError,
    UnknownTaskError,
    WrongTopologyError,
    PermissionDeniedError,
    StaleEpochError,
    EpochTooLargeError,
)
"""Errors that another attempt would also get. Spark makes four attempts after any error, and none after a
success. So these errors are returned to the driver, which raises them instead of committing."""


@dataclass
class PartitionResult(WriterCommitMessage):
    """The result of one attempt of one partition.

    Attributes:
        sink: The name of the streaming query, also after a restart, or of the batch write.
        staged: An encoded StagedAttempt for each worker, because Spark cannot pickle messages of protobuf;
            empty if the messages were sent.
        versions: The versions of the assignments from which the workers were taken.
        bad_row_count: The number of rows that could not be sent.
        failure: An error that another attempt would also get.
        run: The name of the query's run; empty: no other run publishes the staged messages.
    """

    sink: str
    staged: Mapping[Peer, bytes] = field(default_factory=dict)
    versions: frozenset[int] = frozenset()
    bad_row_count: int = 0
    failure: TuplewireError | None = None
    run: str = ""


class _WriterBase(VersionChecked):
    """The common base of both writers. default: the guarantee if the user has not chosen one."""

    def __init__(self, options: SinkOptions, default: DeliveryGuarantee) -> None:
        self._exactly_once = (options.delivery_guarantee or default) is DeliveryGuarantee.EXACTLY_ONCE
        if self._exactly_once:
            options = replace(options, address=resolve_addresses(options.address))
        self._options = options
        self._write_id = uuid.uuid4().hex
        self._start_owners: TaskOwners | None = None

    def _write(self, batches: Iterable[pa.RecordBatch], sink: str, epoch: int, run: str) -> PartitionResult:
        partition = _context().partitionId()
        try:
            with _partition_span(partition):
                if self._exactly_once:
                    return self._stage(batches, sink, epoch, run)
                return self._send(batches, sink)
        except _NON_RETRYABLE as error:
            return PartitionResult(sink, failure=error)

    def _send(self, batches: Iterable[pa.RecordBatch], sink: str) -> PartitionResult:
        """Send one partition, and wait until it is acknowledged.

        With badRows=fail, send rows only after all of them are checked; otherwise, as they arrive.
        """
        options = self._options
        context = _context()
        partition = context.partitionId()
        with SinkWorkers(options) as workers:
            router = RowRouter(options, partition, workers)
            # The incarnation grows with each attempt, so a newer attempt fences an older one that still runs.
            client = Client(
                workers.last_address,
                topology=options.topology,
                client_id=f"spark-{self._write_id}-{partition}",
                incarnation=context.taskAttemptId() + 1,
                credentials=options.credentials(),
                **options.session_settings(workers.max_message_bytes),
            )
            try:
                checked = router.check_rows(batches)
                if options.bad_rows == FAIL:
                    checked = buffered_until_checked(checked)
                groups = (group for rows in split_batches(checked) for group in router.to_groups(rows))
                for piece in (piece for group in groups for piece in frame_pieces(group, PIECE_BYTES)):
                    workers.retry_until_space(partial(client.send, TaskMessageBatch.from_groups([piece])))
                workers.retry_until_space(client.flush)
            except BaseException:
                client.close(timeout=0)  # drop unsent messages: the next attempt sends all again
                raise
        client.close()
        return PartitionResult(sink, bad_row_count=router.rejected.count)

    def _stage(self, batches: Iterable[pa.RecordBatch], sink: str, epoch: int, run: str) -> PartitionResult:
        options, partition = self._options, _context().partitionId()
        with AttemptStager(options, sink, epoch, partition, self._start_owners) as stager:
            try:
                router = RowRouter(options, partition, stager)
                for rows in split_batches(router.check_rows(batches)):
                    stager.add(router.to_groups(rows))
                staged = {peer: each.SerializeToString() for peer, each in stager.finish().items()}
            except BaseException:
                stager.abandon()
                raise
        return PartitionResult(sink, staged, frozenset(stager.versions), router.rejected.count, run=run)

    def _publish(self, epoch: int, messages: Iterable[WriterCommitMessage | None], *, repeats: bool) -> None:
        """Publish the chosen attempts, or raise an attempt's error. repeats: a restart may publish again."""
        results = [result for result in messages if isinstance(result, PartitionResult)]
        failures = [result.failure for result in results if result.failure is not None]
        for failure in failures[1:]:
            fields = {"sink": results[0].sink, "epoch": epoch, "reason": str(failure)}
            logger.error("sink.attempt_failed", extra=fields)
        if failures:
            raise failures[0]
        chosen: dict[Peer, list[StagedAttempt]] = {}
        for result in results:
            for peer, staged in result.staged.items():
                chosen.setdefault(peer, []).append(StagedAttempt.FromString(staged))
        if bad := sum(result.bad_row_count for result in results):
            fields = {"sink": results[0].sink, "epoch": epoch, "rows": bad, "policy": self._options.bad_rows}
            logger.warning("sink.bad_rows", extra=fields)
        if not chosen:
            return
        sink = results[0].sink
        versions = sorted(frozenset().union(*(result.versions for result in results)))
        with Publisher(self._options, sink, epoch, chosen, results[0].run) as publisher:
            # Attempts of different versions may have staged one task at two workers. A batch write is not
            # repeated, so all its attempts are checked before the first worker publishes.
            if len(versions) > 1 or not repeats:
                worker_counts = Counter(chain.from_iterable(publisher.check().values()))
                moved = sorted(task for task, workers in worker_counts.items() if workers > 1)
                if repeats and moved:
                    raise TaskNotLocalError(
                        f"task {', '.join(map(str, moved[:10]))} moved while epoch {epoch} was computed "
                        f"(assignment versions {versions[0]} to {versions[-1]}), and the previous worker "
                        "accepted no more, so its messages are at two workers. Nothing was published: start "
                        "the query again, to compute the epoch again"
                    )
            published = publisher.publish()
        extra = {"sink": sink, "epoch": epoch, "messages": published, "workers": len(chosen)}
        logger.info("sink.published", extra=extra)

    def _discard(self, epoch: int, messages: Iterable[WriterCommitMessage | None]) -> None:
        """Discard a failed epoch's staged messages; otherwise the next epoch drops them, or they expire."""
        results = [result for result in messages if isinstance(result, PartitionResult)]
        if not results:
            return
        with SinkWorkers(self._options, results[0].sink, epoch) as workers:
            for peer in {peer for result in results for peer in result.staged}:
                workers.discard(peer)


class TuplewireBatchWriter(_WriterBase, DataSourceArrowWriter):
    """Sends the rows of a DataFrame.

    Guarantee: if the write succeeds, the worker has acknowledged the message of every row. By default, a task
    that Spark runs again sends its rows again: at least once. With exactlyOnce, consumers see one attempt of
    each partition, and no row before all partitions are computed.
    """

    def __init__(self, options: SinkOptions) -> None:
        super().__init__(options, DeliveryGuarantee.AT_LEAST_ONCE)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PartitionResult:
        return self._write(iterator, f"spark-{self._write_id}", 0, run="")

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the staged rows, in the driver, after all partitions are complete."""
        self._publish(0, messages, repeats=False)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._discard(0, messages)


class TuplewireStreamWriter(_WriterBase, DataSourceStreamArrowWriter):
    """Publishes the rows of each micro-batch after it is computed; with atLeastOnce, tasks send their rows.

    Guarantee: consumers see exactly one attempt of each partition and micro-batch, for any failure and any
    number of attempts. If the driver fails while it publishes, the restarted driver publishes the micro-batch
    again. The workers then accept the missing part of it, also if tasks have moved. This holds while the
    workers run or drain, and if a row has the same task and content when it is computed again.

    Spark creates one writer for each micro-batch, in the driver.
    """

    def __init__(self, options: SinkOptions) -> None:
        super().__init__(options, DeliveryGuarantee.EXACTLY_ONCE)
        if self._exactly_once:
            # All attempts of the micro-batch stage a task at the same worker, even if the task moves.
            with SinkWorkers(self._options) as workers:
                workers.find_assigned(())
                self._start_owners = workers.owners

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PartitionResult:
        context = _context()
        query, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        assert query is not None, "Spark sets the query's id for a streaming query's tasks"  # noqa: S101
        assert batch is not None, "a streaming query's tasks know the micro-batch"  # noqa: S101
        run = context.getLocalProperty(_RUN_ID) or self._write_id
        return self._write(iterator, f"spark-{query}", int(batch), run)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._publish(batchId, messages, repeats=True)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._discard(batchId, messages)


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "write() runs in a Spark task"  # noqa: S101
    return context


@contextmanager
def _partition_span(partition: int) -> Iterator[None]:
    """Make a span `send` for an attempt to write a partition, if it is sampled."""
    tracing = get_tracing()
    if tracing is None or not tracing.should_sample():
        yield
        return
    attributes: Attributes = {"messaging.operation.type": "send", "tuplewire.spark.partition": partition}
    try:
        with tracing.use_span(tracing.start_span("send", f"partition {partition}", attributes)):
            yield
    finally:
        tracing.flush()  # Spark may kill a Python process when its task ends


# --- rows that wait until all of their attempt are checked ------------------------------------------


def buffered_until_checked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same batches, but only after the last one has arrived without an error.

    Batches over a bound on memory wait in an unnamed temporary file; they must have one schema. Raises
    OSError if the file cannot be written.
    """
    in_memory: deque[pa.RecordBatch] = deque()
    size = 0
    batches = iter(batches)
    for batch in batches:
        in_memory.append(batch)
        size += batch.nbytes
        if size >= _MAX_MEMORY_BYTES:
            break
    with ExitStack() as stack:
        rest = _spill_to_file(batches, stack)
        while in_memory:  # frees each batch once the caller has it
            yield in_memory.popleft()
        yield from rest


def _spill_to_file(batches: Iterator[pa.RecordBatch], stack: ExitStack) -> Iterator[pa.RecordBatch]:
    """Write batches into a file that is open until the stack is closed; return an iterator over them."""
    first = next(batches, None)
    if first is None:
        return iter(())
    directory = os.environ.get(_LOCAL_DIRS_VARIABLE, "").split(",")[0] or None
    with _explain_errors(directory):
        file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 - see the stack
        stack.callback(_close, file)
        stream = pa.ipc.new_stream(file, first.schema)
    for batch in chain([first], batches):
        with _explain_errors(directory):
            stream.write_batch(batch)
    with _explain_errors(directory):
        stream.close()
        file.seek(0)
    return iter(pa.ipc.open_stream(file))


def _close(file: IO[bytes]) -> None:
    """Close a file. Write errors were raised before."""
    with suppress(OSError):
        file.close()


@contextmanager
def _explain_errors(directory: str | None) -> Iterator[None]:
    """Add the purpose of the file to an error."""
    try:
        yield
    except OSError as error:
        raise OSError(
            error.errno,
            f"{error.strerror}: cannot buffer the rows of a partition; set "
            "spark.local.dir to a directory with free space, or badRows to `drop` or a task id",
            directory or tempfile.gettempdir(),
        ) from error
