"""The shuffle grouping that uses the loads and distances of tasks.

About once a second, it reads the loads that tasks report and changes their shares by two gradual rules:

- A task with a higher load than nearer or equally near tasks gets a smaller share, less the longer it lasts.
  Each step takes away an amount that depends on the excess, and returns an amount that depends on the loss.
- A more distant tier is used to the degree that the average load of nearer tasks is between two bounds.

Both change in small steps, so that delayed reports do not cause oscillation. Used by topologies and
spark/row_router.py. Owns the weights and the ring of one sending task. Not thread-safe.
Design: docs/design/topologies.md. Source: Storm's `LoadAwareShuffleGrouping`, with another algorithm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from math import ceil
from statistics import fmean

from tuplewire.grouping.grouping import GroupingContext, Locality, RingGrouping

LOWER_BOUND = 0.2
HIGHER_BOUND = 0.8
"""Average loads of nearer tasks. A more distant tier is used above the first, and fully from the second on.

Source: Storm's topology.localityaware.lower.bound and .higher.bound.
"""

TOLERANCE = 0.05
"""The scale of excess load: a smaller excess has little effect. Source: Storm's 5 %."""

_LOAD_STRENGTH = 0.2
_RECOVERY_STRENGTH = 0.1
"""The strengths with which each refresh moves a weight with the load, and back to 1."""

_MIN_WEIGHT = 1e-3

_ADMISSION_LAG = 0.3
"""The share of the distance to its target that an admission moves at each refresh, from 0 to 1."""

_MIN_RING_PLACES = 1000
_MIN_PLACES_PER_TASK = 10
"""The minimum number of places on the ring, in total and for each task. They set the precision of shares."""


class LoadAwareShuffle(RingGrouping):
    """A shuffle with shares according to the reported loads. Equal loads give equal shares.

    Until the first refresh, all shares are equal, as in Storm: loads are not known yet, and a slow near task
    would get the most. If no task has reported a load, tasks at one distance have equal shares. Otherwise a
    task without a report counts as fully loaded.
    """

    def __init__(self, context: GroupingContext) -> None:
        super().__init__(context.tasks, context.source)
        self._context = context
        self._weight = dict.fromkeys(self.tasks, 1.0)
        self._admission = dict.fromkeys(Locality, 0.0)

    @property
    def shares(self) -> dict[int, float]:
        """The current share of each task in all messages."""
        return {task: self._ring.count(task) / len(self._ring) for task in self.tasks}

    def refresh(self) -> None:
        """Read the current loads and distances, and move the shares one step toward their targets."""
        localities = self._context.locality()
        tiers = [
            (tier, members)
            for tier in Locality
            if (members := [task for task in self.tasks if localities.get(task, Locality.EVERYTHING) is tier])
        ]
        loads = self._loads()
        self._update_admissions(tiers, loads)
        self._update_weights(tiers, loads)
        weights = {
            task: self._weight[task] * self._admission[tier] for tier, tasks in tiers for task in tasks
        }
        self.turn_to(_build_ring([(task, weights[task]) for task in self.tasks]))

    def _loads(self) -> dict[int, float]:
        reported = self._context.loads()
        default_load = 1.0 if any(task in reported for task in self.tasks) else 0.0
        loads = {task: reported.get(task, default_load) for task in self.tasks}
        return {task: load if 0 <= load <= 1 else 1.0 for task, load in loads.items()}

    def _update_admissions(self, tiers: Sequence[_Tier], loads: Mapping[int, float]) -> None:
        """Move each tier's admission, from 0 to 1, toward the target for the average load of nearer tiers."""
        admission = dict.fromkeys(Locality, 0.0)
        nearer: list[float] = []
        for tier, members in tiers:  # nearest first; the nearest tier is always fully admitted
            wanted = (fmean(nearer) - LOWER_BOUND) / (HIGHER_BOUND - LOWER_BOUND) if nearer else 1.0
            known = self._admission[tier]
            admission[tier] = known + _ADMISSION_LAG * (min(max(wanted, 0.0), 1.0) - known) if nearer else 1.0
            nearer += [loads[task] for task in members]
        self._admission = admission

    def _update_weights(self, tiers: Sequence[_Tier], loads: Mapping[int, float]) -> None:
        """Move each task's weight in its tier, from 0 to 1, according to its load.

        The load is compared with the least loaded task at most as far away, and with more distant tasks to
        the degree that their tier is admitted.
        """
        least = [(tier, min(loads[task] for task in members)) for tier, members in tiers]
        for tier, members in tiers:
            reference_load = min(load for other_tier, load in least if other_tier <= tier)
            for other_tier, load in least:
                if other_tier > tier and load < reference_load:
                    reference_load -= self._admission[other_tier] * (reference_load - load)
            for task in members:
                pull = 1 / (1 + ((loads[task] - reference_load) / TOLERANCE) ** 2)
                weight = self._weight[task] ** (1 - _RECOVERY_STRENGTH) * pull**_LOAD_STRENGTH
                self._weight[task] = max(weight, _MIN_WEIGHT)  # a weight of 0 could never recover


_Tier = tuple[Locality, list[int]]


def _build_ring(weights: Sequence[tuple[int, float]]) -> list[int]:
    """Build a ring in which each task has places in proportion to its weight, spread evenly."""
    places = len(weights) * max(ceil(_MIN_RING_PLACES / len(weights)), _MIN_PLACES_PER_TASK)
    total = sum(weight for _, weight in weights)
    ends = accumulate((weight * places / total for _, weight in weights), initial=0.0)
    stops = [round(end) for end in ends]
    marks = []
    for order, (begin, end) in enumerate(pairwise(stops)):
        count = end - begin
        marks += [((place + 0.5) / count, order) for place in range(count)]
    return [weights[order][0] for _, order in sorted(marks)]
