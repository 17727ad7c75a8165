"""Teams of real processes over two workers: every call, and faults of the network that have no effect."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from helpers.ports import free_port
from helpers.program import in_threads
from helpers.secured import guarded
from helpers.team_ranks import (
    every_call,
    hold_the_interpreter,
    large_values,
    ranks_of,
    stale_messages,
    sums,
    tasks_of,
    unequal_values,
)
from helpers.topology import TOPOLOGY, Pair, assign, one_worker, status, workers_with

from tuplewire import Client, Team
from tuplewire.errors import (
    ClosedError,
    MessageError,
    PermissionDeniedError,
    TeamError,
    TeamTimeoutError,
    UnsupportedValueError,
)
from tuplewire.team import team as module
from tuplewire.team.protocol import Kind, Message, team_id
from tuplewire_service.testing import eventually
from tuplewire_service.testing.fault_proxy import FaultProxy

RULES = """
[[client]]
tokens = ["operator"]
control = ["assign"]

[[client]]
tokens = ["members"]
send = "1-3"
receive = "1-3"
"""
MIB = 2**20


def addresses_of(pair: Pair) -> list[str]:
    """Return the addresses of both workers; members use another worker than their task's owner, too."""
    return [pair.near.address, pair.near.address, pair.far.address]


def queued_of(pair: Pair, tasks: list[int]) -> int:
    """Return the number of messages in the queues of tasks, at both workers."""
    both = [*status(pair.near).tasks, *status(pair.far).tasks]
    return sum(each.queued_messages for each in both if each.task in tasks)


def open_files() -> int:
    """Return the number of open files of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


def python_threads() -> list[str]:
    """Return the names of the threads that Python has started; gRPC's own threads are its affair."""
    names = (each.name for each in threading.enumerate())
    return [name for name in names if not name.startswith("Dummy-")]


@pytest.mark.parametrize(("size", "rounds", "mode"), [(4, 5, "queued"), (3, 3, "processed")])
def test_every_call(pair: Pair, size: int, rounds: int, mode: str) -> None:
    """The ranks make every call several times; all are in one team, end soon, and leave nothing behind."""
    tasks, begun = tasks_of(pair, size), time.monotonic()
    with ranks_of(every_call, tasks, addresses_of(pair), rounds, ack_mode=mode) as ranks:
        assert len({each.outcome() for each in ranks}) == 1
    assert mode == "queued" or time.monotonic() - begun < 20
    eventually(lambda: queued_of(pair, tasks) == 0, 5, "no message is left")


def test_a_team_of_one(pair: Pair) -> None:
    """One process alone can make every call."""
    with Team([pair.near_task()], 0, address=pair.near.address, topology=TOPOLOGY) as team:
        array = np.arange(3.0)
        total = team.all_reduce(array)
        assert np.array_equal(total, array)
        assert not np.shares_memory(total, array)
        assert (team.all_gather(1), team.broadcast("x")) == ([1], "x")
        assert (team.scatter([2]), team.all_to_all([3])) == (2, [3])
        team.barrier()
        for call in (team.scatter, team.all_to_all):
            with pytest.raises(MessageError, match="a list of 1, one for each rank, not a dict of 1"):
                call({0: 1})  # type: ignore[arg-type]
        with pytest.raises(MessageError, match="rank 0 is not another rank from 0 to"):
            team.send(0, 1)
        with pytest.raises(MessageError, match=r"rank 0.5 is not a rank from 0 to 0"):
            team.gather(1, 0.5)  # type: ignore[arg-type]
        assert isinstance(team.all_reduce(1, "mean"), np.ndarray)
        with pytest.raises(UnsupportedValueError, match="masked"):
            team.all_reduce(np.ma.MaskedArray([1.0]))
        assert (team.rank, team.size, team.stale_messages) == (0, 1, 0)
    with pytest.raises(TeamError, match="the team is closed"):
        team.barrier()


def test_a_forked_process_cannot_use_the_team(pair: Pair) -> None:
    """A call in the child raises ClosedError, and the end of its `with` block does not end the team."""
    with Team([pair.near_task()], 0, address=pair.near.address, topology=TOPOLOGY) as team:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                team.close()
                team.barrier()
            except ClosedError:
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        team.barrier()


def test_a_second_thread_gets_an_error(pair: Pair) -> None:
    """A call in another thread is refused, and the first call is not affected."""
    tasks, entered = [pair.near_task(), pair.near_task()], threading.Event()

    def member() -> Any:
        with Team(tasks, 1, address=pair.near.address, topology=TOPOLOGY) as team:
            entered.wait(30)
            return team.all_gather(1)

    with (
        in_threads(member) as (other,),
        Team(tasks, 0, address=pair.near.address, topology=TOPOLOGY) as team,
        in_threads(partial(team.all_gather, 0)) as (first,),
    ):
        eventually(team._lock.locked)
        for call in (team.barrier, team.close):
            with pytest.raises(TeamError, match="another thread is in a call"):
                call()
        entered.set()
    assert first.result() == other.result() == [0, 1]


@pytest.mark.parametrize("size", [3, pytest.param(5, marks=pytest.mark.long)])
def test_large_arrays(pair: Pair, size: int) -> None:
    """Arrays that are larger than a receive queue arrive in every call, and the memory stays flat."""
    megabytes = 20 if size == 3 else 64
    with ranks_of(large_values, tasks_of(pair, size), addresses_of(pair), megabytes) as ranks:
        largest = max(each.outcome() for each in ranks)
    # The own array, the results of two calls, and copies in transit; the client's buffer has 64 MiB.
    assert largest < (300 + (2 * size + 4) * megabytes) * MIB


def test_unequal_values_and_late_ranks(pair: Pair) -> None:
    """A call ends only after this rank has sent its own value, even if all others have arrived."""
    with ranks_of(unequal_values, tasks_of(pair, 2), addresses_of(pair), 4) as ranks:
        assert [each.outcome() for each in ranks] == [None, None]


def test_a_value_that_has_arrived_is_received_without_a_wait(pair: Pair) -> None:
    """recv() with a timeout of 0 returns a value that is there, also if it has many pieces."""
    join = partial(Team, tasks_of(pair, 2), address=pair.near.address, topology=TOPOLOGY, timeout=20)
    with in_threads(partial(join, rank=1)) as (waiting,), join(rank=0) as first, waiting.result(20) as second:
        first.send(1, bytes(3 * MIB))
        arrived = second._connection._receiver.buffer
        eventually(lambda: sum(len(group) for each in list(arrived) for group in each.groups) == 7)
        assert second.recv(0, timeout=0) == bytes(3 * MIB)


@pytest.mark.parametrize(
    "teams", [pytest.param(10, marks=pytest.mark.part), pytest.param(100, marks=pytest.mark.long)]
)
def test_successive_teams_leave_nothing_behind(pair: Pair, teams: int) -> None:
    """Many teams on the same tasks leave no message, subscription, thread or open file behind."""
    tasks = tasks_of(pair, 2)

    def form() -> None:
        def member() -> None:
            with Team(tasks, 1, address=pair.far.address, topology=TOPOLOGY) as team:
                team.barrier()

        with in_threads(member), Team(tasks, 0, address=pair.near.address, topology=TOPOLOGY) as team:
            team.barrier()

    form()
    threads, files = python_threads(), open_files()
    for _ in range(teams):
        form()
    eventually(lambda: queued_of(pair, tasks) == 0, 5, "no message is left")
    for worker in (pair.near, pair.far):
        eventually(lambda: not any(each.subscribed for each in status(worker).tasks if each.task in tasks), 5)  # noqa: B023
        assert status(worker).disconnected_session_count <= 1
    assert not Counter(python_threads()) - Counter(threads)  # threads of earlier tests may end
    eventually(lambda: open_files() <= files + 5, 5, "files are closed")


def test_a_late_leave_is_not_sent_to_a_closed_member(pair: Pair) -> None:
    """A member that computes while another one leaves and closes sends it no message."""
    tasks = tasks_of(pair, 2)
    join = partial(Team, tasks, address=pair.near.address, topology=TOPOLOGY, timeout=20)
    with in_threads(partial(join, rank=1)) as (waiting,):
        first, second = join(rank=0), waiting.result(20)
        first.close()
        second.close()
    assert queued_of(pair, tasks) == 0


def test_missing_members_are_named(pair: Pair) -> None:
    """If some members do not join, the error names them, their workers and the state of their tasks."""
    tasks = [pair.near_task(), pair.far_task(), pair.far_task()]
    with pytest.raises(TeamTimeoutError) as told:
        Team(tasks, 0, address=pair.near.address, topology=TOPOLOGY, timeout=0.5)
    text = str(told.value)
    assert "Team(): waited 0.5 s for 2 of 2 other ranks: rank 1 " in text
    assert f"rank 2 (task {tasks[2]}): no message yet, no consumer for 0 s, 0 unread at " in text
    assert text.count(f"at {pair.far.worker_id}") == 2
    with pytest.raises(TeamTimeoutError, match="the error of rank 0 names"):
        Team(tasks, 1, address=pair.near.address, topology=TOPOLOGY, timeout=0.5)


def test_a_timeout_names_the_problem_of_the_own_worker() -> None:
    """If this rank's worker is unreachable, the error of a timeout states it."""
    with pytest.raises(TeamTimeoutError, match=r"rank 1 .*; this rank's subscription: not connected: "):
        Team([1, 2], 0, address=f"127.0.0.1:{free_port()}", topology=TOPOLOGY, timeout=0.5)


def test_messages_of_other_teams_are_dropped_and_counted(pair: Pair) -> None:
    """Old messages in the queue of a task are dropped, and the team counts them."""
    tasks = tasks_of(pair, 2)
    with Client(pair.near.address, topology=TOPOLOGY) as client:
        client.send(tasks[0], b"of another program")
        client.send(tasks[0], Message(7, 1, 1, Kind.CALL, call="barrier #1").pack())
    with ranks_of(stale_messages, tasks, addresses_of(pair)) as ranks:
        assert [each.outcome() for each in ranks] == [2, 0]


def test_cut_connections_have_no_effect(pair: Pair) -> None:
    """Connections of members that break during calls have no effect on the results."""
    finished = threading.Event()

    def cut() -> None:
        while not finished.wait(0.2):
            near.cut()
            far.cut()

    with (
        FaultProxy(pair.near.address) as near,
        FaultProxy(pair.far.address) as far,
        ranks_of(sums, tasks_of(pair, 3), [near.address, far.address], 100, 30_000) as ranks,
        in_threads(cut),
    ):
        try:
            assert [each.outcome() for each in ranks] == [100] * 3
        finally:
            finished.set()


@pytest.mark.parametrize(
    ("rounds", "moves"),
    [pytest.param(100, 4, marks=pytest.mark.part), pytest.param(1000, 60, marks=pytest.mark.long)],
)
def test_tasks_move_during_calls(rounds: int, moves: int) -> None:
    """The task of a rank moves between two workers in a loop; every sum is right."""
    with workers_with([1, 2], [3], flags=["--drain-seconds=1"]) as workers:
        addresses = [each.address for each in workers.endpoints]
        with ranks_of(sums, [1, 2, 3], addresses, rounds, 100, 0.02) as ranks:
            for number in range(moves):
                workers.assign({0: [1], 1: [2, 3]} if number % 2 == 0 else {0: [1, 2], 1: [3]})
                time.sleep(0.4)
            assert [each.outcome() for each in ranks] == [rounds] * 3


def test_a_drain_during_calls(tmp_path: Path) -> None:
    """A worker drains and ends, after its task has moved; every sum is right."""
    with (
        one_worker("a", directory=tmp_path) as first,
        one_worker("b", directory=tmp_path, port=free_port()) as second,
    ):
        assign([first, second], 1, {first: [1, 2], second: [3]})
        with ranks_of(sums, [1, 2, 3], [first.address], 100, 100, 0.03) as ranks:
            time.sleep(1)
            assign([first, second], 2, {first: [1, 2, 3], second: []})
            os.kill(second.process_id, signal.SIGTERM)
            assert [each.outcome() for each in ranks] == [100] * 3


def test_a_stopped_process_is_slow_but_not_lost(pair: Pair) -> None:
    """A process that is stopped for three seconds continues, and all results are right."""
    with ranks_of(sums, tasks_of(pair, 3), addresses_of(pair), 100, 100, 0.02) as ranks:
        time.sleep(1)
        ranks[1].signal(signal.SIGSTOP)
        time.sleep(3)
        ranks[1].signal(signal.SIGCONT)
        assert [each.outcome() for each in ranks] == [100] * 3


@pytest.mark.long
def test_a_busy_process_is_slow_but_not_lost(pair: Pair) -> None:
    """A rank that holds the interpreter's lock for 30 s is not lost."""
    with ranks_of(hold_the_interpreter, tasks_of(pair, 2), addresses_of(pair), 30, timeout=90) as ranks:
        assert [each.outcome() for each in ranks] == [0, 1]


def test_permissions(tmp_path: Path) -> None:
    """A token that may send to and receive from all tasks of the team is sufficient; others are refused."""
    with guarded(tmp_path, RULES, "operator", "members") as (workers, credentials):
        workers.assign({0: [1, 2, 3, 4]})
        address = workers.endpoints[0].address
        with ranks_of(every_call, [1, 2, 3], [address], 1, credentials=credentials["members"]) as ranks:
            assert len({each.outcome() for each in ranks}) == 1
        with pytest.raises(PermissionDeniedError):
            Team([4, 1], 0, address=address, topology=TOPOLOGY, timeout=5, credentials=credentials["members"])


def test_a_message_from_before_the_team_has_no_effect(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every program can compute the id of a team without members. A value is decoded once at each rank."""
    tasks = tasks_of(pair, 2)
    join = partial(Team, tasks, address=pair.near.address, topology=TOPOLOGY, timeout=20)
    with Client(pair.near.address, topology=TOPOLOGY) as stranger, ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(join, rank=1)
        stranger.send(tasks[1], Message(team_id(b""), 0, 0, Kind.ABORT, body=b"x").pack())
        stranger.flush(10)
        eventually(lambda: not queued_of(pair, tasks[1:]))
        with join(rank=0) as first, waiting.result(20) as second:
            assert first.formation_id == second.formation_id
            monkeypatch.setattr(module, "unpack_value", unpacked := Mock(wraps=module.unpack_value))
            assert (first.broadcast(b"value"), second.broadcast()) == (b"value", b"value")
    assert unpacked.call_count == 2
