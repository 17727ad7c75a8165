"""The acker as tasks of a topology: its component, its trees, and the updates from executors."""

from __future__ import annotations

import pytest
from helpers.executors import Sink, pipeline

from tuplewire.errors import ConfigError, MalformedTupleError, TopologyError
from tuplewire_topology import Topology, Tuple
from tuplewire_topology.acking.acker import (
    ID_STRUCT,
    AckerTrees,
    RotatingMap,
    check_roots,
    factor_of,
    pack_uint64,
)
from tuplewire_topology.authoring.description import with_ackers
from tuplewire_topology.authoring.topology_settings import TopologySettings
from tuplewire_topology.authoring.tuples import ACK_STREAM, FAIL_STREAM, INIT_STREAM
from tuplewire_topology.clusters.capture import FeederSpout


def words() -> Topology:
    """Return a bolt "sink" with the tasks 1 and 2, and a spout "words" with task 3."""
    return pipeline({"words": FeederSpout(["word"]), "sink": Sink()}, tasks=2)


SYSTEM = with_ackers(words(), 2)
SPOUT, BOLT = 3, 1


def told(stream: str, roots: list[int], edges: list[int] | None = None) -> Tuple:
    """Return an executor's update about roots."""
    task = SPOUT if stream == INIT_STREAM else BOLT
    values = [pack_uint64(roots)] if edges is None else [pack_uint64(roots), pack_uint64(edges)]
    return Tuple(values, SYSTEM.source(task, stream))


def test_tasks_keep_their_ids() -> None:
    """Acker tasks come last, so the tasks of the topology's components keep their ids."""
    assert SYSTEM.tasks_of("sink") == words().tasks_of("sink")
    assert SYSTEM.tasks_of("words") == words().tasks_of("words")
    assert SYSTEM.tasks_of("__acker") == range(4, 6)
    assert with_ackers(words(), 0).tasks == words().tasks


def test_ackers_twice() -> None:
    """Ackers can be added to a topology only once."""
    with pytest.raises(TopologyError, match="already has acker tasks"):
        with_ackers(SYSTEM, 1)


@pytest.mark.parametrize(("conf", "ackers"), [({}, 3), ({"topology.acker.executors": 0}, 0)])
def test_one_acker_for_each_worker(conf: dict[str, int], ackers: int) -> None:
    """By default there are as many ackers as workers, as in Storm."""
    assert TopologySettings.from_conf({"topology.workers": 3, **conf}).n_ackers == ackers
    with pytest.raises(ConfigError, match=r"topology\.acker\.executors must be a whole number"):
        TopologySettings.from_conf({"topology.acker.executors": "two"})


@pytest.mark.parametrize("late", [False, True])
def test_a_failure_is_told_once(late: bool) -> None:  # noqa: FBT001
    """A failure is reported once; if it precedes the tree's start, it is reported at that start."""
    trees = AckerTrees()
    begin = [told(INIT_STREAM, [7], [6]), told(FAIL_STREAM, [7])]
    fates = [fate for message in (reversed(begin) if late else begin) for fate in trees.apply_report(message)]
    fates += trees.apply_report(told(FAIL_STREAM, [7]))
    fates += trees.apply_report(told(ACK_STREAM, [7], [6]))
    assert fates == [(SPOUT, 7, False)]
    assert len(trees) == 0


def test_trees_of_which_nothing_becomes_are_given_up() -> None:
    """A tree is retained for two rotations and dropped by the third."""
    trees = AckerTrees()
    trees.apply_report(told(INIT_STREAM, [7], [6]))
    trees.rotate()
    trees.rotate()
    assert len(trees) == 1
    trees.rotate()
    assert len(trees) == 0


def test_rotating_map() -> None:
    """Entries are found in every generation, and a rotation returns the dropped ones."""
    entries: RotatingMap[str, int] = RotatingMap()
    entries.put("old", 1)
    entries.put("done", 2)
    assert entries.rotate() == {}
    entries.put("new", 3)
    assert (entries.get("old"), entries.get("new"), entries.get("none"), len(entries)) == (1, 3, None, 3)
    assert (entries.pop("done"), entries.pop("done"), entries.pop("new")) == (2, None, 3)
    assert entries.rotate() == {}
    assert entries.rotate() == {"old": 1}
    assert len(entries) == 0


@pytest.mark.parametrize(
    "values", [[b"1234567", b""], [b"12345678", b""], ["12345678", b"12345678"], [None, None]]
)
def test_malformed(values: list[object]) -> None:
    """A value that is not a column of numbers is an error and changes nothing."""
    trees = AckerTrees()
    with pytest.raises(MalformedTupleError):
        trees.apply_report(Tuple(values, SYSTEM.source(BOLT, ACK_STREAM)))
    assert len(trees) == 0


@pytest.mark.parametrize("message_id", [((1, ID_STRUCT.pack(1, 1)),), ((4, b"short"),), ((4, 7),)])
def test_foreign_message_id(message_id: tuple[tuple[int, object], ...]) -> None:
    """An id that is malformed or names no acker is refused."""
    check_roots(((4, ID_STRUCT.pack(1, 1)),), range(4, 6))
    with pytest.raises(MalformedTupleError, match="not a message id"):
        check_roots(message_id, range(4, 6))


def test_factors() -> None:
    """Each task has a unique odd factor, so that a tuple's edges to two tasks do not cancel out."""
    factors = [factor_of(task) for task in range(10_000)]
    assert len(set(factors)) == len(factors)
    assert all(factor % 2 for factor in factors)
