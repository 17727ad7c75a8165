"""A topology's description as JSON, for processes that have to know it without the code of its components."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from tuplewire.errors import TopologyError
from tuplewire.topology.description import Component, GroupingType, Input, Kind, Topology
from tuplewire.topology.streams import Stream

_VERSION = 1
_Value = TypeVar("_Value")


def to_json(topology: Topology) -> str:
    """Return a topology as text; TopologyError when a component's configuration has no form in JSON."""
    components = [_component_form(component) for component in topology.components.values()]
    try:
        return json.dumps({"version": _VERSION, "components": components}, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TopologyError(f"a component's configuration cannot be written as JSON: {error}") from error


def from_json(text: str | bytes) -> Topology:
    """Return the topology that to_json() wrote; TopologyError, naming the place, for text that is none."""
    try:
        form = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TopologyError(f"a topology's description is not JSON: {error}") from error
    version = _get(form, "version", int, "a topology")
    if version != _VERSION:
        raise TopologyError(
            f"a topology's description is of version {version}; this release reads {_VERSION}"
        )
    return Topology(map(_component, _get(form, "components", list, "a topology")))


def _component_form(component: Component) -> dict[str, Any]:
    return {
        "id": component.id,
        "kind": component.kind,
        "parallelism": component.parallelism,
        "n_tasks": component.n_tasks,
        "streams": [
            {"name": stream.name, "fields": stream.fields, "direct": stream.direct}
            for stream in component.streams
        ],
        "inputs": [
            {
                "component": subscription.component,
                "stream": subscription.stream,
                "grouping": subscription.grouping,
                "fields": subscription.fields,
            }
            for subscription in component.inputs
        ],
        "configuration": dict(component.configuration),
    }


def _component(form: Any) -> Component:
    what = f"component {_get(form, 'id', str, 'a component')!r}"
    return Component(
        form["id"],
        _member(Kind, _get(form, "kind", str, what), what),
        tuple(_stream(item, what) for item in _get(form, "streams", list, what)),
        tuple(_input(item, what) for item in _get(form, "inputs", list, what)),
        _get(form, "parallelism", int, what),
        _get(form, "n_tasks", int, what),
        _get(form, "configuration", dict, what),
    )


def _stream(form: Any, what: str) -> Stream:
    what = f"a stream of {what}"
    return Stream(
        *_get(form, "fields", list, what),
        name=_get(form, "name", str, what),
        direct=_get(form, "direct", bool, what),
    )


def _input(form: Any, what: str) -> Input:
    what = f"an input of {what}"
    return Input(
        _get(form, "component", str, what),
        _get(form, "stream", str, what),
        _member(GroupingType, _get(form, "grouping", str, what), what),
        tuple(_get(form, "fields", list, what)),
    )


def _member(kind: type[_Value], value: str, what: str) -> _Value:
    try:
        return kind(value)  # type: ignore[call-arg]
    except ValueError as error:
        raise TopologyError(f"{what}: {error}") from error


def _get(form: Any, key: str, kind: type[_Value], what: str) -> _Value:
    if not isinstance(form, dict):
        raise TopologyError(f"{what} is described by {type(form).__name__}, not by an object with names")
    value = form.get(key)
    if type(value) is not kind:
        raise TopologyError(f"{what}: {key!r} is {value!r}, not {kind.__name__}")
    return value
