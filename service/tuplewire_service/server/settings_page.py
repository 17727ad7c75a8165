"""Every setting as a page in Markdown, made of the declarations in the code: `make settings`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import MISSING, Field, fields
from enum import Enum
from typing import Any, NamedTuple

from tuplewire.config import KIB, MIB, SessionSettings
from tuplewire.topology.settings import TopologySettings
from tuplewire_service.launching.settings import LaunchSettings
from tuplewire_service.messaging.factory import DEFAULT_TRANSPORT, TRANSPORT_KEY
from tuplewire_service.messaging.grpc.settings import GrpcSettings
from tuplewire_service.messaging.settings import TransportSettings, key_of
from tuplewire_service.messaging.zmq.settings import ZmqSettings
from tuplewire_service.server.config import SETTINGS

_HEAD = """# Settings

Made by `make settings` from the declarations in the code; do not edit it.

Sizes are in bytes, times in seconds, unless a key says otherwise. An unknown key is an error that names it.
"""

_WORKER = """## A worker: `tuplewire worker`

`listen_unix` is the flag `--listen-unix`, the variable `TUPLEWIRE_LISTEN_UNIX`, and the key `listen_unix` in
the TOML file that `--config` or `TUPLEWIRE_CONFIG` names; flags come before variables, these before the file.
The file takes Storm's key as well. `tuplewire worker --print-config` shows what is in force. A size may have
a unit of 1024: 64KiB, 8MiB, 1GiB.
"""

_TOPOLOGY = """## A topology: `topology.*`

Given with the topology when it is submitted, or by a component for itself. The keys are Storm's.
Other keys are your own, for spouts and bolts to read.
"""

_LAUNCH = """## The processes of a topology: `cluster_of`, `DistributedCluster`

Given with the topology, too.
"""

_TRANSPORT = f"""## The transport: what `IContext.prepare` gets

`{TRANSPORT_KEY}` (Storm's key; by default `{DEFAULT_TRANSPORT}`, and `local` in a LocalCluster) is the name
of an installed transport, or the class path of an `IContext` or of a factory with `make_context(conf)`:
`package.module:Class` or `package.module.Class`. A transport may have
keys of its own beside those of all:
"""

_SESSION = """## A session: keywords of `tuplewire.Client`, and `session` of a transport

Storm's key is the nearest that Storm has; it is not read here.
"""


_OURS = {"topology.error.policy", "supervisor.worker.restarts"}


class Row(NamedTuple):
    """A setting, in words."""

    ours: str
    storm: str
    kind: str
    default: str
    effect: str


def page() -> str:
    """Return the whole page."""
    parts = [
        _HEAD,
        _WORKER,
        _table(_worker()),
        _TOPOLOGY,
        _table(_stormy(TopologySettings)),
        _LAUNCH,
        _table(_stormy(LaunchSettings)),
        _TRANSPORT,
        _table(_transport()),
        _SESSION,
        _table(_row(each.name, each) for each in fields(SessionSettings)),
    ]
    return "\n".join(parts)


def _worker() -> Iterator[Row]:
    for each in SETTINGS.values():
        default = f"{each.default:04o}" if each.metavar == "MODE" else _shown(each.name, each.default)
        yield Row(f"`{each.name}`", _code(each.storm), each.metavar, default, each.help)


def _stormy(settings: type[TopologySettings | LaunchSettings]) -> Iterator[Row]:
    """Yield the settings whose keys are Storm's, but for those that Storm does not have."""
    for each in fields(settings):
        key = each.metadata["key"]
        seconds: Any = None if each.default is MISSING else each.default
        default = seconds * 1000 if key.endswith(".ms") else seconds
        storm = "" if key in _OURS else "the same"
        yield Row(f"`{key}`", storm, _kind(each), _shown(key, default), each.metadata["help"])


def _transport() -> Iterator[Row]:
    common = fields(TransportSettings)
    yield from (_row(key_of(each), each) for each in common)
    names = {each.name for each in common}
    for settings in (GrpcSettings, ZmqSettings):
        yield from (_row(key_of(each), each) for each in fields(settings) if each.name not in names)


def _row(key: str, declared: Field[Any]) -> Row:
    return Row(
        f"`{key}`",
        _code(declared.metadata["storm"]),
        _kind(declared),
        _shown(declared.name, declared.default),
        declared.metadata["help"],
    )


def _table(rows: Iterable[Row]) -> str:
    lines = ["| key | Storm's key | type | default | effect |", "|---|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([*lines, ""])


def _code(key: str) -> str:
    return f"`{key}`" if key else ""


def _kind(declared: Field[Any]) -> str:
    default = declared.default
    if isinstance(default, Enum):
        return " or ".join(f"`{member.value}`" for member in type(default))
    kinds = {bool: "True or False", int: "whole number", float: "number", str: "text", tuple: "a sequence"}
    if declared.name.endswith("_bytes"):
        return "bytes"
    optional = {"int | None": "whole number", "str | None": "text", "Mapping[str, str]": "a map"}
    if default is None:
        return optional.get(str(declared.type)) or str(declared.type).removesuffix(" | None")
    return optional.get(str(declared.type)) or kinds.get(type(default), type(default).__name__)


def _shown(name: str, default: Any) -> str:
    if default is None or default in {"", ()}:
        return ""
    if name.endswith("_bytes") and default % KIB == 0:
        return f"{default // MIB} MiB" if default % MIB == 0 else f"{default // KIB} KiB"
    if isinstance(default, Enum):
        return f"`{default.value}`"
    if isinstance(default, SessionSettings):
        return "all defaults"
    if isinstance(default, bool | str):
        return f"`{default}`"
    return f"{default:,g}" if isinstance(default, float) else f"{default:,}"


if __name__ == "__main__":
    print(page(), end="")
