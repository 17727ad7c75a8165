"""Every setting as a page in Markdown, made of the declarations in the code: `make settings` writes it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Any

from tuplewire.identity.credentials import Credentials
from tuplewire.settings.config import KIB, MIB, SessionSettings
from tuplewire.settings.settings import REQUIRED, SIZE, Setting, Settings, settings_of
from tuplewire.spark.options import SinkOptions, SourceOptions
from tuplewire.tracing.tracing_settings import TracingSettings
from tuplewire_service.config.worker_config import WorkerConfig
from tuplewire_service.messaging.factory import DEFAULT_TRANSPORT, TRANSPORT_KEY
from tuplewire_service.messaging.grpc.grpc_transport import GrpcSettings
from tuplewire_service.messaging.zmq.zmq_settings import ZmqSettings
from tuplewire_topology.authoring.topology_settings import TopologySettings
from tuplewire_topology.clusters.launch_settings import LaunchSettings

_HEAD = """# Settings

This page lists every setting, for whoever runs a worker, submits a topology or writes a program. It
is made by `make settings` from the declarations in the code; do not edit it.

A value that does not fit is an error that names the setting, the value and what is allowed. So is
an unknown key that begins as ours do; the error names the nearest known ones. Sizes are in bytes
and times in seconds, unless the key says otherwise. Where a setting has a key of Storm's, you may
use either. Each entry says what is allowed, the default if there is one, and the effect.
"""

_WORKER = """## A worker: `tuplewire worker`

You give `listen_unix` as the flag `--listen-unix`, as the variable `TUPLEWIRE_LISTEN_UNIX`, or as
the key `listen_unix` in a TOML file. `--config` or `TUPLEWIRE_CONFIG` names the file. Flags come
before variables, and variables before the file. `tuplewire worker --print-config` shows what is in
force. In all three a size may have a unit of 1024: 64KiB, 8MiB, 1GiB.
"""

_CREDENTIALS = """## A program that talks to a worker

A program reads these from variables such as `TUPLEWIRE_TLS_CA`, or takes them as fields of
`tuplewire.Credentials`. The commands `status`, `assign` and `drain` have flags for them, too.
`TUPLEWIRE_ADDRESS` is the worker's address, `TUPLEWIRE_TOPOLOGY` the topology's name.
"""

_TRACING = """## Traces of a program

A program reads these from variables such as `TUPLEWIRE_TRACING`. A worker has them among its own.
[Trace messages](../how-to/trace.md) says what they do.
"""

_TOPOLOGY = """## A topology: `topology.*`

You give these with the topology when you submit it, or in a component's own configuration. The
settings of a session and of a transport go into the same configuration. Other keys are your own,
for spouts and bolts to read.
"""

_LAUNCH = """## The processes of a topology: `cluster_of`, `DistributedCluster`

You give these with the topology, too.
"""

_TRANSPORT = f"""## The transport: what `IContext.prepare` gets

`{TRANSPORT_KEY}` (Storm's key; by default `{DEFAULT_TRANSPORT}`, and `local` in a LocalCluster) is
the name of an installed transport, or the class path of an `IContext` or of a factory with
`make_context(conf)`: `package.module:Class` or `package.module.Class`. A transport may have keys of
its own beside those of all.
"""

_SESSION = """## A session: `tuplewire.session.*`

You give these with a topology, or to a transport. `tuplewire.Client` takes them as keywords without
the prefix: `Client(max_block_seconds=5)`.
"""

_SPARK = """## Spark's data source: options of the format `tuplewire`

Case does not matter. {purpose}
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
    name = each.option or each.key
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
    plain = each.kind_at(name).shown(value)
    if isinstance(plain, bool):
        return f"`{str(plain).lower()}`"
    if isinstance(plain, str):
        return f"`{plain}`"
    return f"{plain:,g}" if isinstance(plain, float) else f"{plain:,}"


if __name__ == "__main__":
    print(page(), end="")
