"""`tuplewire run wordcount` as a topology: in this process, or in processes of its own."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from tuplewire.errors import ConfigError
from tuplewire.pipelines.report import Progress
from tuplewire.pipelines.words import COUNTS, SKIPPED, wordcount_topology
from tuplewire.pipelines.words_result import (
    WordCounts,
    differences_of,
    expected_counts,
    skipped_lines,
    write_csv,
    write_words,
)
from tuplewire.session.ledger import LedgerSnapshot
from tuplewire_service.topology.cluster import cluster_of
from tuplewire_service.topology.distributed_cluster import DistributedTopology
from tuplewire_service.topology.local_topology import LocalTopology

_FOREVER = 10.0**9
_PENDING = 5000
_SETTLE_SECONDS = 10.0
_POLL_SECONDS = 0.02


def run_words(arguments: argparse.Namespace, mode: str) -> WordCounts:
    """Run it, write its account, and return it. mode: "local" or "distributed", of `storm.cluster.mode`.

    Raises InputError for a file or directory that cannot be used, and the error by which the topology fails.
    """
    if arguments.cores is not None:
        raise ConfigError("--cores is for Spark; leave it out, or run with --mode spark")
    progress = Progress()
    path = arguments.input
    topology = wordcount_topology(path, n_splitters=arguments.splitters, n_counters=arguments.counters)
    conf: dict[str, Any] = {
        "storm.cluster.mode": mode,
        "topology.workers": arguments.workers,
        "topology.max.spout.pending": _PENDING,
    }
    where = "processes" if mode == "distributed" else "workers of this process"
    progress.stage(f"Starting {arguments.workers} {where} ...")
    with cluster_of(conf) as cluster:
        running = cluster.submit("wordcount", conf, topology, collect=[COUNTS, SKIPPED])
        progress.stage(f"Counting the words of {path} ...")
        started = time.monotonic()
        captured = running.finish(_FOREVER)
        seconds = time.monotonic() - started
        executors, ledgers = running.status().executors, _settled_ledgers(running)
    progress.stage("Comparing with collections.Counter ...")
    counts = dict(captured.tuples(COUNTS))
    result = WordCounts(
        counts,
        differences_of(counts, expected_counts(path)),
        skipped_lines(path, captured.tuples(SKIPPED)),
        seconds,
        executors,
        ledgers,
    )
    write_words(sys.stdout, result)
    if arguments.output is not None:
        write_csv(arguments.output, counts)
        print(f"All {len(counts):,} words are in {arguments.output} (CSV)")
    return result


def _settled_ledgers(running: LocalTopology | DistributedTopology) -> dict[str, LedgerSnapshot]:
    """Return the ledgers once nothing is pending, or after a while: acknowledgements come last."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while True:
        ledgers = running.ledgers()
        if not any(ledger.pending for ledger in ledgers.values()) or time.monotonic() > deadline:
            return ledgers
        time.sleep(_POLL_SECONDS)
