"""The sources of a worker's settings.

Flags override TUPLEWIRE_* variables, which override a TOML file, a topology's settings and the defaults. Used
by the command, worker processes and clusters. Owns no state. Thread-safe.
Design: docs/design/rows-and-memory.md (settings).
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuplewire.environment import CLIENT_VARIABLES, refuse_misspelled
from tuplewire.errors import ConfigError
from tuplewire.settings.config import SessionSettings
from tuplewire.settings.settings import ENVIRONMENT_PREFIX, KEY_PREFIX, keys_of, read_keys, settings_of
from tuplewire_service.config.worker_config import WorkerConfig
from tuplewire_service.messaging.factory import TRANSPORT_KEY

CONFIG_VARIABLE = ENVIRONMENT_PREFIX + "CONFIG"
WORKER_PREFIX = "tuplewire.worker."
"""The prefix of a worker's settings in a topology's configuration."""
_QUEUE_LIMIT_KEYS = {
    "tuplewire.transport.receive_messages": "receive_queue_messages",
    "tuplewire.transport.receive_bytes": "receive_queue_bytes",
}
"""A queue's limit has two names, because it also limits the outstanding messages of senders."""
_EXECUTOR_QUEUE_KEY = "topology.executor.receive.buffer.size"
"""Limits a worker's queues in its own file, and executors' queues in a topology's settings."""
_SETTINGS = settings_of(WorkerConfig)


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration, and the origin of each value by name: "default", "argument --listen", ..."""

    config: WorkerConfig
    origins: Mapping[str, str]


def load(flags: Mapping[str, str], environment: Mapping[str, str], file: Path | None = None) -> LoadedConfig:
    """Merge the sources. Raises ConfigError with the source, the setting and the problem.

    flags: values by setting name. environment: all variables; other programs' are ignored. file: the TOML
    file; None: the file in the variable TUPLEWIRE_CONFIG. A program's settings override only the defaults.
    """
    if file is None and environment.get(CONFIG_VARIABLE):
        file = Path(environment[CONFIG_VARIABLE])
    values: dict[str, Any] = {}
    origins = dict.fromkeys(_SETTINGS, "default")
    if file is not None:
        _read_file_into(file, values, origins)
    by_variable = {declared.variable: name for name, declared in _SETTINGS.items()}
    refuse_misspelled(environment, {*by_variable, *CLIENT_VARIABLES})
    variables = environment.keys() & by_variable.keys()
    overrides = [(by_variable[each], f"environment {each}", environment[each]) for each in variables]
    overrides += [(name, f"argument {_SETTINGS[name].flag}", raw) for name, raw in flags.items()]
    for name, origin, raw in overrides:
        values[name] = _SETTINGS[name].check(raw, origin, text=True)
        origins[name] = origin
    program_conf_file = values.get("program_conf_file")
    program_settings = settings_in(read_conf(program_conf_file)) if program_conf_file else {}
    for name in program_settings.keys() - values.keys():
        values[name] = program_settings[name]
        if name in _SETTINGS and program_settings[name] != _SETTINGS[name].default:
            origins[name] = str(program_conf_file)
    return LoadedConfig(WorkerConfig(**values), origins)


def to_toml(config: WorkerConfig, origins: Mapping[str, str] | None = None) -> str:
    """Return a configuration as TOML, with the origin of each value if known."""
    lines = []
    for name, declared in _SETTINGS.items():
        value = getattr(config, name)
        origin = f"  # {origins[name]}" if origins else ""
        if value is None or value == ():
            lines.append(f"# {name} is not set{origin}")
        else:
            text = json.dumps(declared.kind.to_user_value(value), ensure_ascii=False)
            # JSON does not escape some control characters that TOML and terminals do not accept.
            text = "".join(each if each.isprintable() else f"\\U{ord(each):08x}" for each in text)
            lines.append(f"{name} = {text}{origin}")
    return "\n".join(lines)


def _read_file_into(file: Path, values: dict[str, Any], origins: dict[str, str]) -> None:
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {file}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"configuration {file} is not TOML: {error}") from error
    known, items = keys_of(WorkerConfig), list(_flatten(tables))
    values.update(read_keys(items, known, "", text=True, source=f" in {file}"))
    origins.update((known[key].name, f"{key} in {file}") for key, _ in items if key in known)


def _flatten(tables: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Yield dotted keys: TOML parses `storm.messaging.transport = "grpc"` as nested tables."""
    for key, value in tables.items():
        if isinstance(value, dict) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def settings_in(conf: Mapping[str, Any], *, separate_processes: bool = True) -> dict[str, Any]:
    """Return the fields of WorkerConfig in a topology's settings.

    Their keys are `tuplewire.worker.NAME`, Storm's keys, and those of sessions. separate_processes: True if
    each worker has its own process; workers in one process read their transport's settings separately.
    Raises ConfigError for an invalid value, and for an unknown key of Tuplewire.
    """
    read_elsewhere = {*keys_of(SessionSettings), *(() if separate_processes else (TRANSPORT_KEY,))}
    known = {WORKER_PREFIX + name: each for name, each in _SETTINGS.items()}
    known |= {each.storm: each for each in _SETTINGS.values() if each.storm not in {"", _EXECUTOR_QUEUE_KEY}}
    known |= {key: _SETTINGS[name] for key, name in _QUEUE_LIMIT_KEYS.items()}
    known = {key: each for key, each in known.items() if key not in read_elsewhere}
    session = SessionSettings.from_conf(conf)
    of_sessions = _SETTINGS.keys() & settings_of(SessionSettings).keys()
    checked_prefix = KEY_PREFIX if separate_processes else WORKER_PREFIX
    return {
        "session": session,
        **{name: getattr(session, name) for name in of_sessions},
        **read_keys(conf.items(), known, checked_prefix, read_elsewhere, text=True),
    }


def embedded_transport_conf(conf: Mapping[str, Any]) -> dict[str, Any]:
    """Return a topology's settings, except session settings; the default transport is `local`."""
    excluded_keys = {*keys_of(SessionSettings), *_QUEUE_LIMIT_KEYS}
    excluded_prefixes = WORKER_PREFIX, SessionSettings.PREFIX
    keys = [key for key in conf if key not in excluded_keys and not key.startswith(excluded_prefixes)]
    return {TRANSPORT_KEY: "local", **{key: conf[key] for key in keys}}


def read_conf(file: str) -> dict[str, Any]:
    """Return a topology's settings by key. Raises ConfigError for an unreadable or invalid file."""
    try:
        conf = json.loads(Path(file).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"cannot read program_conf_file {file}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{file} is not JSON: {error}") from error
    if not isinstance(conf, dict):
        raise ConfigError(f"program_conf_file {file} is not a JSON object of settings by key")
    return conf
