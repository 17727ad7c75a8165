"""Real workers for a test, and numbered messages, which reveal any loss or reordering."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import Any

from helpers.admin import samples
from helpers.ports import free_port
from tuplewire import Client, TaskGroup, TaskMessageBatch
from tuplewire.connection.control_client import ControlClient
from tuplewire.processes.worker_processes import Endpoint, WorkerProcesses
from tuplewire.session.ledger import DropReason, LedgerSnapshot
from tuplewire.subscription import Subscription
from tuplewire.wire import control_pb2
from tuplewire_service.command.status_report import ledger_of
from tuplewire_service.control.control_messages import assignment_to_wire
from tuplewire_service.testing import eventually
from tuplewire_service.testing.fault_proxy import FaultProxy
from tuplewire_service.worker.assignment import AssignedWorker, Assignment

TOPOLOGY = "test"
Message = tuple[int | None, bytes]
"""The source task and the payload of a received message."""


class Pair:
    """Two workers with a thousand tasks each. Each test uses different tasks."""

    def __init__(self, near: Endpoint, far: Endpoint) -> None:
        self.near = near
        self.far = far
        self._near_tasks = count(0)
        self._far_tasks = count(1000)

    def near_task(self) -> int:
        """Return an unused task of the worker `near`."""
        return next(self._near_tasks)

    def far_task(self) -> int:
        """Return an unused task of the worker `far`."""
        return next(self._far_tasks)

    def check_balance(self) -> None:
        """Fail if a worker's ledger is not balanced."""
        for endpoint in (self.near, self.far):
            assert ledger(endpoint).balanced, ledger(endpoint)


@contextmanager
def workers_with(
    *shares: Sequence[int], topology: str = TOPOLOGY, **options: Any
) -> Iterator[WorkerProcesses]:
    """Run a worker for each share of tasks, with the options of WorkerProcesses."""
    with WorkerProcesses(len(shares), topology, **options) as workers:
        workers.assign(dict(enumerate(shares)), 60)
        yield workers


@contextmanager
def pair_of_workers(*flags: str) -> Iterator[Pair]:
    """Run two workers; both must exit with a balanced ledger, and with 1 if they dropped messages, else 0."""
    flags = ("--drain-seconds=0.5", *flags)
    with (
        tempfile.TemporaryDirectory() as directory,
        workers_with(range(1000), range(1000, 2000), directory=Path(directory), flags=flags) as workers,
    ):
        pair = Pair(*workers.endpoints)
        yield pair
        pair.check_balance()
        check_end(workers)


def check_end(workers: WorkerProcesses) -> None:
    """Stop workers. Each must exit with 1 if its drain dropped messages, else with 0."""
    codes = workers.stop()
    drained = [drained_ledger(workers.log_path(index)) for index in range(len(codes))]
    assert codes == [DropReason.SHUTDOWN in each.dropped for each in drained], drained


@contextmanager
def one_worker(
    worker_id: str, *flags: str, directory: Path, port: int = 0, tasks: Iterable[int] | None = None
) -> Iterator[Endpoint]:
    """Run one worker, perhaps on a given port, which the test may kill. tasks=None: without an assignment."""
    own = directory / f"{worker_id}-{port}"
    own.mkdir()
    with WorkerProcesses(
        1,
        TOPOLOGY,
        directory=own,
        flags=[
            f"--worker-id={worker_id}",
            f"--listen=127.0.0.1:{port or free_port()}",
            "--drain-seconds=1",
            *flags,
        ],
    ) as workers:
        (endpoint,) = workers.endpoints
        if tasks is not None:
            assign(endpoint, 1, {endpoint: tasks})
        yield endpoint


Tasks = Mapping[tuple[str, str], Iterable[int]] | Mapping[Endpoint, Iterable[int]]
"""(worker id, address), or a worker's endpoint, mapped to tasks."""


def through(proxy: FaultProxy, endpoint: Endpoint) -> Endpoint:
    """Return a worker's endpoint for other workers, with the proxy in place of the proxy's target."""
    if endpoint.peer_address:
        return replace(endpoint, peer_address=proxy.address)
    return replace(endpoint, address=proxy.address)


def proxy_before(endpoint: Endpoint) -> FaultProxy:
    """Return a proxy between a worker and its senders."""
    return FaultProxy(endpoint.peer_address or endpoint.address)


def _assigned(worker: tuple[str, str] | Endpoint, tasks: Iterable[int]) -> AssignedWorker:
    if isinstance(worker, tuple):
        return AssignedWorker(*worker, tuple(tasks))
    return AssignedWorker(worker.worker_id, worker.address, tuple(tasks), peer_address=worker.peer_address)


def _assignment(version: int, workers: Tasks) -> Assignment:
    return Assignment(version, TOPOLOGY, tuple(_assigned(*each) for each in workers.items()))


def assign(endpoints: Endpoint | Iterable[Endpoint], version: int, workers: Tasks) -> None:
    """Push an assignment to one worker, or to several."""
    for endpoint in [endpoints] if isinstance(endpoints, Endpoint) else endpoints:
        with ControlClient(endpoint.address) as control:
            control.update_assignment(assignment_to_wire(_assignment(version, workers)))


def ready(*workers: Endpoint, seconds: float = 10) -> None:
    """Wait until workers have their assignments, and are connected to each other."""
    for worker in workers:
        with ControlClient(worker.address) as control:
            control.wait_ready(seconds)


def assignment_file(directory: Path, version: int, workers: Tasks) -> Path:
    """Write an assignment to a file, for a worker that needs it from the start."""
    file = directory / "assignment.json"
    file.write_text(as_json(_assignment(version, workers)))
    return file


def as_json(assignment: Assignment) -> str:
    """Return the content of an assignment file."""
    form = asdict(assignment)
    del form["owner_by_task"]
    return json.dumps(form)


def status(endpoint: Endpoint) -> control_pb2.GetStatusResponse:
    """Return a worker's status."""
    with ControlClient(endpoint.address) as control:
        return control.status()


def ledger(endpoint: Endpoint) -> LedgerSnapshot:
    """Return a worker's ledger."""
    return ledger_of(status(endpoint).ledger)


def drained_ledger(log: Path) -> LedgerSnapshot:
    """Return the ledger that a worker logged at its exit. AssertionError unless there is exactly one."""
    printed = re.findall(r'worker\.drained.*ledger="([^"]*)"', log.read_text(encoding="utf-8"))
    assert len(printed) == 1, f"{log} has {len(printed)} balances"
    counts = {name: int(count) for name, count in re.findall(r"(\w+) (\d+)", printed[0])}
    accepted, acknowledged, pending = (counts.pop(name) for name in ("accepted", "acknowledged", "pending"))
    counts.pop("dropped", None)  # the label, with 0 if no messages were dropped
    ledger = LedgerSnapshot(accepted, acknowledged, counts, pending)
    assert str(ledger) == printed[0]
    return ledger


def has_ended(endpoint: Endpoint) -> bool:
    """Return True if a worker's process has exited. Its parent must not have read the exit code yet."""
    return Path(f"/proc/{endpoint.process_id}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def queued(endpoint: Endpoint, task: int) -> int:
    """Return the number of messages in a worker's queue of a local task."""
    return next(each.queued_messages for each in status(endpoint).tasks if each.task == task)


def acknowledged(endpoint: Endpoint, task: int) -> int:
    """Return the last sequence of a local task that its consumer has acknowledged."""
    found = next(each for each in status(endpoint).tasks if each.task == task)
    return found.base_sequence + found.acknowledged_messages


def metric(endpoint: Endpoint, sample: str) -> float:
    """Return one sample of a worker's metrics, named with its labels, or 0 if it is missing."""
    return samples(endpoint.metrics_url).get(sample, 0.0)


def numbered(task: int, numbers: Iterable[int], source: int | None = None) -> TaskMessageBatch:
    """Return messages to a task with numbers in text as payloads."""
    return TaskMessageBatch.from_groups([TaskGroup.of(task, [b"%d" % number for number in numbers], source)])


def messages_of(batch: TaskMessageBatch) -> list[Message]:
    """Return each message with its source."""
    return [(group.source, payload) for group in batch.groups for payload in group.payloads()]


async def gather(subscription: Any, how_many: int) -> list[Message]:
    """Take exactly `how_many` messages and acknowledge them."""
    messages: list[Message] = []
    while len(messages) < how_many:
        messages += messages_of(await anext(subscription))
    subscription.acknowledge()
    assert len(messages) == how_many
    return messages


def collect(subscription: Subscription, how_many: int) -> list[Message]:
    """Receive exactly `how_many` messages and acknowledge them. The subscription has the timeout."""
    messages: list[Message] = []
    while len(messages) < how_many:
        messages += messages_of(next(subscription))
    subscription.acknowledge()
    assert len(messages) == how_many, f"{len(messages)} messages came, {how_many} were sent"
    return messages


def numbers(messages: Iterable[Message], source: int | None = None) -> list[int]:
    """Return the numbers received from one source, in the order of arrival."""
    return [int(payload) for sender, payload in messages if sender == source]


def settled(endpoint: Endpoint, *, accepted: int, acknowledged: int) -> bool:
    """Return True if a worker's ledger has exactly these counts, and nothing pending or dropped."""
    return ledger(endpoint) == LedgerSnapshot(
        accepted, acknowledged, dict.fromkeys((reason.value for reason in DropReason), 0), 0
    )


@contextmanager
def two_workers(directory: Path, transport: str) -> Iterator[tuple[Endpoint, Endpoint, FaultProxy]]:
    """Run workers a (task 0) and b (task 1); a connects to b through a proxy."""
    flag = f"--transport={transport}"
    with (
        one_worker("a", flag, directory=directory) as a,
        one_worker("b", flag, directory=directory) as b,
        proxy_before(b) as proxy,
    ):
        assign((a, b), 1, {a: [0], through(proxy, b): [1]})
        ready(a, b)
        yield a, b, proxy


def connected(endpoint: Endpoint) -> bool:
    """Return True if a worker's only outbound connection is connected."""
    (peer,) = status(endpoint).peers
    return peer.connected


def balances(sender: Client, *hops: Endpoint, sent: int) -> None:
    """Check that the sender and every worker on the route have settled exactly `sent` messages."""
    sender.flush(20)
    assert (sender.ledger().accepted, sender.ledger().acknowledged) == (sent, sent)
    for hop in hops:
        eventually(lambda hop=hop: ledger(hop).acknowledged == sent, 10, f"{ledger(hop)}, sent {sent}")  # type: ignore[misc]
        assert (ledger(hop).accepted, ledger(hop).pending, ledger(hop).balanced) == (sent, 0, True)
