"""Processes that are the ranks of a team, and the calls that they make."""

from __future__ import annotations

import ctypes
import functools
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from helpers.program import forked
from helpers.topology import TOPOLOGY, Pair
from tuplewire import Team

Script = Sequence[tuple[Any, ...]]
"""Calls of one rank, one after another: the name of a method, and its arguments."""
_OUTCOME_SECONDS = 90.0


class Rank:
    """A forked process with one rank of a team; `ended` is this machine's clock after its calls."""

    ended: float

    def __init__(self, *arguments: Any) -> None:
        """Start the process. arguments: of _run, after its pipe."""
        self.process, self._pipe = forked(_run, *arguments)

    def outcome(self, timeout: float = _OUTCOME_SECONDS) -> Any:
        """Return the result of the calls, or raise their error. EOFError: the process was killed."""
        assert self._pipe.poll(timeout), f"rank has not finished after {timeout} s"
        error, result, self.ended = self._pipe.recv()
        if error is not None:
            raise error
        return result

    def error(self, timeout: float = _OUTCOME_SECONDS) -> BaseException:
        try:
            result = self.outcome(timeout)
        except Exception as error:  # noqa: BLE001 - the test checks it
            return error
        raise AssertionError(f"no error, but {result!r:.200}")

    def signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def close(self) -> None:
        """Kill the process if it runs."""
        self._pipe.close()
        self.process.kill()
        self.process.join()
        self.process.close()


@contextmanager
def ranks_of(
    calls: Callable[..., Any], tasks: Sequence[int], addresses: Sequence[str], *arguments: Any, **options: Any
) -> Iterator[list[Rank]]:
    """Start a process for each task. Ranks use the addresses in turn. options: of Team."""
    options = {"topology": TOPOLOGY, "timeout": 60, **options}
    with ExitStack() as stack:
        ranks = []
        for rank in range(len(tasks)):
            where = {"address": addresses[rank % len(addresses)], **options}
            ranks.append(Rank(calls, arguments, rank, tasks, where))
            stack.callback(ranks[-1].close)
        yield ranks


def tasks_of(pair: Pair, size: int) -> list[int]:
    """Return unused tasks of both workers in turn, one for each rank."""
    return [pair.far_task() if rank % 2 else pair.near_task() for rank in range(size)]


def _run(
    pipe: Connection,
    calls: Callable[..., Any],
    arguments: Sequence[Any],
    rank: int,
    tasks: Sequence[int],
    where: dict[str, Any],
) -> None:
    try:
        with Team(tasks, rank, **where) as team:
            result = calls(team, *arguments)
    except Exception as error:  # noqa: BLE001 - the test gets it
        pipe.send((error, None, time.monotonic()))
    else:
        pipe.send((None, result, time.monotonic()))


def play(team: Team, scripts: Sequence[Script]) -> Any:
    """Make the calls of a script, or `sleep`, `kill` this process, or `fail`; return the last result."""
    kill = functools.partial(os.kill, os.getpid(), signal.SIGKILL)
    others: dict[str, Callable[..., Any]] = {"sleep": time.sleep, "kill": kill, "fail": _fail}
    result = None
    for name, *arguments in scripts[team.rank]:
        result = (others[name] if name in others else getattr(team, name))(*arguments)
    return result


def _fail() -> None:
    raise ValueError("no such column: price")


def every_call(team: Team, rounds: int) -> int:
    """Make every call several times, and check the results; return the team's generation."""
    rank, size = team.rank, team.size
    for number in range(rounds):
        root = number % size
        team.barrier()
        mine = np.arange(5.0) * rank + number
        everyone = [np.arange(5.0) * each + number for each in range(size)]
        assert np.array_equal(team.all_reduce(mine), sum(everyone))
        assert np.array_equal(team.all_reduce(mine, "max"), everyone[-1])
        assert np.array_equal(team.all_reduce(mine, "min"), everyone[0])
        assert np.array_equal(team.all_reduce(rank, "mean"), (size - 1) / 2)
        assert team.all_gather({"rank": rank}) == [{"rank": each} for each in range(size)]
        assert team.gather(rank, root) == (list(range(size)) if rank == root else None)
        assert team.broadcast([number, b"x"] if rank == root else None, root) == [number, b"x"]
        assert (
            team.scatter([f"for {each}" for each in range(size)] if rank == root else None, root)
            == f"for {rank}"
        )
        assert team.all_to_all([(rank, each) for each in range(size)]) == [
            (each, rank) for each in range(size)
        ]
        team.send((rank + 1) % size, number)
        assert team.recv((rank - 1) % size) == number
    return team.formation_id


def sums(team: Team, rounds: int, items: int = 100, pause: float = 0.0) -> int:
    """Sum arrays in rounds, and check each sum; return the number of rounds."""
    total = sum(range(1, team.size + 1))
    ones = np.ones(items)
    for number in range(rounds):
        got = team.all_reduce(ones * (team.rank + 1) * (number + 1))
        assert np.array_equal(got, ones * total * (number + 1)), number
        if pause:
            time.sleep(pause)
    return rounds


def stale_messages(team: Team) -> int:
    """Return the number of dropped messages of other teams."""
    team.barrier()
    return team.stale_messages


def large_values(team: Team, megabytes: int) -> int:
    """Send arrays of this size in every way; return the largest resident memory of this process in bytes."""
    array = np.full(megabytes * 131_072, team.rank + 1.0)
    assert team.all_reduce(array)[-1] == sum(range(1, team.size + 1))
    assert team.broadcast(array if team.rank == 0 else None)[-1] == 1.0
    got = team.gather(array, 1)
    assert got is None or [each[-1] for each in got] == [each + 1.0 for each in range(team.size)]
    assert [each[0] for each in team.all_to_all([array] * team.size)] == [
        each + 1.0 for each in range(team.size)
    ]
    if team.rank == 0:
        team.send(1, array)
    elif team.rank == 1:
        assert team.recv(0)[7] == 1.0
    team.barrier()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def unequal_values(team: Team, rounds: int) -> None:
    """Exchange values of unequal sizes, and large arrays with one late rank; check every element."""
    rank, size = team.rank, team.size
    sizes = [20 << 20, *[10] * (size - 1)]
    assert [len(each) for each in team.all_gather(bytes(sizes[rank]))] == sizes
    mine = [bytes(sizes[(rank + each) % size]) for each in range(size)]
    assert [len(each) for each in team.all_to_all(mine)] == [
        sizes[(rank + each) % size] for each in range(size)
    ]
    for number in range(rounds):
        if rank == number % size:
            time.sleep(0.2)  # the values of the others arrive before this rank sends
        array = np.arange(2_000_003.0) + rank
        assert np.array_equal(team.all_reduce(array), np.arange(2_000_003.0) * size + sum(range(size)))


def hold_the_interpreter(team: Team, seconds: int) -> int:
    """Hold the GIL on rank 0 without using the processor, while the others wait in a barrier."""
    team.barrier()  # all ranks have joined: from now on, they can be lost
    if team.rank == 0:
        assert ctypes.PyDLL(None).sleep(seconds) == 0  # PyDLL does not release the GIL
    team.barrier()
    return team.rank
