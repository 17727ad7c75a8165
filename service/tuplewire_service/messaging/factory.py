"""TransportFactory: creates a prepared IContext for the setting `storm.messaging.transport`.

Used by process/ and config/. Owns no state. Thread-safe. Source: Storm's
`TransportFactory.makeContext`. Design: docs/design/sessions.md (transports).
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tuplewire.errors import ConfigError, TuplewireError
from tuplewire.settings.settings import KEY_PREFIX, unknown_error
from tuplewire.settings.storm_keys import refuse_storm_transport
from tuplewire_service.messaging.base import IContext

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

TRANSPORT_KEY = "storm.messaging.transport"
DEFAULT_TRANSPORT = "grpc"
ENTRY_POINT_GROUP = "tuplewire.transports"
_PREFIXES = tuple(f"{KEY_PREFIX}{part}." for part in ("transport", "session"))
"""Prefixes of settings that every transport accepts."""


class TransportFactory:
    """Creates contexts; a transport is imported only when it is requested."""

    @staticmethod
    def names() -> list[str]:
        """Return the names of the installed transports."""
        return sorted({point.name for point in _installed()})

    @staticmethod
    def make_context(conf: Mapping[str, Any]) -> IContext:
        """Return the prepared context that the configuration names.

        `storm.messaging.transport` is the name of an installed entry point, or `package.module:Class` or
        `package.module.Class`. The class is an IContext, or has a `make_context(conf)` that returns a
        prepared one. Raises ConfigError for an unknown name, and for a key under `tuplewire.` of no installed
        transport. The transport checks its own keys.
        """
        others = [key for key in conf if str(key).startswith(KEY_PREFIX) and not key.startswith(_PREFIXES)]
        if others:  # listing the installed transports is slow
            prefixes = (*_PREFIXES, *(f"{KEY_PREFIX}{name}." for name in TransportFactory.names()))
            for key in others:
                if not key.startswith(prefixes):
                    raise unknown_error(f"setting {key!r}", key, [f"{prefix}*" for prefix in prefixes])
        name = conf.get(TRANSPORT_KEY)
        name = DEFAULT_TRANSPORT if name is None else name
        if not isinstance(name, str):
            raise ConfigError(f"{TRANSPORT_KEY} must be the name of a transport, not {name!r}")
        plugin_class = _load_class(name)
        try:
            context = plugin_class()
            if isinstance(context, IContext):
                context.prepare(conf)
            elif callable(make_context := getattr(context, "make_context", None)):
                context = make_context(conf)
        except TuplewireError:
            # It already names the setting. Any other exception is a defect of a plug-in.
            raise
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            raise ConfigError(
                f"the transport {name!r} of {TRANSPORT_KEY} cannot be made: {problem}"
            ) from error
        if not isinstance(context, IContext):
            raise ConfigError(
                f"{TRANSPORT_KEY}={name!r} is neither an IContext "
                "nor has a make_context(conf) that returns one"
            )
        return context


def _installed() -> Iterable[EntryPoint]:
    from importlib.metadata import entry_points  # slow, and not needed to name a transport

    return entry_points(group=ENTRY_POINT_GROUP)


def _load_class(name: str) -> Any:
    # Configurations of Storm name a Java class here, which Python cannot import.
    refuse_storm_transport(name)
    load = next((point.load for point in _installed() if point.name == name), None)
    # A name without a dot cannot be a class, so the list of transports helps more than an import error.
    if load is None and ":" not in name and "." not in name:
        raise ConfigError(
            f"unknown transport {name!r} in {TRANSPORT_KEY}; installed are: "
            f"{', '.join(TransportFactory.names())}; or name a class as package.module:Class"
        )
    try:
        return pkgutil.resolve_name(name) if load is None else load()
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"cannot load the transport {name!r} of {TRANSPORT_KEY}: {error}") from error
