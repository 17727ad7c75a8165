"""The mail of the program that has submitted a topology to Spark: it is read to its end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

from helpers import eventually

from tuplewire import TaskMessageBatch
from tuplewire.client import Client
from tuplewire.control import ControlClient
from tuplewire.pipelines.words import wordcount_topology
from tuplewire.spark.topology.job import Job
from tuplewire.spark.topology.mail import Kind, Mail
from tuplewire.spark.topology.member import Submitted
from tuplewire.spark.topology.output import Output
from tuplewire.spark.topology.plan import SUBMITTER_TASK, Place
from tuplewire.spark.topology.running import SparkTopology
from tuplewire_service.server.launch import LocalWorkers


class EndedJob:
    """Stands for a Spark job that ends well when it is told to."""

    group = "group"
    error = None
    was_cancelled = False

    def __init__(self) -> None:
        self.over = threading.Event()

    def start(self, ended: Callable[[], None]) -> None:
        """Take what is to be called at the end."""
        self._ended = ended

    def end(self) -> None:
        """End the job, in a thread of its own."""
        threading.Thread(target=self._end, daemon=True).start()

    def _end(self) -> None:
        self._ended()
        self.over.set()


def test_a_job_is_done_once_all_mail_is_read() -> None:
    """Spark may say that all tasks have ended before their last mail is here: none of it stays behind."""
    job = EndedJob()
    submitted = Submitted("mail", "run", wordcount_topology(Path("book.txt")), {}, 2, Output({}, frozenset()))
    with LocalWorkers(1, "mail") as local, ExitStack() as stack:
        local.assign({0: [SUBMITTER_TASK]})
        (worker,) = local.endpoints
        control = stack.enter_context(ControlClient(worker.unix_address))
        place = Place(worker.unix_address, worker.worker_id, worker.address, "mail", 1)
        topology = SparkTopology(submitted, cast("Job", job), place, ExitStack())
        member = stack.enter_context(Client(worker.unix_address, topology="mail"))

        def tell(rank: int, kind: Kind, *values: Any) -> None:
            payload = Mail("run", 7, rank, kind, values).to_bytes()
            member.send(TaskMessageBatch.from_columns([SUBMITTER_TASK], [payload]))

        tell(0, Kind.BEGUN, 1, 2)
        tell(0, Kind.PROGRESS, 5, 5)
        tell(0, Kind.CLOSED)
        eventually(lambda: topology.progress().emitted == 5, 10, "progress")
        job.end()
        assert not job.over.wait(0.2)
        tell(1, Kind.CLOSED)
        assert job.over.wait(10)
        member.flush()
        ledger = control.status().ledger
        assert (ledger.accepted, ledger.acknowledged, ledger.pending) == (4, 4, 0)
