"""The writers of Spark's sink against a real worker, called as Spark calls them, without a JVM."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from helpers.logged import logged
from helpers.spark_calls import begin_attempt, rows
from helpers.topology import TOPOLOGY, Pair, ledger, messages_of, metric, numbers, queued
from helpers.traffic import client_of, take

from tuplewire import TaskMessageBatch
from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import (
    EpochTooLargeError,
    ProtocolError,
    ResourceLimitError,
    SequenceGapError,
    StaleIncarnationError,
    UnknownTaskError,
    WrongTopologyError,
)
from tuplewire.processes.worker_processes import Endpoint, WorkerProcesses
from tuplewire.spark import staging
from tuplewire.spark import writer as writing
from tuplewire.spark.options import sink_options
from tuplewire.spark.row_router import BadRowsError
from tuplewire.spark.writer import PartitionResult, TuplewireBatchWriter, TuplewireStreamWriter
from tuplewire.wire import control_pb2
from tuplewire.wire.control_pb2 import StagedAttempt
from tuplewire.wire.opaque_pb2 import OpaqueFrame, OpaqueGroup
from tuplewire_service.testing import eventually

SMALL_TASK = 5
STAGED = 'tuplewire_staged_bytes{place="memory"}'


def options(workers: Pair, **more: str) -> dict[str, str]:
    """Return sink options with the address of a worker."""
    return {"address": workers.near.address, "topology": TOPOLOGY, "timeout": "20", **more}


def test_newer_attempt_fences_the_older(workers: Pair, task: int) -> None:
    """A new attempt stops a running one and may duplicate its rows. badRows=drop sends rows at once."""
    writer = TuplewireBatchWriter(sink_options(options(workers, badRows="drop")))

    def slow() -> Iterator[pa.RecordBatch]:
        yield rows(task, range(3))
        eventually(lambda: queued(workers.near, task) == 3, 20, "the older attempt has sent a batch")
        begin_attempt(0, 31)
        assert writer.write(iter([rows(task, range(6))])).failure is None
        yield rows(task, range(3, 6))

    begin_attempt(0, 30)
    with pytest.raises(StaleIncarnationError, match="has taken over"):
        writer.write(slow())
    assert numbers(take(workers.near, task, 9)) == [0, 1, 2, 0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("memory", [1, 8_000_000])
@pytest.mark.parametrize("guarantee", ["exactlyOnce", "atLeastOnce"])
def test_a_bad_row_fails_the_write(
    guarantee: str, memory: int, workers: Pair, task: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Even a bad last row fails the write before any row is sent. The driver raises it, without a retry."""
    monkeypatch.setattr(writing, "_MAX_MEMORY_BYTES", memory)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/nowhere")
    writer = TuplewireBatchWriter(sink_options(options(workers, deliveryGuarantee=guarantee)))

    def last_is_bad() -> Iterator[pa.RecordBatch]:
        yield rows(task, range(5))
        yield rows(99_999, range(1))

    begin_attempt(0, 40)
    part = writer.write(last_is_bad())
    assert not part.staged
    begin_attempt(1, 41)
    other = writer.write(iter([rows(task, range(5, 7))]))
    with pytest.raises(
        BadRowsError, match="row 5 of partition 0: the task is not in the assignment"
    ) as error:
        writer.commit([other, part])
    assert "(task 99999, message '0'); 1 of the 1 rows from 5 on" in str(error.value)
    writer.abort([other, part])
    assert metric(workers.near, STAGED) == 0
    if guarantee == "exactlyOnce":
        assert queued(workers.near, task) == 0
    else:
        assert numbers(take(workers.near, task, 2)) == [5, 6], "what other partitions have sent stays"


def test_rows_that_wait_for_the_last_one_arrive(workers: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that were held back in memory or in a file arrive in order, with their keys."""
    task = workers.near_task()
    writer = TuplewireBatchWriter(sink_options(options(workers)))
    for number, memory in enumerate((1, 8_000_000)):
        monkeypatch.setattr(writing, "_MAX_MEMORY_BYTES", memory)
        begin_attempt(0, 45 + number)
        keyed = rows(task, range(5, 9)).append_column("key", pa.array(list("abcd")))
        assert writer.write(iter([rows(task, range(5)), keyed])).failure is None
        got: list[TaskMessageBatch] = []
        with client_of(workers.near.address) as client, client.recv([task], timeout=20) as batches:
            while sum(map(len, got)) < 9:
                got.append(next(batches))
            batches.acknowledge()
        assert numbers(each for batch in got for each in messages_of(batch)) == list(range(9))
        assert [each.key for batch in got for each in batch] == [None] * 5 + [b"a", b"b", b"c", b"d"]


def test_a_directory_of_spark_that_is_full_is_named(workers: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """If Spark's local directory cannot be written, the error names the setting to change."""
    monkeypatch.setattr(writing, "_MAX_MEMORY_BYTES", 1)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/nowhere")
    begin_attempt(0, 48)
    writer = TuplewireBatchWriter(sink_options(options(workers)))
    computed = [rows(workers.near_task(), range(5))] * 2
    with pytest.raises(OSError, match=r"set spark\.local\.dir"):
        writer.write(iter(computed))


@contextmanager
def small(*flags: str) -> Iterator[tuple[Endpoint, dict[str, str]]]:
    """Run a worker with one task and small queues; yield it and the options of a sink."""
    flags = ("--drain-seconds=0.1", "--receive-queue-bytes=1MiB", "--max-message-bytes=1MiB", *flags)
    with WorkerProcesses(1, TOPOLOGY, flags=flags) as local:
        local.assign({0: [SMALL_TASK]})
        (worker,) = local.endpoints
        yield worker, {"address": worker.address, "topology": TOPOLOGY, "timeout": "1"}


def large(count: int) -> pa.RecordBatch:
    """Return `count` rows of 10 kB."""
    payloads = pa.array([b"%-10000d" % number for number in range(count)])
    return pa.RecordBatch.from_pydict(
        {"task": pa.array([SMALL_TASK] * count, pa.int32()), "message": payloads}
    )


def test_a_micro_batch_larger_than_the_queues_waits_for_its_consumer(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit of three times the queue size ends, and logs its tasks; the worker delivers the rest later."""
    monkeypatch.setattr(staging, "_COMMIT_WAIT_SECONDS", 0.5)
    with small("--staging-memory-bytes=1MiB") as (worker, opts):
        writer = TuplewireStreamWriter(sink_options(opts))
        begin_attempt(0, 60)
        part = writer.write(iter([large(300)]))
        assert metric(worker, 'tuplewire_staged_bytes{place="disk"}') > 2e6
        for _ in range(2):
            caplog.clear()
            writer.commit([part], 0)
            (waits,) = logged(caplog, "sink.waiting")
            assert waits["tasks"] == [5]
        assert 100 <= queued(worker, SMALL_TASK) < 170
        assert metric(worker, "tuplewire_published_waiting_messages") == 300 - queued(worker, SMALL_TASK)
        begin_attempt(0, 61, epoch=1)
        writer.commit([writer.write(iter([large(20)]))], 1)
        assert numbers(take(worker, SMALL_TASK, 320)) == [*range(300), *range(20)]
        eventually(lambda: metric(worker, STAGED) == 0, 20)
        assert metric(worker, 'tuplewire_staged_bytes{place="disk"}') == 0
        assert ledger(worker).balanced


@pytest.mark.parametrize("guarantee", ["atLeastOnce", "exactlyOnce"])
def test_rows_are_as_large_as_the_worker_allows(guarantee: str) -> None:
    """Rows may be as large as the worker allows, including the key; one byte more makes a bad row."""
    with small("--max-message-bytes=3MiB", "--receive-queue-bytes=8MiB") as (worker, opts):
        more = {"timeout": "20", "deliveryGuarantee": guarantee}
        writer = TuplewireBatchWriter(sink_options({**opts, **more}))

        def written(key_bytes: int) -> PartitionResult:
            begin_attempt(0, 70 + key_bytes)
            tasks, key = pa.array([SMALL_TASK], pa.int32()), pa.array([b"k" * key_bytes])
            message = pa.array([b"m" * (3 * 2**20 - 10)])
            return writer.write(
                iter([pa.RecordBatch.from_pydict({"task": tasks, "message": message, "key": key})])
            )

        writer.commit([written(8)])
        assert isinstance(written(9).failure, BadRowsError)
        assert ledger(worker).accepted == 1


def test_an_attempt_waits_for_room_to_stage(caplog: pytest.LogCaptureFixture) -> None:
    """An attempt logs that it waits for staging space; an attempt that can never fit raises an error."""
    flags = ("--staging-memory-bytes=2MiB", "--staging-disk-bytes=1MiB")
    with small(*flags) as (worker, opts), ThreadPoolExecutor(1) as thread:
        other = TuplewireBatchWriter(sink_options({**opts, "deliveryGuarantee": "exactlyOnce"}))
        begin_attempt(0, 61)
        part = other.write(iter([large(200)]))
        writer = TuplewireStreamWriter(sink_options(opts))

        def staged(count: int) -> PartitionResult:
            begin_attempt(0, 62)
            return writer.write(iter([large(count)]))

        waiting = thread.submit(staged, 150)

        eventually(lambda: "no space to stage" in caplog.text, 20)
        assert metric(worker, "tuplewire_staging_waits_total") > 0
        assert not wait([waiting], timeout=2).done
        other.abort([part])
        writer.commit([waiting.result(20)], 0)
        assert numbers(take(worker, SMALL_TASK, 150)) == list(range(150))
        with pytest.raises(EpochTooLargeError, match="raise its staging_disk_bytes"):
            writer.commit([staged(300)], 1)
        eventually(lambda: metric(worker, STAGED) == 0, 20)


def test_rows_to_more_tasks_than_a_frame_has_groups() -> None:
    """Rows for more tasks than a frame has groups are sent in several pieces, and all arrive."""
    with WorkerProcesses(1, TOPOLOGY, drain_seconds=0.5) as workers:
        workers.assign({0: range(2500)})
        writer = TuplewireStreamWriter(
            sink_options({"address": workers.endpoints[0].address, "topology": TOPOLOGY})
        )
        begin_attempt(0, 64)
        columns = {"task": pa.array(range(2500), pa.int32()), "message": pa.array(["x"] * 2500)}
        part = writer.write(iter([pa.RecordBatch.from_pydict(columns)]))
        assert [StagedAttempt.FromString(each).piece_count for each in part.staged.values()] == [3]
        writer.commit([part], 0)
        eventually(lambda: ledger(workers.endpoints[0]).pending == 2500, 20)


def test_a_directory_that_cannot_be_written_is_named() -> None:
    """An unwritable staging directory fails the attempt, not the commit, with the setting to change."""
    with small("--staging-memory-bytes=1KiB", "--staging-directory=/nowhere") as (_, opts):
        begin_attempt(0, 63)
        with pytest.raises(ResourceLimitError, match="set staging_directory"):
            TuplewireStreamWriter(sink_options(opts)).write(iter([large(10)]))


def test_a_failed_attempt_leaves_nothing(workers: Pair, task: int) -> None:
    """The staged rows of a failed attempt are removed."""
    writer = TuplewireStreamWriter(sink_options(options(workers)))

    def failing() -> Iterator[pa.RecordBatch]:
        payloads = pa.array([b"%-10000d" % number for number in range(100)])
        yield pa.RecordBatch.from_pydict({"task": pa.array([task] * 100, pa.int32()), "message": payloads})
        assert metric(workers.near, STAGED) > 500_000
        raise RuntimeError("this attempt is to fail")

    begin_attempt(0, 65, 20)
    with pytest.raises(RuntimeError):
        writer.write(failing())
    assert metric(workers.near, STAGED) == 0


def mixed(task: int) -> pa.RecordBatch:
    """Return a batch with a good row, four bad rows and another good row."""
    payloads = ["good", None, "x" * 2_000_000, "task", "null", "good, too"]
    tasks = pa.array([task, task, task, -1, None, task], pa.int32())
    return pa.RecordBatch.from_pydict({"task": tasks, "message": pa.array(payloads)})


@pytest.mark.parametrize("guarantee", ["exactlyOnce", "atLeastOnce"])
def test_bad_rows_are_dropped_or_go_to_a_task(guarantee: str, caplog: pytest.LogCaptureFixture) -> None:
    """Bad rows are counted, and dropped or sent to a task with the reason; the good rows are sent."""
    with small() as (worker, opts):
        opts["deliveryGuarantee"] = guarantee
        begin_attempt(0, 80)
        for epoch, policy in enumerate(("drop", str(SMALL_TASK))):
            begin_attempt(3, 81 + epoch, epoch)
            writer = TuplewireStreamWriter(sink_options({**opts, "badRows": policy}))
            part = writer.write(iter([mixed(SMALL_TASK)]))
            assert part.bad_row_count == 4
            writer.commit([part], epoch)
            assert "rows=4 policy=" in caplog.text
        got = [payload for _, payload in take(worker, SMALL_TASK, 8)]
        assert got[:4] == [b"good", b"good, too"] * 2
        stories = [json.loads(each) for each in got[4:]]
        assert [(each["row"], each["partition"], each["task"]) for each in stories] == [
            (1, 3, SMALL_TASK),
            (2, 3, SMALL_TASK),
            (3, 3, -1),
            (4, 3, None),
        ]
        assert [each["why"][:24] for each in stories] == [
            "the message is null",
            "the message has more tha",
            "the task is not from 0 t",
            "the task is null",
        ]
        assert stories[1]["message"] == "x" * 1000 + "..."


@pytest.mark.parametrize("timeout", ["1", "60"])
def test_a_stream_may_be_sent_as_it_is_computed(timeout: str, caplog: pytest.LogCaptureFixture) -> None:
    """With atLeastOnce, rows are sent before the commit; a full queue blocks, without a timeout but a log."""
    with small() as (worker, opts), ThreadPoolExecutor(1) as thread:
        more = {"deliveryGuarantee": "atLeastOnce", "timeout": timeout}
        writer = TuplewireStreamWriter(sink_options(opts | more))

        def sent() -> PartitionResult:
            begin_attempt(0, 90)
            return writer.write(iter([large(300)]))

        waiting = thread.submit(sent)
        eventually(lambda: "Spark needs a free core" in caplog.text, 10)
        assert logged(caplog, "sink.waiting")
        assert not wait([waiting], timeout=2).done, "the timeout is for workers that are out of reach"
        assert queued(worker, SMALL_TASK) >= 100
        assert numbers(take(worker, SMALL_TASK, 300)) == list(range(300))
        writer.commit([waiting.result(20)], 0)
        assert metric(worker, STAGED) == 0


def frame(**columns: Any) -> bytes:
    """Return an encoded frame of one group."""
    return OpaqueFrame(groups=[OpaqueGroup(**columns)]).SerializeToString()


ONE = {"lengths": b"\1\0\0\0", "data": b"x"}


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"frame": b"\xff"}, ProtocolError),
        ({"sink": ""}, ProtocolError),
        ({"sink": "s" * 1000}, ProtocolError),
        ({"attempt": ""}, ProtocolError),
        ({"topology": "other"}, WrongTopologyError),
        ({"frame": frame(task=1, lengths=b"abc")}, ProtocolError),
        ({"frame": frame(task=1, path=7, **ONE)}, ProtocolError),
        ({"frame": frame(task=99_999, **ONE)}, UnknownTaskError),
        ({"frame": b""}, ProtocolError),
        ({"frame": frame(task=1, **ONE), "piece": 3}, SequenceGapError),
    ],
)
def test_wrong_requests_are_refused(workers: Pair, changes: dict[str, Any], error: type[Exception]) -> None:
    """An invalid request is refused with its own error, and changes nothing."""
    request = control_pb2.StageRequest(topology=TOPOLOGY, sink="wrong", epoch=1, attempt="a")
    for name, value in changes.items():
        setattr(request, name, value)
    before = metric(workers.near, STAGED), metric(workers.far, STAGED)
    with ControlClient(workers.near.address) as control, pytest.raises(error):
        control._call("sink.Stage", request)
    assert (metric(workers.near, STAGED), metric(workers.far, STAGED)) == before
