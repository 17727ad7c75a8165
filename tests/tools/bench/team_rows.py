"""The rows of teams: barriers, sums and round trips among processes with two workers between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from statistics import median
from typing import Any

from agent import Agent
from links import CHAIN, Links
from report import LATENCY_RATE, Line, compared, percentile
from workload import TOPOLOGY

from tuplewire.processes.worker_processes import WorkerProcesses

BARRIERS = {"team/barrier/2": (2, 1.5), "team/barrier/4": (4, 3.0)}
"""Row -> ranks, and the target in one-way latencies."""
SUMS = {"team/reduce/2/8KiB": (2, 8192), "team/reduce/4/8KiB": (4, 8192), "team/reduce/4/8MB": (4, 8_000_000)}
PINGPONG = "team/pingpong"
TEAM_ROWS = (*BARRIERS, *SUMS, PINGPONG)

ROUNDS = 3
_CALLS = 300
_LARGE_CALLS = 5
_LARGE_BYTES = 1_000_000
_SUM_TARGET, _LARGE_TARGET, _PINGPONG_TARGET = 2.5, round(1 / 0.6, 2), 1.1


class _Ranks:
    """The processes of one side, which make each call at the same time."""

    def __init__(self, stack: ExitStack, roles: Sequence[tuple[Any, ...]]) -> None:
        self._agents = [stack.enter_context(Agent("team_agent.py", *role)) for role in roles]
        self._pool = stack.enter_context(ThreadPoolExecutor(len(roles)))

    def ask(self, verb: str, **how: Any) -> list[dict[str, Any]]:
        """Send a request to all; return their answers."""
        return list(self._pool.map(lambda agent: agent.ask(verb, **how), self._agents))

    def milliseconds(self, verb: str, **how: Any) -> float:
        """Return the median time of a call, over all ranks."""
        times: list[int] = [time for each in self.ask(verb, **how) for time in each["ns"]]
        return median(times) / 1e6


def measure_team(links: Links, names: Sequence[str], progress: Callable[[str], None]) -> list[Line]:
    """Run the rows and their comparisons in turns."""
    lines: list[Line] = []
    for size in (2, 4):
        with ExitStack() as stack:
            workers = stack.enter_context(WorkerProcesses(2, TOPOLOGY, flags=["--drain-seconds=1"]))
            workers.assign({0: range(1, size + 1, 2), 1: range(2, size + 1, 2)})

            near, far = (each.address for each in workers.endpoints)
            where = [far if rank % 2 else near for rank in range(size)]
            team = _Ranks(stack, [("member", each, rank, size) for rank, each in enumerate(where)])
            bare = _Ranks(stack, [("bare", rank, size) for rank in range(size)])
            team.ask("join")
            bare.ask("connect", ports=[each["port"] for each in bare.ask("port")])
            for name in names:
                if name in SUMS and SUMS[name][0] == size:
                    lines.append(_sum_line(name, team, bare, progress))
                elif name not in SUMS and BARRIERS.get(name, (2,))[0] == size:
                    lines.append(_time_line(name, team, links, progress))
    return lines


def _time_line(name: str, team: _Ranks, links: Links, progress: Callable[[str], None]) -> Line:
    """Compare a barrier, or a round trip, with the time of one way through two workers."""
    size, target = BARRIERS.get(name, (2, _PINGPONG_TARGET))
    ours, one_way = [], []
    for number in range(1, ROUNDS + 1):
        progress(f"{name}, round {number} of {ROUNDS}")
        ours.append(team.milliseconds("barrier" if name in BARRIERS else "pingpong", rounds=_CALLS))
        one_way.append(percentile(links[CHAIN].paced(LATENCY_RATE, 1.0).nanoseconds, 50) / 1e6)
    ways = 1 if name in BARRIERS else 2
    title = f"a barrier of {size} ranks, p50" if name in BARRIERS else "a value to another rank and back, p50"
    against = "one way through two workers, p50" if ways == 1 else "two one-way times through two workers"
    return compared(name, title, "ms", ours, against, [ways * each for each in one_way], target=target)


def _sum_line(name: str, team: _Ranks, bare: _Ranks, progress: Callable[[str], None]) -> Line:
    """Compare a sum with the same sum over bare gRPC."""
    size, size_bytes = SUMS[name]
    large = size_bytes > _LARGE_BYTES
    how = {"size_bytes": size_bytes, "rounds": _LARGE_CALLS if large else _CALLS}
    ours, theirs = [], []
    for number in range(1, ROUNDS + 1):
        progress(f"{name}, round {number} of {ROUNDS}")
        ours.append(team.milliseconds("reduce", **how))
        theirs.append(bare.milliseconds("reduce", **how))
    title = f"the sum of {size_bytes:,} bytes over {size} ranks, p50"
    target = _LARGE_TARGET if large else _SUM_TARGET
    return compared(name, title, "ms", ours, "bare gRPC, all to all, without workers", theirs, target=target)
