"""The laws of a topology's tasks, and of its description."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tuplewire_topology.authoring.description import (
    FIRST_TASK,
    KEYED_GROUPINGS,
    Component,
    ComponentKind,
    GroupingType,
    Input,
    Topology,
)
from tuplewire_topology.authoring.tuples import Stream

names = st.text(min_size=1, max_size=5).filter(lambda name: not name.startswith("__"))


@st.composite
def topologies(draw: st.DrawFn) -> list[Component]:
    """Make components that subscribe to each other in any way, in any order."""
    declared: dict[str, tuple[Stream, ...]] = {}
    for name in draw(st.lists(names, min_size=1, max_size=6, unique=True)):
        declared[name] = tuple(
            Stream(*draw(st.lists(names, max_size=3, unique=True)), name=stream, direct=draw(st.booleans()))
            for stream in draw(st.lists(names, max_size=3, unique=True))
        )
    sources = [(name, stream) for name, streams in declared.items() for stream in streams]
    components = []
    for number, (name, streams) in enumerate(declared.items()):
        kind = draw(st.sampled_from(ComponentKind)) if number else ComponentKind.SPOUT
        inputs = []
        for source, stream in (
            draw(st.lists(st.sampled_from(sources), max_size=3, unique=True)) if sources else ()
        ):
            free = [
                grouping
                for grouping in GroupingType
                if grouping is not GroupingType.DIRECT and (stream.fields or grouping not in KEYED_GROUPINGS)
            ]
            grouping = GroupingType.DIRECT if stream.direct else draw(st.sampled_from(free))
            inputs.append(
                Input(source, stream.name, grouping, stream.fields[:1] if grouping in KEYED_GROUPINGS else ())
            )
        n_tasks = draw(st.integers(1, 20))
        components.append(
            Component(
                name,
                kind,
                streams,
                tuple(inputs) if kind is ComponentKind.BOLT else (),
                draw(st.integers(1, n_tasks)),
                n_tasks,
                draw(st.dictionaries(names, st.none() | st.integers() | st.text(), max_size=2)),
            )
        )
    return draw(st.permutations(components))


@given(topologies())
def test_every_task_has_one_component_and_one_executor(components: list[Component]) -> None:
    """The ids are consecutive; each belongs to one component and one of its executors, in order."""
    topology = Topology(components)
    executors = [tasks for name in sorted(topology.components) for tasks in topology.executors_of(name)]
    assert [task for tasks in executors for task in tasks] == list(topology.tasks)
    assert topology.tasks.start == FIRST_TASK
    for component in components:
        assert all(topology.component_of(task) is component for task in topology.tasks_of(component.id))
        sizes = [len(tasks) for tasks in topology.executors_of(component.id)]
        assert len(sizes) == component.parallelism
        assert max(sizes) - min(sizes) <= 1


@given(topologies())
def test_ids_depend_on_the_topology_alone(components: list[Component]) -> None:
    """The tasks are the same for any order of the components."""
    topology = Topology(components)
    other = Topology(reversed(components))
    assert other.components == topology.components
    assert [other.component_of(task).id for task in other.tasks] == [
        topology.component_of(task).id for task in topology.tasks
    ]


@given(topologies())
def test_targets_mirror_inputs(components: list[Component]) -> None:
    """A bolt is a target of a stream exactly if it subscribes to it."""
    topology = Topology(components)
    targets = {
        (bolt, subscription)
        for component in components
        for stream in component.streams
        for bolt, subscription in topology.subscribers_of(component.id, stream.name)
    }
    assert targets == {
        (component.id, subscription) for component in components for subscription in component.inputs
    }
