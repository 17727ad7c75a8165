"""The rows of teams: barriers, sums and round trips among processes with two workers between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any, NamedTuple

from agent import Agent
from links import CHAIN, Links
from report import Line, compared, in_turns
from rows import LATENCY_RATE, milliseconds
from team_agent import bare, member
from workload import TOPOLOGY

from tuplewire.processes.worker_processes import WorkerProcesses


class _Row(NamedTuple):
    """A row: `ways` is the time of this number of ways through two workers; 0: the same over bare gRPC."""

    title: str
    ranks: int
    target: float
    verb: str
    ways: int = 0
    size_bytes: int = 0
    calls: int = 300


_ROWS = {
    "team/barrier/2": _Row("a barrier of 2 ranks", 2, 1.5, "barrier", 1),
    "team/barrier/4": _Row("a barrier of 4 ranks", 4, 3.0, "barrier", 1),
    "team/reduce/2/8KiB": _Row("the sum of 8,192 bytes over 2 ranks", 2, 2.5, "reduce", 0, 8192),
    "team/reduce/4/8KiB": _Row("the sum of 8,192 bytes over 4 ranks", 4, 2.5, "reduce", 0, 8192),
    "team/reduce/4/8MB": _Row("the sum of 8,000,000 bytes over 4 ranks", 4, 1.67, "reduce", 0, 8_000_000, 5),
    "team/pingpong": _Row("a value to another rank and back", 2, 1.1, "pingpong", 2),
}
TEAM_ROWS = tuple(_ROWS)
_AGAINST = ("bare gRPC, all to all, without workers", "one way through two workers, p50")
_TWO_WAYS = "two one-way times through two workers"
_ROUNDS = 3


class _Ranks:
    """The processes of one side, which make each call at the same time."""

    def __init__(self, stack: ExitStack, roles: Sequence[tuple[Any, ...]]) -> None:
        self._agents = [stack.enter_context(Agent(*role)) for role in roles]
        self._pool = stack.enter_context(ThreadPoolExecutor(len(roles)))

    def ask(self, verb: str, **how: Any) -> list[dict[str, Any]]:
        """Send a request to all; return their answers."""
        return list(self._pool.map(lambda agent: agent.ask(verb, **how), self._agents))

    def milliseconds(self, row: _Row) -> float:
        """Return the median time of a call, over all ranks."""
        how = {"size_bytes": row.size_bytes} if row.size_bytes else {}
        answers = self.ask(row.verb, rounds=row.calls, **how)
        times: list[int] = [time for each in answers for time in each["ns"]]
        return median(times) / 1e6


def measure_team(links: Links, names: Sequence[str], _: float) -> list[Line]:
    """Run the rows and their comparisons in turns."""
    rows = {name: _ROWS[name] for name in names}
    return [line for size in (2, 4) for line in _lines(links, rows, size)]


def _lines(links: Links, rows: dict[str, _Row], size: int) -> Iterator[Line]:
    with ExitStack() as stack:
        workers = stack.enter_context(WorkerProcesses(2, TOPOLOGY, flags=["--drain-seconds=1"]))
        workers.assign({0: range(1, size + 1, 2), 1: range(2, size + 1, 2)})
        addresses = [each.address for each in workers.endpoints]
        team = _Ranks(stack, [(member, addresses[rank % 2], rank, size) for rank in range(size)])
        others = _Ranks(stack, [(bare, rank, size) for rank in range(size)])
        team.ask("join")
        others.ask("connect", ports=[each["port"] for each in others.ask("port")])

        def one_way() -> float:
            return milliseconds([links[CHAIN].paced(LATENCY_RATE, 1.0)], 50)[0]

        for name, row in rows.items():
            if row.ranks != size:
                continue
            against = one_way if row.ways else partial(others.milliseconds, row)
            rounds = in_turns(name, _ROUNDS, {"team": partial(team.milliseconds, row), "other": against})
            pairs = [(each["team"], (row.ways or 1) * each["other"]) for each in rounds]
            title = _TWO_WAYS if row.ways == 2 else _AGAINST[row.ways]
            yield compared(name, f"{row.title}, p50", "ms", pairs, title, target=row.target)
