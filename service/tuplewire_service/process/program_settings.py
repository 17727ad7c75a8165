"""What the settings of a topology say of the workers that run it, and of the transport between them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuplewire.config import SessionSettings
from tuplewire.errors import ConfigError
from tuplewire.settings import OUR_PREFIX, keys_of, settings_of, twice, unknown
from tuplewire_service.messaging.factory import TRANSPORT_KEY
from tuplewire_service.process.worker_config import WorkerConfig

WORKER_PREFIX = "tuplewire.worker."
"""What the settings of a worker begin with among those of a topology."""
_OF_A_QUEUE = {
    "tuplewire.transport.receive_messages": "receive_queue_messages",
    "tuplewire.transport.receive_bytes": "receive_queue_bytes",
}
"""What bounds a queue has two names, as it bounds what senders may have outstanding, too."""


def settings_in(conf: Mapping[str, Any], *, of_processes: bool = True) -> dict[str, Any]:
    """Return the fields of WorkerConfig that a topology's settings have.

    Their keys are `tuplewire.worker.NAME`, Storm's, and those of sessions. of_processes: whether each worker
    has a process; workers of one process take the settings of their transport as they are.
    Raises ConfigError for what does not fit, and for a key of ours that nobody knows.
    """
    declared, of_sessions = settings_of(WorkerConfig), keys_of(SessionSettings)
    known = {WORKER_PREFIX + name: each for name, each in declared.items()}
    known |= {each.storm: each for each in declared.values() if each.storm}
    known |= {key: declared[name] for key, name in _OF_A_QUEUE.items()}
    session = SessionSettings.from_conf(conf)
    values: dict[str, Any] = {"session": session}
    for name in declared.keys() & settings_of(SessionSettings).keys():
        values[name] = getattr(session, name)
    stands: dict[str, str] = {}
    for key, value in conf.items():
        each = known.get(key)
        if key in of_sessions or (key == TRANSPORT_KEY and not of_processes):
            continue
        if each is None:
            if key.startswith(OUR_PREFIX if of_processes else WORKER_PREFIX):
                raise unknown(f"setting {key!r}", key, [*known, *of_sessions])
        elif value is not None:
            twice(stands, each.name, key)
            is_text = isinstance(value, str) and not each.is_flag
            values[each.name] = (each.parse if is_text else each.check)(value, key, key)
    return values


def transport_settings_in(conf: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the transport between workers of one process, but for those of its sessions."""
    others = {*keys_of(SessionSettings), *_OF_A_QUEUE}
    own = {
        key: value
        for key, value in conf.items()
        if key not in others and not key.startswith((WORKER_PREFIX, SessionSettings.PREFIX))
    }
    return {TRANSPORT_KEY: "local", **own}


def read_conf(file: str) -> dict[str, Any]:
    """Return the settings of a topology, by their keys; ConfigError for a file that has none."""
    try:
        conf = json.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the settings {file}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{file} is not JSON: {error}") from error
    if not isinstance(conf, dict):
        raise ConfigError(f"{file} is not an object of settings by their keys")
    return conf
