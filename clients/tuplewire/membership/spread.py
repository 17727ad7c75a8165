"""Which worker gets which task: evenly, and with few moves. Source: Storm's `EvenScheduler`."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Mapping, Sequence


def fill(tasks: Collection[int], workers: Sequence[str], held: Mapping[int, str]) -> dict[int, str]:
    """Give each task that nobody holds to the worker that has the fewest; whoever holds a task keeps it.

    workers: those that may get tasks; none: nothing is given. held: who has which task now, also workers that
    get no more. The answer depends on nothing else: of workers with equally many, the first named is next.
    """
    placed = {task: held[task] for task in tasks if task in held}
    counts = Counter(placed.values())
    heap = [(counts[worker], index, worker) for index, worker in enumerate(workers)]
    heapq.heapify(heap)
    for task in sorted(task for task in tasks if task not in placed):
        if not heap:
            break
        count, index, worker = heap[0]
        placed[task] = worker
        heapq.heapreplace(heap, (count + 1, index, worker))
    return placed


def spread(tasks: Collection[int], workers: Sequence[str], held: Mapping[int, str]) -> dict[int, str]:
    """Give each worker as many tasks as any other, or one more, and move as few as that allows.

    Arguments and answer are those of fill(). The workers that have the most keep the one more.
    """
    own: dict[str, list[int]] = {worker: [] for worker in workers}
    for task in sorted(tasks):
        if held.get(task) in own:
            own[held[task]].append(task)
    share, more = divmod(len(tasks), max(1, len(workers)))
    by_count = sorted(own, key=lambda worker: -len(own[worker]))
    kept = {
        task: worker for rank, worker in enumerate(by_count) for task in own[worker][: share + (rank < more)]
    }
    return fill(tasks, workers, kept)
