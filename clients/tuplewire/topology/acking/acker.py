"""The acker: finds out when a spout's tuple, and all that descends from it, is processed.

Source: the purpose of Storm's `Acker`. It serves executors of one process, which tell it of every copy before
that is on its way; so it can count, and needs no ids for the edges of a tree. A spout hears only once nothing
of a tree is left on the way: when it sends a failed tuple again, under the same message id, nothing of the
first attempt comes between. There is no time limit, as nothing gets lost within a process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuplewire.topology.running.receive_queue import AddressedTuples
from tuplewire.topology.tuples import MessageId, fate

Root = tuple[int, Any]
"""A spout's task and the message id that it gave."""


@dataclass(slots=True)
class _Tree:
    copies: int = 0
    failed: bool = False


class Acker:
    """Counts the copies on the way of each tree; thread-safe.

    tell: gets, for a spout's task, what has become of its tuples; called in the thread that finds out.
    """

    def __init__(self, tell: Callable[[AddressedTuples], None]) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._trees: dict[Root, _Tree] = {}

    def __len__(self) -> int:
        """Return the number of trees that are not processed yet."""
        return len(self._trees)

    def update(
        self,
        began: Iterable[Root] = (),
        copies: Mapping[Root, int] | None = None,
        acked: Iterable[MessageId] = (),
        failed: Iterable[MessageId] = (),
    ) -> None:
        """Take in what an executor has done, before any of the copies is on its way.

        began: what a spout has emitted. copies: how many tuples now carry each root. acked, failed: the ids
        of copies that are done with. A root that is over is left alone.
        """
        finished: dict[int, list[tuple[Any, bool]]] = {}
        with self._lock:
            trees = self._trees
            touched: dict[Root, None] = {}
            for root in began:
                trees.setdefault(root, _Tree())
                touched[root] = None
            for root, count in (copies or {}).items():
                if root in trees:
                    trees[root].copies += count
            for ids, fails in ((acked, False), (failed, True)):
                for message_id in ids:
                    for root in message_id:
                        if root in trees:
                            trees[root].copies -= 1
                            trees[root].failed |= fails
                            touched[root] = None
            for root in touched:
                if root in trees and trees[root].copies <= 0:
                    tree = trees.pop(root)
                    finished.setdefault(root[0], []).append((root[1], not tree.failed))
        self._tell_all(finished)

    def lose(self, left: Mapping[Root, int], gone: Collection[int] = ()) -> None:
        """Fail what has lost copies, as a worker has died; nothing is on the way meanwhile.

        left: how many copies of each root bolts still hold; a tree that has had more has failed, and its
        spout hears that once these are done with. gone: tasks of spouts that have nothing on the way any
        more, as far as anybody remembers.
        """
        finished: dict[int, list[tuple[Any, bool]]] = {}
        with self._lock:
            for root, tree in list(self._trees.items()):
                remaining = left.get(root, 0)
                if root[0] in gone:
                    del self._trees[root]
                elif tree.copies > remaining:
                    tree.copies, tree.failed = remaining, True
                    if not remaining:
                        del self._trees[root]
                        finished.setdefault(root[0], []).append((root[1], False))
        self._tell_all(finished)

    def _tell_all(self, finished: Mapping[int, Sequence[tuple[Any, bool]]]) -> None:
        for task, fates in finished.items():
            self._tell(
                AddressedTuples(task, [fate(message_id, processed=done) for message_id, done in fates])
            )
