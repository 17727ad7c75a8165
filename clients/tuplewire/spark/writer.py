"""Batch and stream writers of the format `tuplewire`.

Two ways. Sent as it is computed: at least once, since a task that Spark runs again sends again. Or staged:
each attempt hands its messages to the workers of their tasks, where nobody sees them. Spark chooses one
attempt of each partition, and the driver has those published, by name, as an epoch that tasks get once.
"""

from __future__ import annotations

import dataclasses
import logging
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
from pyspark import TaskContext

from tuplewire.addresses import resolve_address
from tuplewire.client import Client
from tuplewire.config import MIB
from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import NotLocalError, TuplewireError
from tuplewire.group import TaskGroup
from tuplewire.message import TaskMessageBatch
from tuplewire.spark.columns import travelling
from tuplewire.spark.data_source_api import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from tuplewire.spark.options import GroupingName, SinkOptions
from tuplewire.spark.shipped import Shipped
from tuplewire.spark.stages import AttemptStage, Publisher, StagedPart
from tuplewire.spark.task_workers import At, check_topology
from tuplewire.topology.grouping import GroupingContext, SingleGrouping, fields, shuffle
from tuplewire.topology.load_aware import LoadAwareShuffle
from tuplewire.wire.control_pb2 import StagedAttempt

logger = logging.getLogger(__name__)

_PIECE_BYTES = 8 * MIB
_QUERY_ID = "sql.streaming.queryId"
"""The property by which Spark tells its tasks; it is kept in the checkpoint."""
_BATCH_ID = "streaming.sql.batchId"
"""The same for the micro-batch."""
_REFRESH_SECONDS = 1.0
_LOAD_SECONDS = 1.0


@dataclass
class Part(WriterCommitMessage):
    """What one attempt of one partition has to say: how much it has sent, or where it has staged how much.

    sink: names the streaming query, also after a restart, or the batch write. attempt: its name where it has
    staged. versions: those of the assignment by which it has found the workers.
    """

    sink: str
    partition: int
    attempt: str
    messages: int
    staged: Sequence[StagedPart] = ()
    versions: frozenset[int] = frozenset()


class TuplewireBatchWriter(Shipped, DataSourceArrowWriter):
    """Sends the rows of a DataFrame.

    Guarantee: when the write has succeeded, the worker has acknowledged every row's message. With atomic,
    exactly one attempt of each partition is seen, and nothing before all of them are computed. Without it, a
    task that Spark runs again sends again: at least once.
    """

    def __init__(self, options: SinkOptions) -> None:
        if options.atomic:
            options = dataclasses.replace(options, address=resolve_address(options.address))
        self._options = options
        self._write_id = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Part:
        """Send one partition, or gather it; in a Spark task."""
        if self._options.atomic:
            return _staged(self._options, f"spark-{self._write_id}", 0, iterator)
        return self._sent(iterator)

    def _sent(self, batches: Iterable[pa.RecordBatch]) -> Part:
        options = self._options
        context = _context()
        partition, attempt = context.partitionId(), context.taskAttemptId()
        _check_worker(options)
        router = RowRouter(options, partition)
        count = 0
        # A newer attempt fences an older one off that still runs.
        client = Client(
            options.address,
            topology=options.topology,
            client_id=f"spark-{self._write_id}-{partition}",
            incarnation=attempt + 1,
        )
        try:
            for rows in sliced(batches):
                for group in router.groups(rows):
                    for piece in group.split(_PIECE_BYTES) if group.size_bytes > _PIECE_BYTES else (group,):
                        client.send(TaskMessageBatch.from_groups([piece]), timeout=options.timeout)
                count += rows.num_rows
            client.flush(options.timeout)
        except BaseException:
            client.close(timeout=0)  # what was not sent yet is the next attempt's
            raise
        client.close()
        return Part(self._write_id, partition, str(attempt), count)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish what was staged; in the driver, once all partitions are there."""
        _publish(self._options, 0, messages, repeated=False)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Throw away what was staged, where that is possible; in the driver."""
        _discard(self._options, 0, messages)


class TuplewireStreamWriter(Shipped, DataSourceStreamArrowWriter):
    """Publishes the rows of each micro-batch, once it is computed.

    Guarantee: of each partition and micro-batch exactly one attempt is seen, whatever fails, however many
    attempts Spark makes, and also when the driver dies while it publishes: it then publishes the micro-batch
    again, and the workers take what they lack of it. This holds while a task's worker lives and the task does
    not move, and where a row goes to the same task when it is computed again.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = dataclasses.replace(options, address=resolve_address(options.address))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Part:
        """Stage one partition; in a Spark task."""
        context = _context()
        query, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        assert query is not None, "a streaming query's tasks know its id"  # noqa: S101
        assert batch is not None, "a streaming query's tasks know the micro-batch"  # noqa: S101
        return _staged(self._options, f"spark-{query}", int(batch), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish the micro-batch; in the driver."""
        _publish(self._options, batchId, messages, repeated=True)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Throw away what was staged, where that is possible; in the driver."""
        _discard(self._options, batchId, messages)


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "write() runs in a Spark task"  # noqa: S101
    return context


def _check_worker(options: SinkOptions) -> None:
    """Raise UnreachableError or WrongTopologyError at once, and not once a queue is full or a flush late."""
    with ControlClient(options.address, timeout=options.timeout) as control:
        control.wait_ready(options.timeout)
        check_topology(control.address, control.status().topology, options.topology)


def _staged(options: SinkOptions, sink: str, epoch: int, batches: Iterable[pa.RecordBatch]) -> Part:
    partition = _context().partitionId()
    router = RowRouter(options, partition)
    count = 0
    with AttemptStage(
        resolve_address(options.address), options.topology, options.timeout, sink, epoch, partition
    ) as stage:
        try:
            for rows in sliced(batches):
                stage.add(router.groups(rows))
                count += rows.num_rows
            staged = stage.end()
        except BaseException:
            stage.abandon()
            raise
        return Part(sink, partition, stage.attempt, count, staged, frozenset(stage.versions))


def _publish(
    options: SinkOptions, epoch: int, messages: Iterable[WriterCommitMessage | None], *, repeated: bool
) -> None:
    """Publish the chosen attempts. repeated: whether a driver that comes back publishes the epoch again."""
    parts = [part for part in messages if isinstance(part, Part)]
    chosen: dict[At, list[StagedAttempt]] = {}
    for part in parts:
        for at in part.staged:
            named = StagedAttempt(
                partition=part.partition, attempt=part.attempt, messages=at.messages, pieces=at.pieces
            )
            chosen.setdefault((at.address, at.worker_id), []).append(named)
    if not chosen:
        return
    sink = parts[0].sink
    versions = sorted(frozenset().union(*(part.versions for part in parts)))
    with Publisher(resolve_address(options.address), options.topology, options.timeout) as publisher:
        if len(versions) > 1 or not repeated:
            moved = publisher.check(sink, epoch, chosen)
            if repeated and moved:
                raise NotLocalError(
                    f"task {', '.join(map(str, moved[:10]))} moved while epoch {epoch} was computed "
                    f"(assignment versions {versions[0]} to {versions[-1]}), so that its messages are at two "
                    "workers. Nothing was published: start the query again, to compute the epoch again"
                )
        published = publisher.publish(sink, epoch, chosen)
    extra = {"sink": sink, "epoch": epoch, "messages": published, "workers": len(chosen)}
    logger.info("spark.published", extra=extra)


def _discard(options: SinkOptions, epoch: int, messages: Iterable[WriterCommitMessage | None]) -> None:
    """Throw away what attempts have staged of an epoch that fails; else it dies with the next, or in time."""
    parts = [part for part in messages if isinstance(part, Part)]
    with Publisher(resolve_address(options.address), options.topology, options.timeout) as publisher:
        for at in {(each.address, each.worker_id) for part in parts for each in part.staged}:
            publisher.discard(at, parts[0].sink, epoch)


def sliced(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in batches of about _PIECE_BYTES at most; a view of each, not a copy.

    Spark's batches have 10,000 rows, which may be 100 MB. So the first of them leave before the last are
    sorted by task, and what holds the copies is used again.
    """
    for batch in batches:
        rows = max(1, batch.num_rows * _PIECE_BYTES // max(batch.nbytes, 1))
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


class RowRouter:
    """Turns batches of rows into groups of messages by task, without an object per row.

    partition: of the write; the turns of a shuffle begin at different tasks in different partitions.
    """

    def __init__(self, options: SinkOptions, partition: int) -> None:
        self._options = options
        self._shuffle: SingleGrouping | None = None
        if options.grouping is GroupingName.SHUFFLE:
            self._shuffle = shuffle(options.tasks, partition)

    def groups(self, batch: pa.RecordBatch) -> tuple[TaskGroup, ...]:
        """Return the rows as messages, in order within each task.

        Raises MalformedError for a null task or message, and InvalidTaskError for an id out of range.
        """
        if not batch.num_rows:
            return ()
        tasks = self._tasks(batch)
        key, headers = travelling(batch, "key"), travelling(batch, "headers")
        return TaskMessageBatch.from_arrow(
            tasks, batch.column("message"), self._options.source, keys=key, headers=headers
        ).groups

    def _tasks(self, batch: pa.RecordBatch) -> pa.Array:
        options = self._options
        if options.grouping is GroupingName.DIRECT:
            return batch.column("task")
        if options.grouping is GroupingName.FIELDS:
            keys = batch.column("key").dictionary_encode(null_encoding="encode")
            chosen = _fields(options.tasks).choose(keys.dictionary.to_pylist())
            return pa.array(chosen, pa.int32()).take(keys.indices)
        grouping = self._shuffle
        if grouping is None:
            grouping = _load_aware(resolve_address(options.address), options.tasks).refreshed()
        return pa.array(grouping.choose(range(batch.num_rows)), pa.int32())


class _LoadAware:
    def __init__(self, address: str, tasks: tuple[int, ...]) -> None:
        self._address = address
        self._tasks = tasks
        self._looked = time.monotonic()
        self._grouping = LoadAwareShuffle(GroupingContext(tasks, source=0, loads=self._loads))

    def _loads(self) -> dict[int, float]:
        try:
            with ControlClient(self._address, timeout=_LOAD_SECONDS) as control:
                return control.load(self._tasks)
        except TuplewireError:
            return {}  # whether the worker is there, sending will show

    def refreshed(self) -> SingleGrouping:
        """Return the grouping, once a second after another look at the loads."""
        now = time.monotonic()
        if now - self._looked >= _REFRESH_SECONDS:
            self._looked = now
            self._grouping.refresh()
        return self._grouping


# One of each in a process: the one remembers the tasks of keys, and the other takes longer than a micro-batch
# to learn the loads.
_fields = lru_cache(8)(fields)
_load_aware = lru_cache(8)(_LoadAware)
