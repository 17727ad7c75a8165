"""Word count, Storm's classic, over two hops.

lines -> spouts -> shuffle grouping -> split bolts -> fields grouping on word -> count bolts -> DataFrame
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import pyarrow as pa
import pyarrow.compute as pc

from tuplewire.config import KIB
from tuplewire.errors import ConfigError
from tuplewire.message import TaskMessageBatch
from tuplewire.pipelines.attachment import Attachment, WorkerEndpoint, spread
from tuplewire.pipelines.input import InputError, check_file, check_output
from tuplewire.pipelines.jobs import bolt_frame, check_slots, run_jobs
from tuplewire.pipelines.report import Progress, RunResult, write_account, write_table
from tuplewire.pipelines.stream import Outlet, receive
from tuplewire.pipelines.text import REPORT, SkipTally, read_lines, report, skipped_rows
from tuplewire.topology import fields, shuffle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "word string, count bigint"
"""The result: one row for each word. Words stand between white space, as in Python's str.split()."""

SHOWN_WORDS = 20
SHOWN_DIFFERENCES = 5
MAX_LINE_BYTES = 256 * KIB
"""Longer lines travel in pieces: a message has a largest size."""

_WHITE_SPACE = "[\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]+"
"""What str.split() splits at, for Java's regular expressions."""

_ROWS_PER_BATCH = 10_000


@dataclass(frozen=True, slots=True)
class WordCountTasks:
    """The task ids of each component; the spouts' follow, one for each partition of the input."""

    splitters: range
    counters: range

    @classmethod
    def of(cls, n_splitters: int, n_counters: int) -> WordCountTasks:
        """Return tasks numbered from 1; ConfigError for a component without any."""
        if min(n_splitters, n_counters) < 1:
            raise ConfigError("word count needs at least one split bolt and one count bolt")
        first_counter = 1 + n_splitters
        return cls(range(1, first_counter), range(first_counter, first_counter + n_counters))

    @property
    def first_spout(self) -> int:
        """The first task id that no bolt has."""
        return self.counters.stop


def assignment_for(n_workers: int, n_splitters: int = 2, n_counters: int = 2) -> dict[int, list[int]]:
    """Return the tasks of each worker, by its index."""
    tasks = WordCountTasks.of(n_splitters, n_counters)
    return spread(tasks.splitters, tasks.counters, n_workers=n_workers)


def run_wordcount(
    spark: SparkSession,
    workers: Sequence[WorkerEndpoint],
    path: Path,
    *,
    output: Path | None = None,
    n_splitters: int = 2,
    n_counters: int = 2,
    topology: str = "wordcount",
    progress: Progress | None = None,
) -> RunResult:
    """Run the pipeline on workers that have assignment_for(len(workers), n_splitters, n_counters).

    path: a UTF-8 text file; a line that is not UTF-8 is skipped and reported. output: a directory, which
    must not exist yet, to write the result into as CSV files with a header.
    Raises InputError, ConfigError or PipelineError.
    """
    check_file(path)
    check_output(output)
    tasks = WordCountTasks.of(n_splitters, n_counters)
    bolts = [*tasks.splitters, *tasks.counters]
    check_slots(spark, len(bolts))
    progress = progress or Progress()
    lines = read_lines(spark, path)
    checked = check_lines(lines)

    placed = assignment_for(len(workers), n_splitters, n_counters)
    attachment = Attachment.of(topology, f"wordcount-{uuid.uuid4().hex}", workers, placed)
    sources = range(tasks.first_spout, tasks.first_spout + checked.rdd.getNumPartitions())
    outcome = run_jobs(
        spark,
        workers,
        bolts=bolt_frame(spark, bolts, WordBolt(attachment, tasks, sources), SCHEMA),
        spouts=checked.mapInArrow(LineSpout(attachment, tasks), REPORT),
        tasks=bolts,
        progress=progress,
    )
    skipped = skipped_rows(lines, outcome.reports)
    lines_sent = sum(row["sent"] for row in outcome.reports)
    if skipped.count and not lines_sent:
        first = skipped.first[0]
        raise InputError(f"{path} has no line that can be used; line {first.line} {first.problem}")
    progress.stage("Comparing with Spark's own groupBy ...")
    words = outcome.table.selectExpr("coalesce(sum(count), 0)").collect()[0][0]
    result = RunResult(
        outcome.table,
        differences(outcome.table, expected(checked)),
        skipped,
        lines_sent + words,
        outcome.seconds,
        outcome.ledgers,
        {worker.worker_id: worker.metrics_url for worker in workers},
    )
    if output is not None:
        # The CSV that other programs read: quotes doubled, words as they are.
        result.table.write.csv(
            f"file:{output.absolute()}",
            header=True,
            escape='"',
            ignoreLeadingWhiteSpace=False,
            ignoreTrailingWhiteSpace=False,
        )
    return result


def write_result(stream: TextIO, result: RunResult, output: Path | None = None) -> None:
    """Write the commonest words and the account."""
    from pyspark.sql.functions import desc

    common = result.table.orderBy(desc("count"), "word").limit(SHOWN_WORDS).collect()
    write_table(stream, ("word", "count"), ((row["word"], f"{row['count']:,}") for row in common))
    distinct = result.table.count()
    if distinct > len(common):
        stream.write(f"... and {distinct - len(common):,} more words\n")
    stream.write("\n")
    write_account(stream, result)
    if output is not None:
        stream.write(f"All {distinct:,} words are in {output} (CSV)\n")


# --- input ------------------------------------------------------------------------------------


def check_lines(lines: DataFrame) -> DataFrame:
    """Return each line's `id`, its bytes as `line`, and what is the `problem` with it, if any."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that PySpark's users know

    return lines.select(
        "id",
        F.col("value").cast("binary").alias("line"),
        F.when(~F.is_valid_utf8("value"), F.lit("is not UTF-8")).alias("problem"),
    )


# --- the tasks --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LineSpout:
    """Sends the lines of a partition to the split bolts in turn."""

    attachment: Attachment
    tasks: WordCountTasks

    def __call__(self, partition: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run as a PySpark task (mapInArrow); yields the spout's report."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None  # noqa: S101 - Spark runs this in a task only
        task = self.tasks.first_spout + context.partitionId()
        grouping = shuffle(self.tasks.splitters, start=task)
        tally = SkipTally()
        with self.attachment.client(task) as client:
            outlet = Outlet(client, task, self.tasks.splitters)
            for rows in partition:
                lines = in_pieces(tally.split(rows).column("line"))
                chosen = pa.array(grouping.choose(range(len(lines))), pa.int32())
                outlet.send(TaskMessageBatch.from_arrow(chosen, lines, task))
            outlet.end()
        yield report(task, outlet.sent, tally)


@dataclass(frozen=True, slots=True)
class WordBolt:
    """Either of the two bolts, as the task says."""

    attachment: Attachment
    tasks: WordCountTasks
    sources: Sequence[int]

    def __call__(self, task: int) -> Iterator[pa.RecordBatch]:
        """Run in a PySpark task; a split bolt yields nothing, a count bolt rows of SCHEMA."""
        if task in self.tasks.splitters:
            self._split(task)
        else:
            yield from self._count(task)

    def _split(self, task: int) -> None:
        grouping = fields(self.tasks.counters)
        with self.attachment.client(task) as client:
            outlet = Outlet(client, task, self.tasks.counters)
            for group in receive(client, task, self.sources):
                # A new line is white space as well, so many lines are split at once.
                words = b"\n".join(group.payloads()).decode().split()
                payloads = [word.encode() for word in words]
                outlet.send(TaskMessageBatch.from_columns(grouping.choose(words), payloads, task))
            outlet.end()

    def _count(self, task: int) -> Iterator[pa.RecordBatch]:
        counts: Counter[bytes] = Counter()
        with self.attachment.client(task) as client:
            for group in receive(client, task, self.tasks.splitters):
                counts.update(group.payloads())
        table = pa.table(
            {
                "word": pa.array(list(counts.keys()), pa.binary()).cast(pa.string()),
                "count": pa.array(list(counts.values()), pa.int64()),
            }
        )
        yield from table.to_batches(_ROWS_PER_BATCH)


def in_pieces(lines: pa.Array) -> pa.Array:
    """Return the lines with those over MAX_LINE_BYTES cut at white space."""
    longest = pc.max(pc.binary_length(lines)).as_py()
    if longest is None or longest <= MAX_LINE_BYTES:
        return lines
    pieces: list[bytes] = []
    for line in lines.to_pylist():
        pieces.extend(_cut(line) if len(line) > MAX_LINE_BYTES else [line])
    return pa.array(pieces, pa.binary())


def _cut(line: bytes) -> Iterator[bytes]:
    piece: list[bytes] = []
    size = 0
    for word in line.decode().split():
        encoded = word.encode()
        if piece and size + len(encoded) >= MAX_LINE_BYTES:
            yield b" ".join(piece)
            piece, size = [], 0
        piece.append(encoded)
        size += len(encoded) + 1
    if piece:
        yield b" ".join(piece)


# --- the check --------------------------------------------------------------------------------


def expected(checked: DataFrame) -> DataFrame:
    """Return what Spark's own split and groupBy make of the same lines, as rows of SCHEMA."""
    from pyspark.sql import functions as F  # noqa: N812

    text = F.col("line").cast("string")
    return (
        checked.where("problem is null")
        .select(F.explode(F.split(text, _WHITE_SPACE)).alias("word"))
        .where("word != ''")
        .groupBy("word")
        .count()
    )


def differences(table: DataFrame, wanted: DataFrame) -> list[str]:
    """Compare two results word by word, in Spark; say what differs, at most SHOWN_DIFFERENCES of it."""
    joined = table.withColumnRenamed("count", "ours").join(
        wanted.withColumnRenamed("count", "theirs"), "word", "full_outer"
    )
    rows = joined.where("not ours <=> theirs").limit(SHOWN_DIFFERENCES).collect()
    return [f"{row['word']!r}: {row['ours']}, Spark has {row['theirs']}" for row in rows]
