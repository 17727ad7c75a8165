"""The shuffle grouping that looks at loads and distances.

Once a second or so it looks at the loads that tasks report and shifts shares, by two smooth rules. A task
that is more loaded than others as near gets less, the more so the longer it lasts: what it loses at a time
depends on the excess, and what it gets back on how much it has lost. A farther tier of tasks is let in as far
as the average load of the nearer ones is between two bounds. Both move by small steps, so that what a sender
learns late does not make it swing. Reasons and numbers: docs/design/topologies.md.

Source: the purpose of Storm's `LoadAwareShuffleGrouping`; not its way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from math import ceil
from statistics import fmean

from tuplewire.grouping.grouping import GroupingContext, Locality, RingGrouping

LOWER_BOUND = 0.2
HIGHER_BOUND = 0.8
"""The average loads at which a farther tier begins to be let in, and is let in as a nearer one is.

Source: Storm's topology.localityaware.lower.bound and .higher.bound.
"""

TOLERANCE = 0.05
"""The excess of load that begins to count. Source: Storm's 5 %."""

_PULL = 0.2
_RETURN = 0.1
"""How strongly, at each refresh, a weight follows the load, and goes back to 1."""

_LEAST_WEIGHT = 1e-3

_ADMISSION_LAG = 0.3
"""How much of the way to where the loads point an admission goes at each refresh."""

_RING = 1000
_PLACES_PER_TASK = 10
"""The places on the ring: at least so many, and so many for each task. Shares are kept to one in so many."""


class LoadAwareShuffle(RingGrouping):
    """Tasks get shares by the loads that they report: equal ones when these are equal.

    Where no task is heard of, all get equal shares; otherwise one that is not counts as fully loaded.
    """

    def __init__(self, context: GroupingContext) -> None:
        super().__init__(context.tasks, context.source)
        self._context = context
        self._weight = dict.fromkeys(self.tasks, 1.0)
        self._admission = dict.fromkeys(Locality, 0.0)
        self.refresh()

    @property
    def shares(self) -> dict[int, float]:
        """The part of all messages that each task gets now."""
        return {task: self._ring.count(task) / len(self._ring) for task in self.tasks}

    def refresh(self) -> None:
        """Take the loads and distances of now, and move the shares a step towards what they ask for."""
        near = self._context.locality()
        tiers = [
            (tier, members)
            for tier in Locality
            if (members := [task for task in self.tasks if near.get(task, Locality.EVERYTHING) is tier])
        ]
        loads = self._loads()
        self._admit(tiers, loads)
        self._weigh(tiers, loads)
        weights = {
            task: self._weight[task] * self._admission[tier] for tier, tasks in tiers for task in tasks
        }
        self._turn_to(_ring([(task, weights[task]) for task in self.tasks]))

    def _loads(self) -> dict[int, float]:
        reported = self._context.loads()
        unheard = 1.0 if any(task in reported for task in self.tasks) else 0.0
        loads = {task: reported.get(task, unheard) for task in self.tasks}
        return {task: load if 0 <= load <= 1 else 1.0 for task, load in loads.items()}

    def _admit(self, tiers: Sequence[_Tier], loads: Mapping[int, float]) -> None:
        """Move each tier's admission, from 0 to 1, towards what the nearer tiers' average load asks for."""
        admission = dict.fromkeys(Locality, 0.0)
        nearer: list[float] = []
        for tier, members in tiers:
            wanted = (fmean(nearer) - LOWER_BOUND) / (HIGHER_BOUND - LOWER_BOUND) if nearer else 1.0
            known = self._admission[tier]
            admission[tier] = known + _ADMISSION_LAG * (min(max(wanted, 0.0), 1.0) - known) if nearer else 1.0
            nearer += [loads[task] for task in members]
        self._admission = admission

    def _weigh(self, tiers: Sequence[_Tier], loads: Mapping[int, float]) -> None:
        """Move each task's weight within its tier, from 0 to 1, by what its load asks for.

        A task is measured by the least loaded one as near, and by a farther one as far as that is let in.
        """
        least = [(tier, min(loads[task] for task in members)) for tier, members in tiers]
        for tier, members in tiers:
            measure = min(load for other, load in least if other <= tier)
            for other, load in least:
                if other > tier and load < measure:
                    measure -= self._admission[other] * (measure - load)
            for task in members:
                pull = 1 / (1 + ((loads[task] - measure) / TOLERANCE) ** 2)
                weight = self._weight[task] ** (1 - _RETURN) * pull**_PULL
                self._weight[task] = max(weight, _LEAST_WEIGHT)


_Tier = tuple[Locality, list[int]]


def _ring(weights: Sequence[tuple[int, float]]) -> list[int]:
    """Return tasks in numbers in proportion to their weights, each spread evenly over the ring."""
    places = len(weights) * max(ceil(_RING / len(weights)), _PLACES_PER_TASK)
    total = sum(weight for _, weight in weights)
    ends = accumulate((weight * places / total for _, weight in weights), initial=0.0)
    stops = [round(end) for end in ends]
    marks = []
    for order, (begin, end) in enumerate(pairwise(stops)):
        count = end - begin
        marks += [((place + 0.5) / count, order) for place in range(count)]
    return [weights[order][0] for _, order in sorted(marks)]
