"""Generates the Markdown page of all settings from the declarations in the code; see `make settings`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Any

from tuplewire.identity.credentials import Credentials
from tuplewire.settings.config import KIB, MIB, SessionSettings
from tuplewire.settings.settings import REQUIRED, SIZE, Setting, Settings, settings_of
from tuplewire.spark.options import SinkOptions, SourceOptions
from tuplewire.tracing import TracingSettings
from tuplewire_service.config.worker_config import WorkerConfig
from tuplewire_service.messaging.factory import DEFAULT_TRANSPORT, TRANSPORT_KEY
from tuplewire_service.messaging.grpc.grpc_transport import GrpcSettings
from tuplewire_service.messaging.zmq.zmq_sockets import ZmqSettings
from tuplewire_topology.authoring.topology_settings import TopologySettings
from tuplewire_topology.clusters.launching import LaunchSettings

_HEAD = """# Settings

This page lists every setting of workers, topologies and programs. `make settings` generates it from
the declarations in the code; do not edit it.

Each entry gives the allowed values, the default if there is one, and the effect. Sizes are in bytes
and times in seconds, unless the key specifies another unit. If a setting also has a key of Storm's,
you can use either key. Some keys of Storm's are in several sections: each section has its default.

An invalid value is an error. The error names the setting, the value and the allowed values. An
unknown key with one of Tuplewire's prefixes is also an error, which names the nearest known keys.
"""

_WORKER = """## A worker: `tuplewire worker`

You can set `listen_unix` with the flag `--listen-unix`, with the variable `TUPLEWIRE_LISTEN_UNIX`,
or with the key `listen_unix` in a TOML file. `--config` or `TUPLEWIRE_CONFIG` names the file. Flags
override variables, and variables override the file. `tuplewire worker --print-config` shows the
effective settings. In all three places, a size may have a binary unit: 64KiB, 8MiB, 1GiB.
"""

_CREDENTIALS = """## A program that connects to a worker

A program reads these settings from variables such as `TUPLEWIRE_TLS_CA`, or accepts them as fields
of `tuplewire.Credentials`. The commands also have flags for them. `TUPLEWIRE_ADDRESS` is the
worker's address, `TUPLEWIRE_TOPOLOGY` the topology's name.
"""

_TRACING = """## Traces of a program

A program reads these settings from variables such as `TUPLEWIRE_TRACING`. A worker has the same
settings. [Trace messages](../how-to/trace.md) explains their use.
"""

_TOPOLOGY = """## A topology: `topology.*`

Set these when you submit the topology, or in the configuration of a component. The same
configuration contains the settings of a session and of a transport. All keys with other
prefixes are your own: spouts and bolts can read them.
"""

_LAUNCH = """## The processes of a topology: `cluster_of`, `DistributedCluster`

Set these with the topology as well.
"""

_TRANSPORT = f"""## The transport: arguments of `IContext.prepare`

`{TRANSPORT_KEY}` (Storm's key; by default `{DEFAULT_TRANSPORT}`, and `local` in a LocalCluster) is
the name of an installed transport, or the class path of an `IContext` or of a factory with
`make_context(conf)`: `package.module:Class` or `package.module.Class`. In addition to the common
keys, a transport may have its own.
"""

_SESSION = """## A session: `tuplewire.session.*`

Set these with a topology, or pass them to a transport. `tuplewire.Client` accepts them as keyword
arguments without the prefix: `Client(max_block_seconds=5)`.
"""

_SPARK = """## Spark's data source: options of the format `tuplewire`

Names of options are case-insensitive. {purpose}
"""


def page() -> str:
    """Return the whole page."""
    transport = {
        each.key: each for kind in (GrpcSettings, ZmqSettings) for each in settings_of(kind).values()
    }
    parts = [
        _HEAD,
        _WORKER,
        _of(WorkerConfig),
        _CREDENTIALS,
        _of(Credentials),
        _TRACING,
        _of(TracingSettings),
        _TOPOLOGY,
        _of(TopologySettings),
        _SESSION,
        _of(SessionSettings),
        _LAUNCH,
        _of(LaunchSettings),
        _TRANSPORT,
        _list(transport.values()),
        _SPARK.format(purpose="For reading:"),
        _of(SourceOptions),
        "For writing:\n",
        _of(SinkOptions),
    ]
    return "\n".join(parts)


def _of(settings: type[Settings]) -> str:
    return _list(settings_of(settings).values())


def _list(settings: Iterable[Setting]) -> str:
    return "".join(map(_entry, settings))


def _entry(each: Setting) -> str:
    name = each.key
    facts = [each.kind_at(name).allowed]
    if default := _default(each, name):
        facts.append(f"default {default}")
    if each.storm:
        facts.append("Storm's key" if each.storm == each.key else f"Storm's `{each.storm}`")
    text = f"- **`{name}`** ({'; '.join(facts)}): {each.help}"
    wrapped = textwrap.fill(text, 100, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return f"{wrapped}\n"


def _default(each: Setting, name: str) -> str:
    value: Any = each.default
    if value is REQUIRED or value is None or value in ("", (), {}):
        return ""
    if each.kind is SIZE and value % KIB == 0:
        return f"{value // MIB} MiB" if value % MIB == 0 else f"{value // KIB} KiB"
    plain = each.kind_at(name).to_user_value(value)
    if isinstance(plain, bool):
        return f"`{str(plain).lower()}`"
    if isinstance(plain, str):
        return f"`{plain}`"
    return f"{plain:,g}" if isinstance(plain, float) else f"{plain:,}"


if __name__ == "__main__":
    print(page(), end="")
