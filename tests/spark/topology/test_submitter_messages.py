"""The control messages to a program that submits a topology to Spark: all of them are read."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from helpers import eventually
from helpers.topology import workers_with
from pyspark.sql import DataFrame, SparkSession

from tuplewire import TaskMessageBatch
from tuplewire.client import Client
from tuplewire.connection.control_client import ControlClient
from tuplewire_demos.word_topology import wordcount_topology
from tuplewire_topology.coordination.control_channel import ControlKind, ControlMessage
from tuplewire_topology.spark import topology as job_topology
from tuplewire_topology.spark.member import Submission
from tuplewire_topology.spark.plan import SUBMITTER_TASK, WorkerRef
from tuplewire_topology.spark.rows import Output

pytestmark = pytest.mark.spark
SECONDS = 60.0


def test_a_job_is_done_once_all_are_read(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job is done after its last control message was read, even if Spark reports its end earlier."""
    monkeypatch.setattr(
        job_topology, "_LAST_MESSAGE_SECONDS", SECONDS
    )  # a busy machine may need more than five
    go_on = threading.Event()

    def action() -> DataFrame:
        assert go_on.wait(SECONDS)
        return spark.range(1)

    words = wordcount_topology(Path("book.txt"))
    with workers_with([SUBMITTER_TASK], topology="words") as local, ExitStack() as stack:
        (worker,) = local.endpoints
        control = stack.enter_context(ControlClient(worker.unix_address))
        place = WorkerRef(worker.unix_address, worker.worker_id, worker.address, "words", 1)
        submitted = Submission("words", "run", words, {}, 2, Output({}, frozenset()), submitter=place)
        file = stack.enter_context(submitted.token.as_file())
        topology = job_topology.SparkTopology(spark, submitted, action, ExitStack(), file)
        member = stack.enter_context(Client(worker.unix_address, topology="words"))

        def tell(rank: int, kind: ControlKind, *values: Any) -> None:
            payload = ControlMessage("run", 7, rank, kind, values).to_bytes()
            member.send(TaskMessageBatch.from_columns([SUBMITTER_TASK], [payload]))

        tell(0, ControlKind.STARTED, 1, 2)
        tell(0, ControlKind.CLOSED)
        go_on.set()
        eventually(lambda: topology._result is not None, SECONDS, "the job's action is over")
        for emitted in range(1, 11):
            tell(0, ControlKind.PROGRESS, emitted, emitted, 0)
            eventually(lambda e=emitted: topology.progress().emitted == e, SECONDS, "progress")  # type: ignore[misc]
        assert not topology.is_done
        tell(1, ControlKind.CLOSED)
        assert topology.wait(SECONDS)
        member.flush(SECONDS)
        ledger = control.status().ledger
        assert (ledger.accepted, ledger.acknowledged, ledger.pending) == (13, 13, 0)
