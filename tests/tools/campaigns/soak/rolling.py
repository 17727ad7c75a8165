"""Three workers under full load, each restarted in turn: what must hold at every restart and at the end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from helpers.program import Program
from helpers.restartable import Restart, RestartableWorker
from helpers.streams import Consumed, Load, Produced, consumer, producer
from helpers.topology import TOPOLOGY

from tuplewire.session.ledger import LedgerSnapshot
from tuplewire_service.testing import eventually
from tuplewire_service.worker.assignment import AssignedWorker, Assignment

WORKERS = 3
TASKS = tuple(range(1, 1 + 2 * WORKERS))
"""Two at each worker."""
BATCH = 200
"""Messages per task that a producer hands over at a time."""
PROGRESS = 10_000
"""Messages that every stream moves on between two restarts."""
_WAIT_SECONDS = 120.0


def tasks_of(index: int) -> tuple[int, ...]:
    """Return the tasks of a worker."""
    return TASKS[2 * index : 2 * index + 2]


def source_at(index: int) -> int:
    """Return the task that sends through a worker; it is in no assignment, since nobody sends to it."""
    return 100 + index


@dataclass(slots=True)
class Account:
    """What became of everything."""

    produced: Produced
    consumed: Consumed
    ledgers: list[LedgerSnapshot] = field(default_factory=list)
    """What each worker printed at each of its ends."""
    exit_codes: list[int] = field(default_factory=list)

    @property
    def expected_accepted(self) -> int:
        """How many messages all workers together have accepted if none was passed on twice.

        A message to a task at the worker that its sender is connected to is accepted once, any other twice.
        """
        local = {(source_at(index), task) for index in range(WORKERS) for task in tasks_of(index)}
        return sum(count * (1 if stream in local else 2) for stream, count in self.produced.sent.items())

    @property
    def faults(self) -> list[str]:
        """Everything that should not be, in words."""
        sent, received = self.produced.sent, self.consumed.received
        faults = list(self.consumed.problems)
        faults += [
            f"source {source} to task {task}: {count} sent, {received.get((source, task), 0)} received"
            for (source, task), count in sent.items()
            if received.get((source, task), 0) != count
        ]
        faults += [
            f"source {source}: {ledger}"
            for source, ledger in self.produced.ledgers.items()
            if not _clean(ledger)
        ]
        faults += [f"a worker: {ledger}" for ledger in self.ledgers if not _clean(ledger)]
        faults += [f"a worker ended with {code}" for code in self.exit_codes if code]
        if (accepted := sum(ledger.accepted for ledger in self.ledgers)) != self.expected_accepted:
            faults.append(f"the workers have accepted {accepted} messages, not {self.expected_accepted}")
        return faults

    def __str__(self) -> str:
        sent, received = sum(self.produced.sent.values()), sum(self.consumed.received.values())
        total = LedgerSnapshot(
            sum(ledger.accepted for ledger in self.ledgers),
            sum(ledger.acknowledged for ledger in self.ledgers),
            {"all": sum(sum(ledger.dropped.values()) for ledger in self.ledgers)},
            sum(ledger.pending for ledger in self.ledgers),
        )
        return (
            f"sent {sent:,}, received {received:,}\nall workers: {total}, expected {self.expected_accepted}"
        )


def _clean(ledger: LedgerSnapshot) -> bool:
    return ledger.balanced and not ledger.pending and not sum(ledger.dropped.values())


@contextmanager
def _workers(directory: Path, drain_seconds: float) -> Iterator[list[RestartableWorker]]:
    assignment = directory / "assignment.json"
    with ExitStack() as stack:
        workers = [
            stack.enter_context(
                RestartableWorker(
                    f"worker-{index}", directory, assignment, [f"--drain-seconds={drain_seconds}"]
                )
            )
            for index in range(WORKERS)
        ]
        placed = tuple(
            AssignedWorker(each.worker_id, each.endpoint.address, tasks_of(index))
            for index, each in enumerate(workers)
        )
        assignment.write_text(json.dumps(Assignment(1, TOPOLOGY, placed).to_json()), encoding="utf-8")
        for each in workers:
            each.wait_ready()
        yield workers


def rolling_restart(
    directory: Path,
    restarts: int,
    drain_seconds: float,
    report: Callable[[int, Restart], None],
    progress: int = PROGRESS,
) -> Account:
    """Restart the workers in turn while producers at each send to every task; return what became of it all.

    report: gets each restart with its number, from 1. progress: how many messages of every stream come
    between two restarts.
    """
    with _workers(directory, drain_seconds) as workers:
        addresses = [each.endpoint.address for each in workers]
        routes = [(address, source_at(index)) for index, address in enumerate(addresses)]
        subscriptions = [(address, tasks_of(index)) for index, address in enumerate(addresses)]
        ledgers, exit_codes = [], []
        with (
            Program(consumer, TOPOLOGY, subscriptions) as consuming,
            Program(producer, TOPOLOGY, routes, Load(TASKS, BATCH)) as producing,
        ):
            for number in range(1, restarts + 1):
                _await_progress(consuming, progress)
                restart = workers[number % WORKERS].restart()
                ledgers.append(restart.ledger)
                exit_codes.append(restart.exit_code)
                report(number, restart)
            _await_progress(consuming, progress)
            produced: Produced = producing.ask("finish")
            eventually(
                lambda: _received(consuming) >= sum(produced.sent.values()), _WAIT_SECONDS, "all received"
            )
            consumed: Consumed = consuming.ask("finish")
        for each in workers:
            code, ledger = each.end()
            ledgers.append(ledger)
            exit_codes.append(code)
        return Account(produced, consumed, ledgers, exit_codes)


def _received(consuming: Program) -> int:
    consumed: Consumed = consuming.ask("progress")
    return sum(consumed.received.values())


def _await_progress(consuming: Program, progress: int) -> None:
    """Wait until every stream, from each source to each task, has moved on."""
    start: Consumed = consuming.ask("progress")

    def moved() -> bool:
        now: Consumed = consuming.ask("progress")
        return all(
            now.received.get((source_at(index), task), 0)
            >= start.received.get((source_at(index), task), 0) + progress
            for index in range(WORKERS)
            for task in TASKS
        )

    eventually(moved, _WAIT_SECONDS, f"{progress} more messages of every stream")
