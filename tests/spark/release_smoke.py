"""All features for Spark programs, on the PySpark of this interpreter: python release_smoke.py 4.1.

One program for every release (tests/sparks.sh). Features that a release lacks must be refused by name. Prints
the result of each feature, and exits with 1 if one fails, or if this Spark is not of the given line.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tuplewire import Client, TaskMessageBatch, Team
from tuplewire.connection.control_client import ControlClient
from tuplewire.processes.worker_processes import WorkerProcesses
from tuplewire.spark import ClientHandle, features, register
from tuplewire.spark.client_handle import close_clients
from tuplewire_demos.local_session import local_session
from tuplewire_topology import BasicBolt, BasicOutputCollector, TopologyBuilder, Tuple
from tuplewire_topology.running.statistics import ProcessFailedError
from tuplewire_topology.spark import Rows, TopologyResult, run_topology

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "spark.md"
TASKS = {0: [1, 2], 1: [3, 4]}
COUNT = 1000
SECONDS = 240.0
CORES = 4
CONF = {
    "spark.master": f"local[{CORES},2]",  # a task may fail once
    "spark.python.authenticate.socketTimeout": "120s",  # for a busy machine
    # Most plans run once here: compiling them takes longer than running them.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


class Pass(BasicBolt):
    """Emits each tuple unchanged, and raises an error at one number."""

    outputs = ("number", "at")

    def __init__(self, raises_at: int = -1) -> None:
        self.raises_at = raises_at

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        if message["number"] == self.raises_at:
            raise LookupError("no such number")
        collector.emit([message["number"], message["at"]])


class Smoke:
    """The smoke test, with a session and two workers."""

    def __init__(self, spark: SparkSession, addresses: list[str], folder: Path) -> None:
        self.spark = spark
        self.addresses = addresses
        self.folder = folder
        self.failed: list[str] = []

    def run(self) -> None:
        functions = [self.functions, self.forgotten_flush, self.foreach_batch, self.team, self.topology]
        if find_spec("pyspark.sql.datasource") is None:  # before 4.0
            self.tell(functions, [self.no_format])
            return
        batches = [self.write, self.exactly_once, self.read, self.errors]
        surfaces = [*functions, *batches, self.available_now, self.stream]
        limits = self.limits if features.has_admission_control() else self.no_limits
        self.tell(surfaces, [limits])

    def tell(self, *surfaces: Iterable[Callable[[], object]]) -> None:
        """Run each check, and print its result."""
        for surface in (each for some in surfaces for each in some):
            begin = time.monotonic()
            try:
                found = surface()
            except Exception:  # noqa: BLE001 - the other checks run as well
                traceback.print_exc()
                self.failed.append(surface.__name__)
                found = "FAILED"
            name = surface.__name__.replace("_", " ")
            print(f"{name:16} {time.monotonic() - begin:5.1f} s  {found}", flush=True)

    def functions(self) -> str:
        """Send with a handle in mapInArrow, and check that all messages arrive."""
        handle = ClientHandle(self.addresses[0], topology="sparks")

        def send(batches: Iterator[Any]) -> Iterator[Any]:
            with handle as client:
                for batch in batches:
                    client.send(TaskMessageBatch.from_arrow(batch["task"], batch["message"]))
                    yield batch

        frame = self.rows()
        assert frame.mapInArrow(send, frame.schema).count() == COUNT
        self.check_consumed(COUNT)
        return f"{COUNT} messages"

    def forgotten_flush(self) -> str:
        """Check that a task fails if it ends without leaving its block."""
        handle = ClientHandle(self.addresses[0], topology="sparks")

        def send(batches: Iterator[Any]) -> Iterator[Any]:
            client = handle.__enter__()
            for batch in batches:
                client.send(TaskMessageBatch.from_arrow(batch["task"], batch["message"]))
                yield batch

        frame = self.rows()
        refused(lambda: frame.mapInArrow(send, frame.schema).count(), "UnflushedMessagesError")
        self.consume()
        return "noticed"

    def foreach_batch(self) -> str:
        """Run the foreachBatch block of the Spark page: a sink for streams without the format."""
        (block,) = re.findall(r"```python\n([^`]*foreachBatch\([^`]*)```", PAGE.read_text(encoding="utf-8"))
        block = block.replace("/tmp/", f"{self.folder}/")  # noqa: S108 - the page's own
        names: dict[str, Any] = {"spark": self.spark, "__name__": "__main__"}
        exec(compile(block, str(PAGE), "exec"), names)  # noqa: S102 - our own page
        assert names["received"] == COUNT
        return f"{COUNT} messages, by the page's block"

    def team(self) -> str:
        """Sum in a Team of the tasks of a barrier stage, through both workers."""
        address = self.addresses[0]

        def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            with Team.of_stage([1, 3], address=address, topology="sparks") as team:
                total = team.all_reduce(sum(batch.num_rows for batch in batches))
            yield pa.RecordBatch.from_pydict({"total": [int(total)]})

        rows = self.spark.range(0, COUNT, 1, 2).mapInArrow(count, "total long", barrier=True).collect()
        assert [row.total for row in rows] == [COUNT, COUNT]
        return "the same sum in 2 tasks"

    def topology(self) -> str:
        """Run rows through a bolt and back, with columns in SQL types; check the traceback of a failure."""
        result = self.run_pass(Pass())
        wrong = result.frame.where("unix_timestamp(at) <> number")
        assert (result.frame.count(), wrong.count()) == (COUNT, 0)
        notes: list[str] = []
        try:
            self.run_pass(Pass(77))
        except ProcessFailedError as error:
            notes = error.__notes__
        assert 'raise LookupError("no such number")' in "".join(notes), notes
        return f"{COUNT} rows, and a failure"

    def run_pass(self, bolt: Pass) -> TopologyResult:
        builder = TopologyBuilder()
        builder.set_spout("numbers", Rows("number", "at"), 2)
        builder.set_bolt("pass", bolt, 2).shuffle_grouping("numbers")
        return run_topology(
            self.spark,
            builder.create_topology(),
            conf={"topology.workers": 2, "topology.max.spout.pending": 100},
            rows=self.spark.range(COUNT).selectExpr("id as number", "timestamp_seconds(id) as at"),
            outputs={"pass": "number long, at timestamp"},
            progress=lambda _: None,
        )

    def no_format(self) -> str:
        """Check that Spark 3.5, which has no formats in Python, is refused with the required release."""
        return refused(lambda: register(self.spark), "the format tuplewire needs Spark 4.0, this is 3.5")

    def write(self) -> str:
        """Write rows by task and by key; the format can be registered again."""
        register(self.spark)
        self.save(self.rows(), {})
        self.check_consumed(COUNT, once=False)
        keyed = self.rows().selectExpr("message", "cast(message as int) % 10 as key")
        self.save(keyed, {"grouping": "fields", "tasks": "1-4"})
        assert {message for _, message in self.consume()} == {b"%d" % number for number in range(COUNT)}
        return f"{COUNT} rows by task, {COUNT} by key"

    def exactly_once(self) -> str:
        """Write exactly once, although a task fails once after half of its rows."""
        marker = self.folder / "failed"

        def fails_once(batches: Iterator[Any]) -> Iterator[Any]:
            for batch in batches:
                yield batch.slice(0, batch.num_rows // 2)
                if not marker.exists():
                    marker.touch()
                    raise OSError("a failure, once")
                yield batch.slice(batch.num_rows // 2)

        frame = self.rows().coalesce(1)
        self.save(frame.mapInArrow(fails_once, frame.schema), {"deliveryGuarantee": "exactlyOnce"})
        assert marker.exists()
        self.check_consumed(COUNT)
        return f"{COUNT} rows, {COUNT // 2} of them computed twice"

    def read(self) -> str:
        """Read two times, and check that the messages remain in their tasks."""
        self.send(range(COUNT))
        for _ in range(2):
            seen = self.load(self.spark.read).selectExpr("cast(cast(message as string) as int) as n")
            assert seen.distinct().count() == COUNT
        self.check_consumed(COUNT)
        return f"{COUNT} messages, twice"

    def errors(self) -> str:
        """Check that a query with a wrong option raises Tuplewire's error."""
        refused(lambda: self.save(self.rows(), {"colour": "red"}), "unknown option 'colour'")
        refused(lambda: self.load(self.spark.read, colour="red").count(), "unknown option 'colour'")
        refused(lambda: self.finish(self.to_parquet("wrong", colour="red")), "unknown option 'colour'")
        return "unknown options refused: write, read, readStream"

    def available_now(self) -> str:
        """Run a query to files three times from one checkpoint: each message is in exactly one run."""
        for total in (COUNT, 2 * COUNT, 2 * COUNT):
            self.send(range(total - COUNT, total) if total > self.held("files") else ())
            self.finish(self.to_parquet("files"))
            assert self.held("files") == total, self.held("files")
        assert not self.consume()
        return f"{2 * COUNT} rows in 3 runs"

    def stream(self) -> str:
        """Run a query from two tasks to two others, stop it, and run it again from its checkpoint."""
        for turn in range(2):
            query = (
                self.load(self.spark.readStream, tasks="1,2")
                .selectExpr("task + 2 as task", "message")
                .writeStream.format("tuplewire")
                .options(**self.options(checkpointLocation=str(self.folder / "stream")))
                .trigger(processingTime="0 seconds")
                .start()
            )
            try:
                for begin in range(turn * COUNT, (turn + 1) * COUNT, COUNT // 2):
                    self.send(range(begin, begin + COUNT // 2), (1, 2))
                    self.wait(1, {3, 4}, begin + COUNT // 2, query)
                if turn:  # the next trigger acknowledges the last micro-batch
                    self.wait(0, {1, 2}, 0, query)
            finally:
                query.stop()
        assert sorted(int(payload) for _, payload in self.consume()) == list(range(2 * COUNT))
        return f"{2 * COUNT} messages in 2 runs, through a query"

    def limits(self) -> str:
        """Limit micro-batches; availableNow makes as many as needed."""
        self.send(range(COUNT))
        query = self.finish(self.to_parquet("limited", maxMessagesPerTrigger=str(COUNT // 4)))
        batches = [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]
        assert batches == [COUNT // 4] * 4, batches
        assert self.held("limited") == COUNT
        return f"micro-batches of {batches}"

    def no_limits(self) -> str:
        """Check that 4.0 and 4.1, which cannot limit a read, refuse the option."""
        query = lambda: self.finish(self.to_parquet("limited", maxBytesPerTrigger="100"))  # noqa: E731
        return refused(query, r"the option maxBytesPerTrigger needs Spark 4\.2, this is 4\.[01]")

    def options(self, **more: str) -> dict[str, str]:
        """Return options with the address of the workers."""
        return {"address": self.addresses[0], "topology": "sparks", "timeout": "30", **more}

    def rows(self) -> DataFrame:
        """Return a row for each number, for the four tasks in turn."""
        return self.spark.range(0, COUNT, 1, 2).selectExpr(
            "cast(id % 4 + 1 as int) as task", "cast(id as string) as message"
        )

    def save(self, frame: DataFrame, more: dict[str, str]) -> None:
        frame.write.format("tuplewire").mode("append").options(**self.options(**more)).save()

    def load(self, reader: Any, tasks: str = "1-4", **more: str) -> DataFrame:
        """Load the messages of tasks, as a batch or a stream."""
        frame: DataFrame = reader.format("tuplewire").options(**self.options(tasks=tasks, **more)).load()
        return frame

    def to_parquet(self, name: str, **more: str) -> StreamingQuery:
        """Start a query that writes the available messages to files."""
        return (
            self.load(self.spark.readStream, **more)
            .writeStream.format("parquet")
            .option("checkpointLocation", str(self.folder / f"{name}.checkpoint"))
            .trigger(availableNow=True)
            .start(str(self.folder / name))
        )

    def held(self, name: str) -> int:
        """Return the number of distinct messages in files."""
        folder = self.folder / name
        if not folder.exists():
            return 0
        frame = self.spark.read.parquet(str(folder))
        assert frame.count() == frame.select("message").distinct().count()
        return frame.count()

    def finish(self, query: StreamingQuery) -> StreamingQuery:
        """Wait for the end of a query, or raise its error."""
        assert query.awaitTermination(int(SECONDS)), query.status
        return query

    def wait(self, worker: int, tasks: set[int], count: int, query: StreamingQuery) -> None:
        """Wait until tasks of a worker have `count` queued messages, while a query runs."""
        deadline = time.monotonic() + SECONDS
        while sum(self.waiting(worker, tasks)) != count:
            assert query.isActive, str(query.exception())
            assert time.monotonic() < deadline, query.lastProgress
            time.sleep(0.1)

    def waiting(self, worker: int, tasks: Collection[int]) -> Iterator[int]:
        """Yield the number of queued messages of each of some tasks of a worker."""
        with ControlClient(self.addresses[worker]) as control:
            for each in control.status().tasks:
                if each.task in tasks:
                    yield each.queued_messages

    def send(self, numbers: Iterable[int], tasks: tuple[int, ...] = (1, 2, 3, 4)) -> None:
        """Send numbers to tasks in turn, as a program outside Spark does."""
        payloads: dict[int, list[bytes]] = {}
        for number in numbers:
            payloads.setdefault(tasks[number % len(tasks)], []).append(b"%d" % number)
        with Client(self.addresses[0], topology="sparks") as client:
            for task, each in payloads.items():
                client.send(TaskMessageBatch.from_columns(task, each))
            client.flush(SECONDS)

    def consume(self) -> list[tuple[int, bytes]]:
        """Consume and acknowledge all messages."""
        got: list[tuple[int, bytes]] = []
        for index, tasks in TASKS.items():
            waiting = sum(self.waiting(index, tasks))
            with (
                Client(self.addresses[index], topology="sparks") as client,
                client.recv(tasks, timeout=SECONDS) as batches,
            ):
                while waiting > 0:
                    batch = next(batches)
                    waiting -= len(batch)
                    got += [(group.task, each) for group in batch.groups for each in group.payloads()]
                batches.acknowledge()
        return got

    def check_consumed(self, count: int, *, once: bool = True) -> None:
        """Consume `count` messages; each has arrived at its task. once: False if Spark may repeat a task."""
        expected = Counter((number % 4 + 1, b"%d" % number) for number in range(count))
        found = Counter(self.consume())
        if not once and found.keys() == expected.keys():
            found &= expected
        assert found == expected, (found - expected, expected - found)


def refused(action: Callable[[], object], pattern: str) -> str:
    """Return the error line of a refused action."""
    told = "nothing"
    try:
        action()
    except Exception as error:  # noqa: BLE001 - each Spark has different classes
        told = str(error)
    found = re.search(f".*{pattern}.*", told)
    assert found is not None, told
    return found[0]


def main() -> int:
    """Run all checks; return 1 if one has failed."""
    print(f"--- Spark {pyspark.__version__} on Python {sys.version.split()[0]}", flush=True)
    (line,) = sys.argv[1:]
    assert pyspark.__version__.startswith(f"{line}."), pyspark.__file__
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        # Before the workers, because Spark forks.
        spark = stack.enter_context(local_session("sparks", cores=CORES, conf=CONF))
        workers = stack.enter_context(WorkerProcesses(2, "sparks", flags=["--drain-seconds=1"]))
        workers.assign(TASKS)
        stack.callback(close_clients)
        smoke = Smoke(spark, [each.address for each in workers.endpoints], folder)
        smoke.run()
    print(f"FAILED: {', '.join(smoke.failed)}" if smoke.failed else "passed")
    return bool(smoke.failed)


if __name__ == "__main__":
    sys.exit(main())
