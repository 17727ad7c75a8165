"""Rules from a file: the permissions of clients, by topology and tasks.

Used by guard.py and process/worker_security.py. Owns no state; rules are immutable. Thread-safe.
Source: Storm's `SimpleACLAuthorizer`, which has topologies but no tasks. Design: docs/design/identity.md.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuplewire.errors import ConfigError
from tuplewire.identity.credentials import any_name_matches, parse_names
from tuplewire.identity.files import UNREADABLE
from tuplewire.values.task_ids import TaskRanges

ACTIONS = ("assign", "drain", "publish", "debug")
"""The actions that a rule may allow besides sending and receiving; `publish` is for a sink's driver."""
_TASKS = ("send", "receive", "tap")
_SELECTOR_KEYS = ("certificates", "tokens", "topologies")
_KEYS = (*_SELECTOR_KEYS, *_TASKS, "control")
_NO_TASKS = TaskRanges((), ())
_MAX_DOTS = 1000
"""Maximum number in one line. Parsing a dotted key takes quadratic time, and blocks everything else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:
    """The permissions of a client in a topology: the sum of its rules. `has_rule`: True if one applies."""

    has_rule: bool = True
    send: TaskRanges = _NO_TASKS
    receive: TaskRanges = _NO_TASKS
    tap: TaskRanges = _NO_TASKS
    control: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionRule(Permissions):
    """The permissions of some clients in some topologies.

    `certificates` and `tokens` are names of the clients; both empty: all clients. No `topologies`: all.
    """

    certificates: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    topologies: tuple[str, ...] = ()

    def applies_to(self, names: Iterable[str], token: str | None, topology: str) -> bool:
        """Return True if the rule applies to a client with these names and this token, in a topology."""
        if self.topologies and topology not in self.topologies:
            return False
        if not self.certificates and not self.tokens:
            return True
        return token in self.tokens or any_name_matches(names, self.certificates)


def permissions_of(
    rules: Iterable[PermissionRule], names: Sequence[str], token: str | None, topology: str
) -> Permissions:
    """Return the permissions of a client. Everything that no rule allows is denied."""
    fitting = [rule for rule in rules if rule.applies_to(names, token, topology)]
    tasks: dict[str, Any] = {key: _union(getattr(rule, key) for rule in fitting) for key in _TASKS}
    control = frozenset(action for rule in fitting for action in rule.control)
    return Permissions(has_rule=bool(fitting), control=control, **tasks)


def _union(ranges: Iterable[TaskRanges]) -> TaskRanges:
    return TaskRanges.of(pair for each in ranges for pair in zip(each.starts, each.ends, strict=True))


def read_rules(path: Path) -> tuple[PermissionRule, ...]:
    """Read a permissions file: TOML with a table [[client]] for each rule. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        _check_dots(text)
        content = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(
            f"cannot read the permissions file {path}: {error.strerror}; {UNREADABLE}"
        ) from error
    except (ValueError, RecursionError) as error:  # RecursionError: a thousand nested tables
        raise ConfigError(f"cannot parse the permissions file {path} as TOML: {error}") from error
    unknown = sorted(set(content) - {"client"})
    tables = content.get("client", [])
    if unknown or not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
        raise ConfigError(
            f"the permissions file {path} can only have [[client]] tables"
            + (f", not {', '.join(unknown)}" if unknown else "")
        )
    rules = []
    for number, table in enumerate(tables, 1):
        try:
            rules.append(_rule(table))
        except ConfigError as error:
            raise ConfigError(f"client {number} of the permissions file {path}: {error}") from error
    return tuple(rules)


def _check_dots(text: str) -> None:
    for number, line in enumerate(text.splitlines(), 1):
        if line.count(".") > _MAX_DOTS:
            raise ValueError(f"line {number} has more than {_MAX_DOTS} dots; write a list on several lines")


def _rule(table: Mapping[str, Any]) -> PermissionRule:
    for key in table:
        if key not in _KEYS:
            raise ConfigError(f"unknown key {key!r}; known are: {', '.join(_KEYS)}")
    control = _string_list(table, "control")
    for action in control:
        if action not in ACTIONS:
            raise ConfigError(f"control may contain {', '.join(ACTIONS)}, not {action!r}")
    fields: dict[str, Any] = {key: _string_list(table, key) for key in _SELECTOR_KEYS}
    fields["certificates"] = tuple(name for text in fields["certificates"] for name in parse_names(text))
    for key in _TASKS:
        tasks = table.get(key, "")
        if not isinstance(tasks, str):
            raise ConfigError(f'{key} is a text such as "1,2,10-19" or "*", not {tasks!r}')
        fields[key] = TaskRanges.parse(tasks)
    return PermissionRule(control=frozenset(control), **fields)


def _string_list(table: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = table.get(key)
    if value is None:
        return ()
    if not isinstance(value, list) or not value or not all(isinstance(each, str) and each for each in value):
        raise ConfigError(f'{key} must be a list of strings such as ["a"]; omit it if it is empty')
    return tuple(value)
