"""Runs the topology of `tuplewire run wordcount` in this process, in separate processes, or on Spark.

Used by run_command.py. Owns no state. Not thread-safe. Design: docs/design/topologies.md.
"""

from __future__ import annotations

import argparse
import csv
import gc
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from tuplewire.errors import ConfigError, TuplewireError
from tuplewire.text.formatting import counted
from tuplewire_demos.file_spout import SKIPPED, lines_with_offsets, locate_skipped
from tuplewire_demos.input import InputError
from tuplewire_demos.report import Progress, RunReport, compare_results, wait_until_settled
from tuplewire_demos.word_topology import COUNTS, wordcount_topology
from tuplewire_service.command.terminal import write_table
from tuplewire_topology.clusters.cluster import cluster_of
from tuplewire_topology.clusters.running_topology import RunningTopology

_GC_THRESHOLDS = (100_000, 50, 100)
"""Tens of thousands of tuples wait in queues, and none is part of a cycle. With Python's default thresholds,
garbage collection takes a quarter of the time."""
_SWITCH_SECONDS = 0.05
"""The interval at which threads switch. With Python's default of 5 ms, the thread that holds the acker's lock
is interrupted more often, and all other threads wait for it. A run then takes a quarter more time."""
_NO_TIMEOUT_SECONDS = 10.0**9
_PENDING = 5000
_SHOW_SECONDS = 0.25
_SHOWN_WORDS = 20


@dataclass(frozen=True, slots=True)
class WordCounts(RunReport):
    """The results of a finished run."""

    counts: Mapping[str, int]
    seconds: float


def run_words(path: Path, arguments: argparse.Namespace, progress: Progress) -> WordCounts:
    """Run the topology in this process or in separate ones, write the result, and return it.

    Raises InputError for an unusable file or directory, ConfigError, and the error of a failed topology.
    """
    if arguments.cores is not None:
        raise ConfigError("--cores is for Spark; leave it out, or run with --mode spark")
    local = arguments.mode == "local"
    if local:  # only then do executors run in this process, which has no other purpose
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)
        sys.setswitchinterval(_SWITCH_SECONDS)
    topology = wordcount_topology(path, n_splitters=arguments.splitters, n_counters=arguments.counters)
    conf: dict[str, Any] = {
        "storm.cluster.mode": "local" if local else "distributed",
        "topology.workers": arguments.workers,
        "topology.max.spout.pending": _PENDING,
    }
    where = "in this process" if local else "outside this process"
    progress.start_stage(f"Starting {counted(arguments.workers, 'worker')} {where} ...")
    with cluster_of(conf) as cluster:
        expected = expected_counts(path)
        started = time.monotonic()
        running = cluster.submit("wordcount", conf, topology, collect=[COUNTS, SKIPPED])
        progress.start_stage(f"Counting the words of {arguments.input} ...")
        with _progress_thread(running, sum(expected.values()), progress):
            captured = running.finish(_NO_TIMEOUT_SECONDS)
        seconds = time.monotonic() - started
        executors, ledgers = running.status().executors, wait_until_settled(running.ledgers)
    counts = dict(captured.tuples(COUNTS))
    skipped = locate_skipped(path, captured.tuples(SKIPPED))
    differences = compare_results(counts, expected, "Counter")
    result = WordCounts(differences, skipped, ledgers, executors, counts, seconds)
    return _write_result(arguments, result, progress)


@contextmanager
def _progress_thread(running: RunningTopology, total: int, progress: Progress) -> Iterator[None]:
    stopped = threading.Event()

    def show() -> None:
        while not stopped.wait(_SHOW_SECONDS):
            with suppress(TuplewireError):  # finish() reports it
                executors = running.status().executors
                done = sum(each.counts.executed for each in executors if each.component == COUNTS)
                progress.show_progress(min(done, total), total, "words")

    thread = threading.Thread(target=show, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def run_words_on_spark(path: Path, arguments: argparse.Namespace, progress: Progress) -> WordCounts:
    """Run the topology as PySpark tasks, each a client of one of the workers; otherwise like run_words()."""
    from tuplewire_demos.spark_run import SKIPPED_COLUMNS, cores_of, run_on_spark, spark_and_workers

    outputs = {COUNTS: "word string, count bigint", SKIPPED: SKIPPED_COLUMNS}
    with spark_and_workers("wordcount", arguments, progress) as (spark, workers):
        topology = wordcount_topology(
            path, n_spouts=cores_of(spark), n_splitters=arguments.splitters, n_counters=arguments.counters
        )
        started = time.monotonic()
        spark_result, ledgers = run_on_spark(
            spark, topology, workers, outputs, name="wordcount", pending=_PENDING, progress=progress
        )
        # A word may be in several rows. Counts only grow, so the largest one is the last.
        counts = dict(map(tuple, spark_result.frames[COUNTS].groupBy("word").max("count").collect()))
        skipped = locate_skipped(path, spark_result.frames[SKIPPED].collect())
        seconds = time.monotonic() - started
    progress.start_stage("Comparing with collections.Counter ...")
    differences = compare_results(counts, expected_counts(path), "Counter")
    result = WordCounts(differences, skipped, ledgers, spark_result.executors, counts, seconds)
    return _write_result(arguments, result, progress)


def _write_result(arguments: argparse.Namespace, result: WordCounts, progress: Progress) -> WordCounts:
    progress.end()
    write_words(sys.stdout, result, verbose=arguments.verbose)
    if arguments.output is not None:
        write_csv(arguments.output, result.counts)
        print(f"All {len(result.counts):,} words are in {arguments.output} (CSV)")
    return result


def expected_counts(path: Path) -> Counter[str]:
    """Count a file's words with collections.Counter, except in lines that are not UTF-8."""
    counts: Counter[str] = Counter()
    for _, line in lines_with_offsets(path):
        with suppress(UnicodeDecodeError):
            counts.update(line.decode().split())
    return counts


def write_words(stream: TextIO, result: WordCounts, *, verbose: bool) -> None:
    """Write the most frequent words and the summary; with `verbose`, also the executors' statistics."""
    common = sorted(result.counts.items(), key=lambda pair: (-pair[1], pair[0]))[:_SHOWN_WORDS]
    write_table(stream, ("word", "count"), ((word, f"{count:,}") for word, count in common))
    if len(result.counts) > len(common):
        stream.write(f"... and {len(result.counts) - len(common):,} more words\n")
    words = sum(result.counts.values())
    rate = words / max(result.seconds, 0.001)
    rates = [f"{words:,} words in {result.seconds:.1f} s, with the start of the tasks: {rate:,.0f} words/s"]
    result.write_summary(stream, "collections.Counter on the same lines", rates, verbose=verbose)


def write_csv(directory: Path, counts: Mapping[str, int]) -> None:
    """Write all words to a new directory, as CSV with a header. Raises InputError if this fails."""
    try:
        directory.mkdir(parents=True)
        with (directory / "counts.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("word", "count"))
            writer.writerows(sorted(counts.items()))
    except OSError as error:
        raise InputError(f"cannot write the output {directory}: {error.strerror}") from error
