"""Distributes tasks over workers evenly, with few moves. Source: Storm's `EvenScheduler`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence


def fill(tasks: Collection[int], workers: Sequence[str], current: Mapping[int, str]) -> dict[int, str]:
    """Give each task without a worker to the worker with the fewest tasks; the other tasks stay.

    workers: the workers that may get tasks; if empty, no task is given. current: the present worker of
    each task, which may be a worker that gets no more. The result depends only on the arguments: of workers
    with the same number of tasks, the first one is next.
    """
    placed = {task: current[task] for task in tasks if task in current}
    counts = Counter(placed.values())
    for task in sorted(task for task in tasks if workers and task not in placed):
        placed[task] = min(workers, key=counts.__getitem__)
        counts[placed[task]] += 1
    return placed


def rebalance(
    tasks: Collection[int], workers: Sequence[str], current: Mapping[int, str], pinned: Collection[int] = ()
) -> dict[int, str]:
    """Give all workers the same number of tasks, or one more, with as few moves as possible.

    Arguments and result: see fill(). pinned: tasks that stay with their worker; a worker with more of
    these than its share gets no others. The workers with the most tasks keep one extra task.
    """
    own: dict[str, list[int]] = {worker: [] for worker in workers}
    for task in sorted(tasks, key=lambda task: (task not in pinned, task)):
        if current.get(task) in own:
            own[current[task]].append(task)
    pins = {worker: sum(task in pinned for task in had) for worker, had in own.items()}
    sharing, n_remaining = list(own), len(tasks)
    # Set workers aside that have more pinned tasks than their share, until the others can share evenly.
    while True:
        share, remainder = divmod(n_remaining, max(1, len(sharing)))
        full = [each for each in sharing if pins[each] > share]
        if len(full) <= remainder and all(pins[each] == share + 1 for each in full):
            break
        n_remaining -= sum(pins[each] for each in full)
        sharing = [each for each in sharing if each not in full]
    sharing.sort(key=lambda worker: (worker not in full, -len(own[worker])))
    quota = {worker: share + (rank < remainder) for rank, worker in enumerate(sharing)}
    kept = {
        task: worker for worker, had in own.items() for task in had[: max(quota.get(worker, 0), pins[worker])]
    }
    return fill(tasks, workers, kept)
