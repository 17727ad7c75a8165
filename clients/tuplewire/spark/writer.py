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
from functools import lru_cache, partial

import pyarrow as pa
from pyspark import TaskContext

from tuplewire.addresses import resolve_address
from tuplewire.batch import TaskMessageBatch
from tuplewire.client import Client
from tuplewire.config import MIB
from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import NotLocalError, TuplewireError
from tuplewire.group import TaskGroup
from tuplewire.session.pieces import frame_pieces
from tuplewire.spark.bad_rows import BadRows
from tuplewire.spark.columns import travelling
from tuplewire.spark.data_source_api import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from tuplewire.spark.options import DeliveryGuarantee, GroupingName, SinkOptions
from tuplewire.spark.shipped import Shipped
from tuplewire.spark.stages import AttemptStage, Publisher, SinkWorkers, StagedPart, wait_for_room
from tuplewire.spark.task_workers import At
from tuplewire.topology.grouping import GroupingContext, SingleGrouping, fields, shuffle
from tuplewire.topology.load_aware import LoadAwareShuffle
from tuplewire.wire.control_pb2 import StagedAttempt

logger = logging.getLogger(__name__)

_PIECE_BYTES = 8 * MIB
_QUERY_ID = "sql.streaming.queryId"
"""The property by which Spark tells its tasks; it is kept in the checkpoint."""
_BATCH_ID = "streaming.sql.batchId"
"""The same for the micro-batch."""
_NO_LIMIT = 2**31 - 1
"""Of a message, where a worker does not say what it takes."""
_REFRESH_SECONDS = 1.0
_LOAD_SECONDS = 1.0


@dataclass
class Part(WriterCommitMessage):
    """What one attempt of one partition has to say: how much it has sent, or where it has staged how much.

    sink: names the streaming query, also after a restart, or the batch write. attempt: its name where it has
    staged. versions: those of the assignment by which it has found the workers. bad_rows: how many of its
    rows could not be sent.
    """

    sink: str
    partition: int
    attempt: str
    messages: int
    staged: Sequence[StagedPart] = ()
    versions: frozenset[int] = frozenset()
    bad_rows: int = 0


class _Sink(Shipped):
    """What both writers have in common. default: the guarantee where the user has not chosen."""

    def __init__(self, options: SinkOptions, default: DeliveryGuarantee) -> None:
        self._exactly_once = (options.guarantee or default) is DeliveryGuarantee.EXACTLY_ONCE
        if self._exactly_once:
            options = dataclasses.replace(options, address=resolve_address(options.address))
        self._options = options
        self._write_id = uuid.uuid4().hex

    def _sent(self, batches: Iterable[pa.RecordBatch]) -> Part:
        """Send one partition as it is computed, and wait until it is acknowledged."""
        options = self._options
        context = _context()
        partition, attempt = context.partitionId(), context.taskAttemptId()
        address = resolve_address(options.address)
        count = 0
        # A newer attempt fences an older one off that still runs.
        client = Client(
            address,
            topology=options.topology,
            client_id=f"spark-{self._write_id}-{partition}",
            incarnation=attempt + 1,
        )
        try:
            with SinkWorkers(address, options.topology, options.timeout) as workers:
                bad = _bad_rows(options, partition, workers)
                router = RowRouter(options, partition, bad)
                for rows in sliced(batches):
                    for group in router.groups(rows):
                        for piece in frame_pieces(group, _PIECE_BYTES):
                            send = partial(client.send, TaskMessageBatch.from_groups([piece]))
                            wait_for_room(address, options.timeout, partial(send, timeout=options.timeout))
                    count += rows.num_rows
            wait_for_room(address, options.timeout, partial(client.flush, options.timeout))
        except BaseException:
            client.close(timeout=0)  # what was not sent yet is the next attempt's
            raise
        client.close()
        return Part(self._write_id, partition, str(attempt), count, bad_rows=bad.count)


class TuplewireBatchWriter(_Sink, DataSourceArrowWriter):
    """Sends the rows of a DataFrame.

    Guarantee: when the write has succeeded, the worker has acknowledged every row's message. By default a
    task that Spark runs again sends again: at least once. With exactlyOnce one attempt of each partition is
    seen, and nothing before all of them are computed.
    """

    def __init__(self, options: SinkOptions) -> None:
        super().__init__(options, DeliveryGuarantee.AT_LEAST_ONCE)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Part:
        """Send or stage one partition; in a Spark task."""
        if self._exactly_once:
            return _staged(self._options, f"spark-{self._write_id}", 0, iterator)
        return self._sent(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish what was staged; in the driver, once all partitions are there."""
        _publish(self._options, 0, messages, repeated=False)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Throw away what was staged, where that is possible; in the driver."""
        _discard(self._options, 0, messages)


class TuplewireStreamWriter(_Sink, DataSourceStreamArrowWriter):
    """Publishes the rows of each micro-batch, once it is computed; with atLeastOnce, sends them at once.

    Guarantee: of each partition and micro-batch exactly one attempt is seen, whatever fails, however many
    attempts Spark makes, and also when the driver dies while it publishes: it then publishes the micro-batch
    again, and the workers take what they lack of it. This holds while a task's worker lives, and where a row
    goes to the same task when it is computed again.
    """

    def __init__(self, options: SinkOptions) -> None:
        super().__init__(options, DeliveryGuarantee.EXACTLY_ONCE)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Part:
        """Stage or send one partition; in a Spark task."""
        if not self._exactly_once:
            return self._sent(iterator)
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


def _bad_rows(options: SinkOptions, partition: int, workers: SinkWorkers) -> BadRows:
    """Look the tasks of the options up; return what looks after those of the rows.

    Raises UnknownTaskError, what keeps the worker out of reach, and WrongTopologyError.
    """
    own = () if isinstance(options.bad_rows, str) else (options.bad_rows,)
    workers.check_known((*options.tasks, *own))
    limit = workers.max_message_bytes or _NO_LIMIT
    return BadRows(options.bad_rows, partition, limit, workers.known)


def _staged(options: SinkOptions, sink: str, epoch: int, batches: Iterable[pa.RecordBatch]) -> Part:
    partition = _context().partitionId()
    count = 0
    with AttemptStage(
        resolve_address(options.address), options.topology, options.timeout, sink, epoch, partition
    ) as stage:
        try:
            bad = _bad_rows(options, partition, stage)
            router = RowRouter(options, partition, bad)
            for rows in sliced(batches):
                stage.add(router.groups(rows))
                count += rows.num_rows
            staged = stage.end()
        except BaseException:
            stage.abandon()
            raise
        return Part(sink, partition, stage.attempt, count, staged, frozenset(stage.versions), bad.count)


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
    if bad := sum(part.bad_rows for part in parts):
        where = {"sink": parts[0].sink, "epoch": epoch, "rows": bad, "policy": options.bad_rows}
        logger.warning("sink.bad_rows: %d rows of this write could not be sent", bad, extra=where)
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

    partition: of the write; the turns of a shuffle begin at different tasks in different partitions. bad:
    sorts out what cannot be sent.
    """

    def __init__(self, options: SinkOptions, partition: int, bad: BadRows) -> None:
        self._options = options
        self._bad = bad
        self._shuffle: SingleGrouping | None = None
        if options.grouping is GroupingName.SHUFFLE:
            self._shuffle = shuffle(options.tasks, partition)

    def groups(self, batch: pa.RecordBatch) -> tuple[TaskGroup, ...]:
        """Return the rows as messages, in order within each task.

        Raises BadRowsError for rows that cannot be sent, unless the option badRows says otherwise.
        """
        if not batch.num_rows:
            return ()
        tasks, rows, bad = self._bad.sort_out(self._tasks(batch), batch)
        key, headers = travelling(rows, "key"), travelling(rows, "headers")
        groups = TaskMessageBatch.from_arrow(
            tasks, rows.column("message"), self._options.source, keys=key, headers=headers
        ).groups
        if bad and isinstance(self._options.bad_rows, int):
            return (*groups, TaskGroup.of(self._options.bad_rows, bad, self._options.source))
        return groups

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
