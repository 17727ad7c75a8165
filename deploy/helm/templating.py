"""Makes a Helm template of manifests: what they have in common, and what each condition changes.

A condition is an expression of Helm's, such as `.Values.secure`. No two of them may change one value.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Conditions = Mapping[str, Any]
"""What a place holds under each condition that changes it."""

_GONE: Any = object()
_STEP = 2
_ELSE = "{{- else }}"
_END = "{{- end }}"


class Expression(str):
    """A value that Helm fills in: the text of a template, as YAML has it. An f-string, and not quoted."""

    __slots__ = ()


class Block(str):
    """An expression for a whole map or list, which Helm writes below its key."""

    __slots__ = ()


def template(plain: Any, changed: Conditions, indent: int = 0) -> list[str]:
    """Return the lines of a map or list, with an `if` around what a condition adds, changes or takes away."""
    lines: list[str] = []
    entries = _entries(plain)
    by_condition = {condition: _entries(other) for condition, other in changed.items()}
    names = list(entries)
    for others in by_condition.values():
        names += [name for name in others if name not in names]
    is_list = isinstance(plain, list)
    last = ""
    for name in names:
        own = entries.get(name, _GONE)
        differing = {
            condition: others.get(name, _GONE)
            for condition, others in by_condition.items()
            if others.get(name, _GONE) != own
        }
        key = "-" if is_list else f"{name}:"
        entry = _entry(key, own, differing, indent)
        if last and entry[0] == last and entry[-1] == _END and _ELSE not in entry:
            lines.pop()  # what follows is under the same condition
            entry.pop(0)
        else:
            last = entry[0] if entry[0].startswith("{{- if") and _ELSE not in entry else ""
        lines += entry
    return lines


def _entries(node: Any) -> dict[str, Any]:
    if isinstance(node, dict):
        return node
    assert isinstance(node, list), node  # noqa: S101 - a map under one condition and a text under another
    return {_identity(item): item for item in node}


def _identity(item: Any) -> str:
    """Return what an item of a list is known by in other versions of the list."""
    if isinstance(item, dict):
        for key in ("mountPath", "containerPort", "port", "name"):
            if key in item:
                return f"{key} {item[key]} {item.get('protocol')}"
    return json.dumps(item, sort_keys=True)


def _entry(key: str, own: Any, differing: Conditions, indent: int) -> list[str]:
    added = [condition for condition in differing if own is _GONE]
    removed = [condition for condition, other in differing.items() if other is _GONE]
    if own is _GONE:
        lines = []
        for condition in added:
            lines += _if(condition, _value(key, differing[condition], {}, indent))
        return lines
    kept = {condition: other for condition, other in differing.items() if condition not in removed}
    lines = _value(key, own, kept, indent)
    if removed:
        every = " ".join(f"({condition})" for condition in removed)
        lines = _if(f"not (or {every})" if len(removed) > 1 else f"not {every}", lines)
    return lines


def _if(condition: str, lines: Sequence[str]) -> list[str]:
    return [f"{{{{- if {condition} }}}}", *lines, _END]


def _value(key: str, own: Any, changed: Conditions, indent: int) -> list[str]:
    space = " " * indent
    if isinstance(own, Block):
        return [f"{space}{key}", f"{{{{- {own} | nindent {indent + _STEP} }}}}"]
    if isinstance(own, dict | list) and own:
        inner = template(own, changed, indent + _STEP)
        if key == "-" and isinstance(own, dict):
            return _under_dash(space, inner)
        return [f"{space}{key}", *inner]
    if not changed:
        return [f"{space}{key} {scalar(own)}"]
    lines = []
    for word, condition in zip(["if", *["else if"] * (len(changed) - 1)], changed, strict=True):
        lines += [f"{{{{- {word} {condition} }}}}", f"{space}{key} {scalar(changed[condition])}"]
    return [*lines, _ELSE, f"{space}{key} {scalar(own)}", _END]


def _under_dash(space: str, inner: list[str]) -> list[str]:
    """Put the dash of an item before its first line; before an `if`, on a line of its own."""
    if inner[0].startswith("{{"):
        return [f"{space}-", *inner]
    return [f"{space}- {inner[0].removeprefix(space + '  ')}", *inner[1:]]


def scalar(value: Any) -> str:
    """Return a text, number, truth, or something empty, as YAML has it."""
    if isinstance(value, Expression):
        return str(value)
    return json.dumps(value, ensure_ascii=False)
