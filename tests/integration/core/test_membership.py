"""Workers that join, drain, fail and return under load, and a membership in a program or as a process."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import pytest
from helpers.logged import logged
from helpers.program import Program, Threads
from helpers.secured import Authority, files_of, tls_flags
from helpers.streams import Load, Produced, Sequences, Stream, producer
from helpers.topology import TOPOLOGY, drained_ledger, has_ended, ledger, one_worker, status
from helpers.worker_process import COMMAND, environment_without_ours

from tuplewire import Client
from tuplewire.errors import ClosedError, ConfigError, TaskNotLocalError, UnknownTaskError, UnreachableError
from tuplewire.membership import Membership, Phase
from tuplewire.processes.worker_processes import Endpoint, WorkerProcesses
from tuplewire.subscription import Subscription
from tuplewire_service.testing import eventually

pytestmark = pytest.mark.slow

TASKS = range(1, 7)
SOURCE = 100
SETTLES = 60.0
LOAD = Load(TASKS, batch=20, pause=0.01)
PROCESSED = Load(TASKS, batch=20, pause=0.01, settings={"ack_mode": "processed"})


class Trackers:
    """A consumer of each task at its current worker; with `once`, it allows no marked duplicates."""

    def __init__(self, membership: Membership, tasks: Iterable[int], *, once: bool = True) -> None:
        self.membership = membership
        self._tasks = list(tasks)
        self._once = once
        self._lock = threading.Lock()
        self._seen = Sequences()
        self._threads = Threads()

    def __enter__(self) -> Self:
        for task in self._tasks:
            self._threads.start(self._follow, task)
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.end()

    def _follow(self, task: int) -> None:
        while not self._threads.stop.wait(0.02):
            address = next(
                (each.address for each in self.membership.status().workers if task in each.tasks), None
            )
            if address is None:
                continue
            try:
                with (
                    Client(address, topology=TOPOLOGY) as client,
                    client.recv([task], timeout=0.5, follow=False) as subscription,
                ):
                    self._read(subscription)
            except (TaskNotLocalError, UnknownTaskError, UnreachableError, TimeoutError):
                continue

    def _read(self, subscription: Subscription) -> None:
        while not self._threads.stop.is_set():
            batch = next(subscription)
            with self._lock:
                for group in batch.groups:
                    (self._seen.take if self._once else self._seen.take_new)(group)
            subscription.acknowledge()

    @property
    def received(self) -> dict[Stream, int]:
        """The number of received messages of each stream."""
        with self._lock:
            return dict(self._seen.next)

    @property
    def problems(self) -> list[str]:
        """Lost, duplicated or reordered messages, and errors of the threads."""
        return [*self._seen.problems, *map(repr, self._threads.errors)]

    def goes_on(self, messages: int = 200) -> None:
        """Wait until `messages` more have arrived for every task."""
        before = self._by_task()
        eventually(
            lambda: all(self._by_task()[task] >= before[task] + messages for task in self._tasks),
            60,
            f"{messages} more for each task",
        )

    def _by_task(self) -> Counter[int]:
        counts: Counter[int] = Counter()
        for (_, task), count in self.received.items():
            counts[task] += count
        return counts

    def has(self, sent: dict[Stream, int]) -> None:
        """Wait until exactly these messages have arrived."""
        eventually(lambda: self.received == sent, 60, f"all that was sent; of that {self.problems}")


@dataclass
class Site:
    """Workers that a test starts, and the addresses where the membership expects workers."""

    directory: Path
    stack: ExitStack
    wanted: dict[str, str] = field(default_factory=dict)

    def start(self, worker_id: str, port: int = 0, drain_seconds: float = 60) -> Endpoint:
        """Start a worker, and add its address to the expected addresses."""
        life = self.directory / f"life-{len(list(self.directory.iterdir()))}"
        life.mkdir()
        worker = one_worker(worker_id, f"--drain-seconds={drain_seconds}", directory=life, port=port)
        endpoint = self.stack.enter_context(worker)
        self.wanted[endpoint.address] = worker_id
        return endpoint

    def membership(
        self, min_workers: int = 1, expire_seconds: float = 120.0, poll_seconds: float = 0.2
    ) -> Membership:
        """Return a membership that polls these workers."""
        return Membership(
            lambda: dict(self.wanted),
            TASKS,
            topology=TOPOLOGY,
            min_workers=min_workers,
            expire_seconds=expire_seconds,
            poll_seconds=poll_seconds,
        )

    def balance_of(self, worker_id: str) -> dict[str, int]:
        """Return the messages that a drained worker dropped, by reason."""
        (log,) = self.directory.glob(f"*/{worker_id}-0/worker-0.log")
        balance = drained_ledger(log)
        assert balance.balanced
        return {reason: count for reason, count in balance.dropped.items() if count}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Yield a site without workers; workers that a test starts are stopped after the test."""
    with ExitStack() as stack:
        yield Site(tmp_path, stack)


def tasks_of(membership: Membership) -> dict[str, tuple[int, ...]]:
    """Return the tasks of each registered worker."""
    return {each.worker_id: each.tasks for each in membership.status().workers if each.phase != "absent"}


def sizes(membership: Membership) -> list[int]:
    """Return the number of tasks of each worker, sorted."""
    return sorted(map(len, tasks_of(membership).values()))


@contextmanager
def load_on(endpoint: Endpoint, load: Load = LOAD) -> Iterator[Program]:
    """Send to all tasks through a worker, from a separate process."""
    with Program(producer, TOPOLOGY, [(endpoint.address, SOURCE)], load) as producing:
        yield producing


@contextmanager
def two_under_load(site: Site, load: Load) -> Iterator[tuple[Endpoint, Membership]]:
    """Run workers a and b; yield b, which expires after two silent seconds, and the membership. No loss."""
    first, second = site.start("a"), site.start("b")
    with (
        site.membership(min_workers=2, expire_seconds=2) as membership,
        load_on(first, load) as producing,
        Trackers(membership, TASKS, once=False) as followers,
    ):
        followers.goes_on()
        yield second, membership
        followers.goes_on()
        finished(producing, followers)


def finished(producing: Program, followers: Trackers) -> Produced:
    """Stop the load, and check that all messages arrived and that the sender's ledger agrees."""
    produced: Produced = producing.ask("finish")
    followers.has(produced.sent)
    assert not followers.problems
    for balance in produced.ledgers.values():
        assert balance.accepted == balance.acknowledged == sum(produced.sent.values())
    return produced


def test_workers_come_and_drain_under_load(site: Site) -> None:
    """Tasks follow the workers: no message is lost, duplicated, reordered or dropped."""
    first = site.start("a")
    with (
        site.membership() as membership,
        load_on(first) as producing,
        Trackers(membership, TASKS) as followers,
    ):
        assert sizes(membership) == [6]
        followers.goes_on()
        second, third = site.start("b"), site.start("c")
        membership.wait(3, SETTLES)
        assert sizes(membership) == [2, 2, 2]
        followers.goes_on()
        os.kill(second.process_id, signal.SIGTERM)
        eventually(lambda: has_ended(second), SETTLES, "b has drained")
        del site.wanted[second.address]  # possibly before a poll sees it drain
        eventually(lambda: sizes(membership) == [3, 3], SETTLES, "the others have its tasks")
        followers.goes_on()
        del site.wanted[third.address]  # its executor was removed; the worker is stopped a moment later
        eventually(lambda: len(tasks_of(membership)["a"]) == 6, SETTLES, "a has all tasks")
        os.kill(third.process_id, signal.SIGTERM)
        eventually(lambda: has_ended(third), SETTLES, "c has drained")
        followers.goes_on()
        finished(producing, followers)
        assert site.balance_of("b") == site.balance_of("c") == {}
        eventually(lambda: ledger(first).pending == 0, 20)
        assert not sum(ledger(first).dropped.values())


def test_an_idle_worker_ends_after_its_tasks_have_moved(site: Site) -> None:
    """A drain without work waits for the next poll, so that no task is left without a worker."""
    first, second = site.start("a"), site.start("b")
    with site.membership(min_workers=2, poll_seconds=1.0):
        os.kill(second.process_id, signal.SIGTERM)
        eventually(lambda: has_ended(second), SETTLES, "b has drained")
        assert status(first).local_task_count == len(TASKS)


def test_a_killed_worker_loses_nothing_that_is_kept_until_processed(site: Site) -> None:
    """When a killed worker expires, its tasks move, and senders in mode `processed` resend its messages."""
    with two_under_load(site, PROCESSED) as (second, membership):
        os.kill(second.process_id, signal.SIGKILL)
        eventually(lambda: len(tasks_of(membership).get("a", ())) == 6, SETTLES, "expired")
        absent = next(each for each in membership.status().workers if each.phase is Phase.ABSENT)
        assert absent.address == second.address


def test_a_hung_worker_expires_and_comes_back(site: Site) -> None:
    """A hung worker loses its tasks when it expires, and gets a share when it resumes; no message is lost."""
    with two_under_load(site, LOAD) as (hung, membership):
        os.kill(hung.process_id, signal.SIGSTOP)
        try:
            eventually(lambda: len(tasks_of(membership).get("a", ())) == 6, SETTLES, "expired")
        finally:
            os.kill(hung.process_id, signal.SIGCONT)
        assert membership.wait(2, SETTLES).joined_count == 2
        assert sizes(membership) == [3, 3]


def test_a_driver_that_starts_again_takes_over(site: Site) -> None:
    """A new driver keeps the assignment and serves new workers; the old driver stops with an error."""
    first = site.start("a")
    site.start("b")
    with ExitStack() as stack:
        older = stack.enter_context(site.membership(min_workers=2))
        producing = stack.enter_context(load_on(first))
        followers = stack.enter_context(Trackers(older, TASKS))
        followers.goes_on()
        before = tasks_of(older)
        with site.membership(min_workers=2) as newer:
            assert tasks_of(newer) == before
            assert newer.status().version > older.status().version
            with pytest.raises(ClosedError, match="let one program at a time"):
                older.wait(3, SETTLES)
            followers.membership = newer
            site.start("c")
            newer.wait(3, SETTLES)
            assert sizes(newer) == [2, 2, 2]
            followers.goes_on()
            finished(producing, followers)


def test_over_mutual_tls(tmp_path: Path) -> None:
    """Workers accept tasks from a program with a certificate; a program without one gets an error."""
    authority = Authority()
    files = authority.issue("worker.example").write(tmp_path / "worker")
    credentials = files_of(authority.issue("driver.example"), tmp_path / "driver", "worker.example")
    flags = [*tls_flags(files), "--drain-seconds=1"]
    with WorkerProcesses(2, TOPOLOGY, flags=flags, directory=tmp_path) as workers:
        addresses = [each.address for each in workers.endpoints]
        stranger = Membership(addresses, TASKS, topology=TOPOLOGY, timeout=2.0)
        with pytest.raises(UnreachableError, match=f"{addresses[0]}  absent"), stranger:
            pass
        with Membership(
            addresses, TASKS, topology=TOPOLOGY, min_workers=2, credentials=credentials
        ) as membership:
            assert sizes(membership) == [3, 3]


def test_workers_that_are_not_there(site: Site) -> None:
    """The block is not entered, the error has the workers' states and a remedy, and no thread remains."""
    site.wanted["127.0.0.1:1"] = "executor 7"
    membership = Membership(lambda: site.wanted, TASKS, topology=TOPOLOGY, timeout=1.0, poll_seconds=0.1)
    with (
        pytest.raises(UnreachableError, match=r"(?s)start one next to each executor.*executor 7"),
        membership,
    ):
        pass
    assert "tuplewire-membership" not in {thread.name for thread in threading.enumerate()}
    with pytest.raises(ClosedError, match="closed"):
        membership.wait()
    assert membership.status().ended == "it was closed"


def test_where_the_workers_are_may_be_unknown_for_a_while(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """Any exception of the look-up of the workers' addresses changes nothing, and is logged once."""
    site.start("a")
    fails, failures = threading.Event(), list[int]()

    def look_up() -> dict[str, str]:
        if fails.is_set():
            failures.append(1)
            raise LookupError("no such name")
        return site.wanted

    with Membership(look_up, TASKS, topology=TOPOLOGY, poll_seconds=0.1) as membership:
        fails.set()
        eventually(lambda: len(failures) >= 3, 20, "noticed")
        assert membership.status().joined_count == 1
        (entry,) = logged(caplog, "membership.discovery_failed")
        assert entry["reason"] == "LookupError('no such name')"
        with pytest.raises(UnreachableError, match="no such name"):
            membership.wait(2, 0.2)


def test_wrong_arguments() -> None:
    """A membership needs workers and tasks."""
    for workers, tasks in (([], [1]), (["a:1"], [])):
        with pytest.raises(ConfigError):
            Membership(workers, tasks)


@contextmanager
def membership_program(log: Path, addresses: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run `tuplewire membership` with its log in a file, and kill it at the end if it is still running."""
    flags = [f"--address={','.join(addresses)}", "--tasks=1-6", f"--topology={TOPOLOGY}"]
    words = [*COMMAND, "membership", *flags]
    with (
        log.open("w") as errors,
        subprocess.Popen(words, env=environment_without_ours(), stderr=errors) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def workers() -> Iterator[list[Endpoint]]:
    """Run three workers without an assignment, with short drains because no consumer takes their messages."""
    with WorkerProcesses(3, TOPOLOGY, flags=["--drain-seconds=0.2"]) as started:
        yield started.endpoints


def task_count(endpoint: Endpoint) -> int:
    """Return the number of tasks of a worker."""
    return len(status(endpoint).tasks)


@pytest.mark.long
def test_a_program_that_was_killed_is_replaced(tmp_path: Path, workers: list[Endpoint]) -> None:
    """Workers keep tasks and messages without a program; the next one spreads the tasks over more workers."""
    addresses = [each.address for each in workers[:2]]
    with membership_program(tmp_path / "one", addresses) as first:
        eventually(lambda: [task_count(each) for each in workers[:2]] == [3, 3], SETTLES)
        with Client(addresses[0], topology=TOPOLOGY) as client:
            for task in range(1, 7):
                client.send(task, b"kept")
            client.flush(SETTLES)
        first.kill()
        first.wait(SETTLES)
        assert [task_count(each) for each in workers[:2]] == [3, 3]
    with membership_program(tmp_path / "two", [each.address for each in workers]) as second:
        eventually(lambda: [task_count(each) for each in workers] == [2, 2, 2], SETTLES, "it spreads them")
        held = sum(task.queued_messages for each in workers for task in status(each).tasks)
        assert held == 6, "nothing was lost, and nobody was restarted"
        second.send_signal(signal.SIGINT)
        assert second.wait(SETTLES) == 0
    assert " membership.stopped reason=SIGINT" in (tmp_path / "two").read_text()


@pytest.mark.long
def test_two_at_once_do_no_harm(tmp_path: Path, workers: list[Endpoint]) -> None:
    """If a lost node returns with its pod, two programs run: tasks stay spread, and no message is lost."""
    addresses = [each.address for each in workers]
    with membership_program(tmp_path / "one", addresses), membership_program(tmp_path / "two", addresses):
        eventually(lambda: [task_count(each) for each in workers] == [2, 2, 2], SETTLES)
        with Client(addresses[0], topology=TOPOLOGY) as client:
            for number in range(600):
                client.send(1 + number % 6, b"%d" % number)
            client.flush(SETTLES)
        assert sum(task.queued_messages for each in workers for task in status(each).tasks) == 600
        assert [task_count(each) for each in workers] == [2, 2, 2]
