"""The format `tuplewire`: written and read by real Spark, batch and streaming."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from helpers import queries
from helpers.topology import status
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.testing import assertDataFrameEqual

from tuplewire import Client, TaskMessage, TaskMessageBatch
from tuplewire.errors import ConfigError
from tuplewire.grouping.grouping import fields
from tuplewire.spark import lag, reject_rows
from tuplewire.values.dead_letters import DecodedDeadLetter

pytestmark = pytest.mark.spark

TOPOLOGY = "spark"
TASKS = {0: [1, 2], 1: [3, 4]}
ALL = "1-4"


@pytest.fixture(scope="module")
def shared_workers(spark: SparkSession, launch: Any) -> Iterator[Any]:  # noqa: ARG001 - Spark forks: start it first
    """Run two workers with four tasks."""
    with launch(TOPOLOGY, TASKS) as running:
        yield running


@pytest.fixture
def workers(shared_workers: Any) -> Iterator[Any]:
    """Return the workers; discard the messages that a test leaves."""
    yield shared_workers
    consume(shared_workers)


def address(workers: Any, index: int = 0) -> str:
    """Return a worker's address for the drivers and tasks of this machine."""
    where: str = workers.endpoints[index].address
    return where


def options(workers: Any, **more: str) -> dict[str, str]:
    """Return options with the address of a worker."""
    return {"address": address(workers), "topology": TOPOLOGY, "timeout": "20", **more}


def read(spark: SparkSession, workers: Any, tasks: str = ALL, **more: str) -> DataFrame:
    """Read the queued messages of the workers."""
    return spark.read.format("tuplewire").options(**options(workers, tasks=tasks, **more)).load()


def consume(workers: Any, count: int | None = None) -> list[tuple[int, int | None, bytes]]:
    """Consume all messages (`count`, if given), as clients outside Spark do; return them task by task."""
    got: dict[int, list[tuple[int, int | None, bytes]]] = {
        task: [] for tasks in TASKS.values() for task in tasks
    }
    for index, tasks in TASKS.items():
        waiting = sum(each.queued_messages for each in status(workers.endpoints[index]).tasks)
        with (
            Client(address(workers, index), topology=TOPOLOGY) as client,
            client.recv(tasks, timeout=20) as batches,
        ):
            while waiting > 0:
                batch = next(batches)
                waiting -= len(batch)
                for group in batch.groups:
                    got[group.task] += [(group.task, group.source, payload) for payload in group.payloads()]
            batches.acknowledge()
    found = [each for task in got.values() for each in task]
    assert count in {None, len(found)}
    return found


def rows(spark: SparkSession, count: int) -> DataFrame:
    """Return `count` rows for the four tasks."""
    return spark.range(0, count, 1, 2).selectExpr(
        "cast(id % 4 + 1 as int) as task", "cast(id as string) as message"
    )


def forward(spark: SparkSession, workers: Any, place: Path, *columns: str, **more: str) -> StreamingQuery:
    """Stream tasks 1 and 2 to tasks 3 and 4, until everything is read."""
    read = queries.stream(spark, options(workers, tasks="1,2", **more))
    rows = read.selectExpr("task + 2 as task", "message", *columns)
    query = queries.start_sink(rows, options(workers), place / "checkpoint", availableNow=True)
    assert query.awaitTermination(110)
    return query


def write(frame: DataFrame, workers: Any, **more: str) -> None:
    """Write rows to the workers."""
    frame.write.format("tuplewire").mode("append").options(**options(workers, **more)).save()


def test_batch_write(spark: SparkSession, workers: Any) -> None:
    """Spark finds the format automatically; every row arrives at its task, also through another worker."""
    write(rows(spark, 1000), workers, source="9")
    got = consume(workers, 1000)
    assert Counter(got) == Counter((number % 4 + 1, 9, b"%d" % number) for number in range(1000))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("spark.sql.execution.arrow.useLargeVarTypes", "true"),
        ("spark.sql.execution.arrow.maxRecordsPerBatch", "1"),
        ("spark.sql.session.timeZone", "Asia/Tokyo"),
        ("spark.sql.ansi.enabled", "false"),
        ("spark.sql.caseSensitive", "true"),
        ("spark.sql.timestampType", "TIMESTAMP_NTZ"),
    ],
)
def test_settings_of_a_session_change_nothing(
    spark: SparkSession, workers: Any, setting: str, value: str
) -> None:
    """Nulls arrive unchanged: a header without a value, and a key without a message (a tombstone)."""
    headers = "case when id = 1 then array(struct('n' as key, cast(null as binary) as value)) end as headers"
    message = "case when id <> 3 then concat('m', id) end as message"
    before = spark.conf.get(setting, None)
    spark.conf.set(setting, value)
    try:
        for task, guarantee in ((2, "atLeastOnce"), (4, "exactlyOnce")):
            columns = (f"{task} as task", message, "concat('k', id) as key", headers)
            write(spark.range(0, 5, 1, 1).selectExpr(*columns), workers, deliveryGuarantee=guarantee)
        frames = [read(spark, workers, "2,4", includeHeaders=each) for each in ("false", "true")]
        assert {each.schema["timestamp"].dataType.typeName() for each in frames} == {"timestamp"}
        plain, found = (each.orderBy("task", "sequence").collect() for each in frames)
    finally:
        if before is None:
            spark.conf.unset(setting)
        else:
            spark.conf.set(setting, before)
    assert [row.timestamp for row in plain] == [row.timestamp for row in found]
    assert [
        (
            row.message and bytes(row.message),
            bytes(row.key),
            row.headers and [tuple(each) for each in row.headers],
        )
        for row in found
    ] == 2 * [
        (b"m0", b"k0", None),
        (b"m1", b"k1", [("n", None)]),
        (b"m2", b"k2", None),
        (None, b"k3", None),
        (b"m4", b"k4", None),
    ]


def test_batch_read_is_a_look(spark: SparkSession, workers: Any) -> None:
    """A DataFrame has the messages at its first use, even if used again, and leaves them in the tasks."""
    before = datetime.now(UTC)
    with Client(address(workers), topology=TOPOLOGY, source=7) as client:
        client.send(TaskMessageBatch.from_columns([1, 3, 3], [b"a", b"b", b"c"]))
    after = datetime.now(UTC)
    frame = read(spark, workers)
    expected = spark.createDataFrame(
        [(1, b"a", 7), (3, b"b", 7), (3, b"c", 7)], "task int, message binary, source int"
    )
    for _ in range(2):
        assertDataFrameEqual(frame.select("task", "message", "source"), expected)
    b, c = frame.where("task = 3").orderBy("sequence").collect()
    assert (b.message, c.message, c.sequence - b.sequence) == (b"b", b"c", 1)
    for row in frame.collect():
        assert before - timedelta(milliseconds=1) <= row.timestamp.astimezone(UTC) <= after
    assert [message for _, _, message in consume(workers, 3)] == [b"a", b"b", b"c"]
    assert read(spark, workers).count() == 0


def test_keys_and_headers_go_through_a_query(spark: SparkSession, workers: Any, tmp_path: Path) -> None:
    """Keys and headers stay the same from a client through a query to a reader; absent ones are null."""
    trace = ("traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    sent = [
        TaskMessage(task, b"%d" % number, key=key, headers=headers)
        for task in (1, 2)
        for number, (key, headers) in enumerate(
            [(None, []), (b"k", []), (None, [trace]), (b"", [("n", b""), ("n", b"2")]), (b"k" * 500, [trace])]
        )
    ]
    with Client(address(workers), topology=TOPOLOGY) as client:
        client.send(sent)
    forward(spark, workers, tmp_path, "key", "headers", includeHeaders="true")
    frame = read(spark, workers, "3,4", INCLUDEHEADERS="true")
    got = [
        TaskMessage(
            row.task - 2,
            bytes(row.message),
            key=None if row.key is None else bytes(row.key),
            headers=[(header.key, bytes(header.value)) for header in row.headers or ()],
        )
        for row in frame.orderBy("task", "sequence").collect()
    ]
    assert got == sent
    assert frame.where("key is null").count() == frame.where("headers is null").count() == 4
    columns = ["task", "message", "source", "sequence", "timestamp", "key"]
    assert read(spark, workers, "3,4").columns == columns


@pytest.mark.parametrize("grouping", ["fields", "shuffle", "loadAwareShuffle"])
def test_grouping_chooses_the_task(spark: SparkSession, workers: Any, grouping: str) -> None:
    """Rows are grouped by key, as by the fields grouping of other programs, or evenly."""
    key = "concat('key', id % 10) as key" if grouping == "fields" else "1"
    frame = spark.range(0, 400, 1, 2).selectExpr("cast(id as string) as message", key)
    frame = frame if grouping == "fields" else frame.select("message")
    write(frame, workers, grouping=grouping, tasks=ALL)
    got = consume(workers, 400)
    if grouping == "fields":
        keys = [f"key{int(message) % 10}" for _, _, message in got]
        assert [task for task, _, _ in got] == fields([1, 2, 3, 4]).choose(keys)
    else:
        assert set(Counter(task for task, _, _ in got).values()) == {100}


def test_stream_to_stream(spark: SparkSession, workers: Any, tmp_path: Path) -> None:
    """Messages of two tasks go through a query to two other tasks, once and in order."""
    with Client(address(workers), topology=TOPOLOGY, source=7) as client:
        client.send(TaskMessageBatch.from_columns([1, 2] * 500, [b"%d" % number for number in range(1000)]))
    query = forward(spark, workers, tmp_path, maxMessagesPerTrigger="300")
    assert [progress["numInputRows"] for progress in query.recentProgress] == [300, 300, 300, 100]
    assert list(map(lag, query.recentProgress)) == [{1: left, 2: left} for left in (350, 200, 50, 0)]
    assert lag(query) == {1: 0, 2: 0}
    first = json.loads(query.recentProgress[0]["sources"][0]["latestOffset"])
    assert first["lag"] == {"1": 350, "2": 350}
    # Spark polls once more after it has read everything, which acknowledges the last micro-batch.
    for index, left in enumerate([0, 1000]):
        assert sum(each.queued_messages for each in status(workers.endpoints[index]).tasks) == left
    got = read(spark, workers, "3,4").orderBy("task", "sequence").collect()
    assert [row.message for row in got] == [
        b"%d" % number for first in (0, 1) for number in range(first, 1000, 2)
    ]


def test_an_old_checkpoint_with_other_rows(spark: SparkSession, workers: Any, tmp_path: Path) -> None:
    """With an outdated checkpoint, repeated rows are ignored, and different rows are refused."""
    checkpoint, backup, source = (tmp_path / name for name in ("checkpoint", "backup", "source"))
    source.mkdir()

    def publish(file: str, numbers: range) -> StreamingQuery:
        (source / file).write_text("".join(f"{number}\n" for number in numbers))
        lines = spark.readStream.format("text").load(str(source))
        rows = lines.selectExpr("1 + cast(value as int) % 4 as task", "value as message").repartition(3)
        query = queries.start_sink(rows, options(workers), checkpoint, availableNow=True)
        query.processAllAvailable()
        return query

    publish("a.txt", range(20))
    shutil.copytree(checkpoint, backup)
    publish("b.txt", range(20, 40))
    shutil.rmtree(checkpoint)
    shutil.copytree(backup, checkpoint)
    publish("b.txt", range(20, 40))
    shutil.rmtree(checkpoint)
    backup.rename(checkpoint)
    (source / "b.txt").unlink()
    with pytest.raises(StreamingQueryException, match="has received epoch 1 already, with other messages"):
        publish("c.txt", range(40, 60))
    assert sorted(int(message) for _, _, message in consume(workers)) == list(range(40))


def test_the_tasks_of_a_query_change(spark: SparkSession, workers: Any, tmp_path: Path) -> None:
    """A restarted query reads new tasks, and stops reading a removed task once that is allowed."""
    rows: list[tuple[int, bytes]] = []

    def take(frame: DataFrame, _batch: int) -> None:
        rows.extend((row.task, bytes(row.message)) for row in frame.collect())

    def run(tasks: str, **more: str) -> None:
        read = queries.stream(spark, options(workers, tasks=tasks, **more))
        query = queries.start(read.writeStream.foreachBatch(take), tmp_path / "checkpoint", availableNow=True)
        assert query.awaitTermination(110)

    def send(tasks: list[int], text: bytes) -> None:
        with Client(address(workers), topology=TOPOLOGY) as client:
            client.send(TaskMessageBatch.from_columns(tasks, [text] * len(tasks)))

    send([1, 2, 3, 4], b"a")
    run("1-3")
    send([1, 3, 4], b"b")
    with pytest.raises(PySparkException, match=r"(?s)1 of the tasks in its checkpoint.*task 3 holds 1"):
        run("1,2,4")
    run("1,3,4")
    send([1, 2, 4], b"c")
    run("1,4", failOnDataLoss="false")
    run("1,2,4")
    assert sorted(rows) == [
        *[(1, b"a"), (1, b"b"), (1, b"c"), (2, b"a"), (2, b"c")],
        *[(3, b"a"), (3, b"b"), (4, b"a"), (4, b"b"), (4, b"c")],
    ]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"adress": "x:1"}, r"unknown option 'adress'; the options for reading are:.*maxMessagesPerTrigger"),
        ({"tasks": "1-x"}, "task ids are written like 1,2,10-19"),
        ({"tasks": "1,77"}, r"task 77 is not in assignment version 1, which has 1-4: use these"),
        ({"topology": "other"}, "serves topology 'spark', not 'other'"),
        ({"address": "127.0.0.1:1", "timeout": "0.5"}, "127.0.0.1:1"),
    ],
)
def test_wrong_reads(spark: SparkSession, workers: Any, more: dict[str, str], message: str) -> None:
    """A wrong option, an unknown task and a missing worker raise errors with advice."""
    with pytest.raises(PySparkException, match=f"(?s){message}"):
        read(spark, workers, **{"tasks": ALL, **more}).collect()


@pytest.mark.parametrize(
    ("columns", "more", "message"),
    [
        ("id as message, 1 as task", {}, r"column message is bigint: .* message \(binary or string\)"),
        ("'a' as message", {}, "column task is missing"),
        ("'a' as message, 1 as task", {"grouping": "random"}, "direct, fields, shuffle, loadAwareShuffle"),
        (
            "'a' as message, 77 as task",
            {},
            r"row 0 of partition \d+: the task is not in the assignment \(task 77,",
        ),
        ("'a' as message, 1 as task", {"address": "127.0.0.1:1", "timeout": "0.5"}, "127.0.0.1:1"),
    ],
)
def test_wrong_writes(
    spark: SparkSession, workers: Any, columns: str, more: dict[str, str], message: str
) -> None:
    """A wrong column, a wrong option, an unknown task and a missing worker raise errors with the cause."""
    frame = spark.range(2).selectExpr(columns.split(", ", maxsplit=1)[0], *columns.split(", ")[1:])
    with pytest.raises(PySparkException, match=f"(?s){message}"):
        write(frame, workers, **more)


def test_rejected_rows_come_again_and_are_dead_letters(spark: SparkSession, workers: Any) -> None:
    """Rejected rows have their key, headers and count when resent; over the limit, they are dead letters."""
    with Client(address(workers), topology=TOPOLOGY, source=7) as client:
        client.send(1, b"bad", key=b"k", headers=[("mine", b"1")])
        client.send(3, b"plain")
    with pytest.raises(ConfigError, match="lack headers"):
        reject_rows(read(spark, workers), dead_letter_task=4)

    def reject() -> None:
        again = reject_rows(
            read(spark, workers, "1,3", includeHeaders="true"), dead_letter_task=4, limit=2, reason="no"
        )
        held = spark.createDataFrame(again.collect(), again.schema)
        consume(workers)
        write(held, workers)

    reject()
    found = {row.task: row for row in read(spark, workers, includeHeaders="true").collect()}
    assert found.keys() == {1, 3}
    assert [(each.key, each.value) for each in found[1].headers] == [
        ("mine", b"1"),
        ("tuplewire-rejected", b"1"),
    ]
    assert found[1].key == b"k"
    reject()
    with Client(address(workers, 1), topology=TOPOLOGY) as client, client.recv([4], timeout=20) as batches:
        letters = [DecodedDeadLetter.read(message) for message in batches.messages(2)]
    told = {each.message.message: each for each in letters if each is not None}
    bad, plain = told[b"bad"], told[b"plain"]
    assert (bad.task, bad.count, bad.reason, bad.source) == (1, 2, "no", None)
    assert (bad.message.key, bad.message.headers) == (b"k", (("mine", b"1"),))
    assert (plain.task, plain.count, plain.message.headers) == (3, 2, ())
    assert datetime.fromisoformat(bad.time).tzinfo is not None
