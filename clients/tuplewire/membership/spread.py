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


def spread(
    tasks: Collection[int],
    workers: Sequence[str],
    held: Mapping[int, str],
    pinned: Collection[int] = (),
) -> dict[int, str]:
    """Give each worker as many tasks as any other, or one more, and move as few as that allows.

    Arguments and answer are those of fill(). pinned: tasks that stay with whoever of the workers has them; a
    worker that has more of these than its share gets no others. The workers that have the most keep the one
    more.
    """
    own: dict[str, list[int]] = {worker: [] for worker in workers}
    for task in sorted(tasks, key=lambda task: (task not in pinned, task)):
        if held.get(task) in own:
            own[held[task]].append(task)
    pins = {worker: sum(task in pinned for task in had) for worker, had in own.items()}
    sharing, left = list(own), len(tasks)
    while True:
        share, more = divmod(left, max(1, len(sharing)))
        full = [each for each in sharing if pins[each] > share]
        if len(full) <= more and all(pins[each] == share + 1 for each in full):
            break
        left -= sum(pins[each] for each in full)
        sharing = [each for each in sharing if each not in full]
    sharing.sort(key=lambda worker: (worker not in full, -len(own[worker])))
    keeps = {worker: share + (rank < more) for rank, worker in enumerate(sharing)}
    kept = {
        task: worker for worker, had in own.items() for task in had[: max(keeps.get(worker, 0), pins[worker])]
    }
    return fill(tasks, workers, kept)
