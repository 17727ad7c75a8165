"""Teams of which a member fails: every other rank gets an error that names the cause, and never waits."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from itertools import product
from multiprocessing import connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.ports import free_port
from helpers.program import in_threads
from helpers.team_ranks import Script, play, ranks_of, sums, tasks_of
from helpers.topology import TOPOLOGY, Pair, assign, one_worker, ready

from tuplewire import Team
from tuplewire.errors import (
    RankLostError,
    TeamAbortedError,
    TeamChangedError,
    TeamError,
    TeamMismatchError,
    TeamTimeoutError,
)

SMALL, LARGE = np.ones(10), np.ones(400_000)
CALLS: dict[str, tuple[Any, ...]] = {
    "barrier": ("barrier",),
    "small": ("all_reduce", SMALL),
    "large": ("all_reduce", LARGE),
    "all_gather": ("all_gather", 1),
    "all_to_all": ("all_to_all", [1, 2, 3]),
    "gather": ("gather", SMALL),
    "broadcast": ("broadcast", SMALL),
    "scatter": ("scatter", [1, 2, 3]),
}
BARRIER = [("barrier",)]


def errors_of(pair: Pair, *scripts: Script, **options: Any) -> list[BaseException | None]:
    """Play a script on each rank, and return the errors."""
    addresses = [pair.near.address, pair.far.address]
    with ranks_of(play, tasks_of(pair, len(scripts)), addresses, scripts, **options) as ranks:
        found: list[BaseException | None] = []
        for each in ranks:
            try:
                each.outcome()
                found.append(None)
            except Exception as error:  # noqa: BLE001 - the tests check them
                found.append(error)
        return found


SHORT = [("barrier", 0), ("large", 1), ("broadcast", 0), ("small", 2)]


@pytest.mark.parametrize(
    "killed",
    [
        pytest.param(SHORT, marks=pytest.mark.part),
        pytest.param(list(product(CALLS, range(3))), marks=pytest.mark.long),
    ],
    ids=["short", "all"],
)
def test_a_killed_process_is_an_error_in_all_other_ranks(pair: Pair, killed: list[tuple[str, int]]) -> None:
    """After SIGKILL of a rank in any call, all others raise RankLostError within ten seconds."""
    for start in range(0, len(killed), 6):
        with ExitStack() as stack:
            teams = []
            for name, victim in killed[start : start + 6]:
                scripts = [
                    [("barrier",), ("kill",) if rank == victim else CALLS[name], ("barrier",)]
                    for rank in range(3)
                ]
                addresses = [pair.near.address, pair.far.address]
                ranks = stack.enter_context(ranks_of(play, tasks_of(pair, 3), addresses, scripts))
                teams.append((victim, ranks))
            killed_at = dict[int, float]()
            while len(killed_at) < len(teams):
                # On a busy machine, a team may form long after another one has lost its rank.
                running = {
                    ranks[victim].process.sentinel: number
                    for number, (victim, ranks) in enumerate(teams)
                    if number not in killed_at
                }
                ended = connection.wait(list(running), 60)
                assert ended, "a team has not formed"
                killed_at |= {number: time.monotonic() for each, number in running.items() if each in ended}
            for number, (victim, ranks) in enumerate(teams):
                others = [each for rank, each in enumerate(ranks) if rank != victim]
                errors = [each.error(20) for each in others]
                assert all(each.ended - killed_at[number] < 12 for each in others)
                # The first one to notice leaves with its error, which may reach the other one first.
                assert all(isinstance(each, (RankLostError, TeamAbortedError)) for each in errors), errors
                assert any(isinstance(each, RankLostError) for each in errors)
                assert all(f"rank {victim} (task " in str(each) for each in errors)
                assert all("no consumer for " in str(each) for each in errors)


def test_an_exception_reaches_all_ranks(pair: Pair) -> None:
    """If the block of a rank ends with an exception, the calls of the others raise its text."""
    begun = time.monotonic()
    failing: Script = [("barrier",), ("fail",)]
    first, second, third = errors_of(pair, BARRIER * 2, failing, BARRIER * 2)
    assert isinstance(second, ValueError)
    for error in (first, third):
        assert isinstance(error, TeamAbortedError)
        assert str(error) == "rank 1 has left the team: ValueError: no such column: price"
    assert time.monotonic() - begun < 8


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        (("barrier",), r"all_reduce #2 \(sum, float64, 10\): rank 1 has called barrier #2"),
        (("all_reduce", np.ones(11)), r"has called all_reduce #2 \(sum, float64, 11\)"),
        (("sleep", 0), "a rank has left the team: rank 1"),
    ],
    ids=["another call", "shape", "leaves"],
)
def test_another_call_is_an_error(pair: Pair, theirs: tuple[Any, ...], words: str) -> None:
    """If a rank makes another call, or leaves, the error of the other one names both calls."""
    begun = time.monotonic()
    error, _ = errors_of(pair, [("barrier",), CALLS["small"]], [("barrier",), theirs])
    assert isinstance(error, TeamMismatchError)
    with pytest.raises(TeamMismatchError, match=words):
        raise error
    assert time.monotonic() - begun < 8


def test_a_timeout_names_the_ranks_and_breaks_the_team(pair: Pair) -> None:
    """A timeout names the ranks, their workers and last calls; every later call raises the same error."""
    tasks = tasks_of(pair, 2)
    errors = list[BaseException]()

    def member() -> None:
        try:
            with Team(tasks, 1, address=pair.far.address, topology=TOPOLOGY) as team:
                team.barrier()
                team.barrier(timeout=20)
        except TeamError as error:
            errors.append(error)

    def wait_twice(team: Team) -> None:
        with pytest.raises(TimeoutError) as first:
            team.recv(1, timeout=0.5)
        errors.append(first.value)
        team.barrier()

    with in_threads(member), Team(tasks, 0, address=pair.near.address, topology=TOPOLOGY) as team:
        team.barrier()
        with pytest.raises(TeamTimeoutError) as told:
            wait_twice(team)
    first, error = errors
    assert told.value is first
    assert "recv #1: waited 0.5 s for 1 of 1 other ranks: rank 1 " in str(told.value)
    assert f"rank 1 (task {tasks[1]}): last message " in str(told.value)
    assert " s ago in barrier #" in str(told.value)
    assert f"subscribed, 0 unread at {pair.far.worker_id}" in str(told.value)
    assert isinstance(error, TeamAbortedError)
    assert "rank 0 has left the team: TeamTimeoutError: recv #1" in str(error)


def test_a_cycle_of_sends_times_out(pair: Pair) -> None:
    """Ranks that only send to each other wait for capacity; the error names the call."""
    scripts = [
        [*[("send", 1 - rank, rank)] * 16, ("sleep", 0.5), ("send", 1 - rank, rank)] for rank in range(2)
    ]
    errors = errors_of(pair, *scripts, timeout=2)
    assert any(isinstance(each, TeamTimeoutError) and "send #17" in str(each) for each in errors), errors


def test_a_new_process_with_a_rank_changes_the_team(pair: Pair) -> None:
    """If a new attempt joins, the processes of the old one raise TeamChangedError, and the new one works."""
    tasks = tasks_of(pair, 2)
    addresses = [pair.near.address, pair.far.address]
    waiting: list[Script] = [[("barrier",), ("recv", 1)], [("barrier",), ("recv", 0)]]
    with ranks_of(play, tasks, addresses, waiting) as old:
        time.sleep(1.5)
        with ranks_of(sums, tasks, addresses, 20) as new:
            assert [each.outcome() for each in new] == [20, 20]
        assert [type(each.error()) for each in old] == [TeamChangedError] * 2


def test_a_killed_and_replaced_rank_changes_the_team(pair: Pair) -> None:
    """If a killed rank is started again, the others do not wait for the new process, but raise an error."""
    tasks = tasks_of(pair, 2)
    with ranks_of(play, tasks, [pair.near.address], [BARRIER * 2, [("barrier",), ("kill",)]]) as ranks:
        ranks[1].process.join(30)
        with pytest.raises(TeamError), Team(tasks, 1, address=pair.far.address, topology=TOPOLOGY, timeout=4):
            pass
        assert isinstance(ranks[0].error(20), TeamChangedError)


def restarted_worker(directory: Path, ack_mode: str) -> list[BaseException | None]:
    """Kill one of two workers during sums, and start it again; return the error of each rank."""
    port, found = free_port(), list[BaseException | None]()
    with one_worker("a", directory=directory, port=free_port()) as first, ExitStack() as stack:
        second = stack.enter_context(one_worker("b", directory=directory, port=port))
        assign([first, second], 1, {first: [1, 2], second: [3]})
        addresses = [first.address, first.address, second.address]
        options = {"ack_mode": ack_mode, "timeout": 40}
        with ranks_of(sums, [1, 2, 3], addresses, 250, 20_000, 0.01, **options) as ranks:
            time.sleep(1.5)
            os.kill(second.process_id, signal.SIGKILL)
            time.sleep(0.5)
            again = directory / "again"
            again.mkdir()
            stack.enter_context(one_worker("b", directory=again, port=port))
            assign([first, second], 1, {first: [1, 2], second: [3]})
            ready(first)
            for each in ranks:
                try:
                    assert each.outcome(60) == 250
                    found.append(None)
                except TeamError as error:
                    found.append(error)
    return found


def test_a_killed_worker_has_no_effect_in_processed_mode(tmp_path: Path) -> None:
    """With ack_mode="processed", the team continues once the worker is back, with right sums."""
    assert restarted_worker(tmp_path, "processed") == [None] * 3


def test_a_killed_worker_ends_a_team_in_queued_mode(tmp_path: Path) -> None:
    """With ack_mode="queued", messages may be lost: all ranks end, with right sums or an error."""
    begun = time.monotonic()
    errors = restarted_worker(tmp_path, "queued")
    assert time.monotonic() - begun < 35
    assert errors == [None] * 3 or all(isinstance(each, (RankLostError, TeamAbortedError)) for each in errors)
