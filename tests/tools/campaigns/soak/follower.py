"""The consumer of the changing tasks: a process that follows the assignment file."""

from __future__ import annotations

import json
import threading
from collections.abc import Collection
from multiprocessing.connection import Connection
from pathlib import Path

from campaigns.soak.generations import is_consumed, is_fresh
from helpers.program import Threads, serve
from helpers.streams import Sequences, Stream
from helpers.topology import TOPOLOGY

from tuplewire import Client
from tuplewire.errors import RefusedError, UnreachableError
from tuplewire.subscription import Subscription
from tuplewire_service.worker.assignment import AssignedWorker, Assignment

_POLL_SECONDS = 0.05
_SILENCE_SECONDS = 0.25


def follower(pipe: Connection, assignment_file: str) -> None:
    """Consume every task at its owner; answers `received`, `problems`, and `forget` for removed tasks."""
    file = Path(assignment_file)
    workers: dict[str, AssignedWorker] = {}
    seen = Sequences()
    lock = threading.Lock()
    threads = Threads()
    readers: set[str] = set()

    def tasks_of(worker_id: str) -> tuple[int, ...]:
        worker = workers.get(worker_id)
        return () if worker is None else tuple(filter(is_consumed, worker.tasks))

    def read(batches: Subscription, worker_id: str, tasks: Collection[int]) -> None:
        while tasks_of(worker_id) == tasks and not threads.stop.is_set():
            try:
                batch = next(batches)
            except TimeoutError:
                continue
            with lock:
                for group in batch.groups:
                    seen.take_new(group)
        batches.acknowledge()

    def consume(worker_id: str) -> None:
        while (tasks := tasks_of(worker_id)) and not threads.stop.wait(_POLL_SECONDS):
            address = workers[worker_id].address
            try:
                with (
                    Client(address, topology=TOPOLOGY) as client,
                    client.recv(tasks, timeout=_SILENCE_SECONDS) as batches,
                ):
                    read(batches, worker_id, tasks)
            except (RefusedError, UnreachableError):
                continue  # it does not have the assignment yet, or is restarting
        readers.discard(worker_id)

    def follow() -> None:
        nonlocal workers
        while not threads.stop.wait(_POLL_SECONDS):
            assignment = Assignment.from_json(json.loads(file.read_text(encoding="utf-8")))
            workers = {each.worker_id: each for each in assignment.workers}
            for worker_id in workers:
                if tasks_of(worker_id) and worker_id not in readers:
                    readers.add(worker_id)
                    threads.start(consume, worker_id)

    def received() -> dict[Stream, int]:
        with lock:
            return dict(seen.next)

    def forget() -> None:
        with lock:
            for stream in [stream for stream in seen.next if is_fresh(stream[1])]:
                del seen.next[stream]

    threads.start(follow)
    answers = {"received": received, "problems": lambda: list(seen.problems), "forget": forget}
    serve(pipe, answers, threads.errors)
    threads.end()
