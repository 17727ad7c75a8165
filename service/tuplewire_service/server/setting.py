"""One setting: its names everywhere, its type, its help; and how each type is read."""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field
from typing import Any

from tuplewire.addresses import bracketed, join_host_port, split_host_port
from tuplewire.config import ENVIRONMENT_PREFIX
from tuplewire.errors import ConfigError
from tuplewire.names import parse_names

Raw = str | int | float | bool
"""What a source holds: always a str in flags and the environment, maybe a number or a truth in a file."""

MAX_SOCKET_PATH_BYTES = 107
"""What Linux takes as a Unix socket's path: `sun_path` without its final zero byte."""

_UNITS = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30}
_SIZE = re.compile(r"([0-9][0-9_]*)\s*(?:([kmg])(?:i|ib)?|(b?))", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting as the sources know it; made from one field of a configuration class.

    name: the field, and the key in the TOML file. storm: the key that Storm has for it, accepted in the file.
    """

    name: str
    default: Any
    read: Callable[[Raw], Any]
    metavar: str
    help: str
    storm: str

    @property
    def flag(self) -> str:
        """The command line's name."""
        return "--" + self.name.replace("_", "-")

    @property
    def is_flag(self) -> bool:
        """Whether it is true or false."""
        return isinstance(self.default, bool)

    @property
    def variable(self) -> str:
        """The environment's name."""
        return ENVIRONMENT_PREFIX + self.name.upper()

    @classmethod
    def of(cls, declared: Field[Any]) -> Setting:
        """Read the declaration of a field."""
        default = None if declared.default is MISSING else declared.default
        return cls(declared.name, default, **declared.metadata)


def setting(default: Any, read: Callable[[Raw], Any], metavar: str, help: str, *, storm: str = "") -> Any:  # noqa: A002
    """Declare a field of a configuration class; everything else about the setting follows from it."""
    return field(default=default, metadata={"read": read, "metavar": metavar, "help": help, "storm": storm})


def text(value: Raw) -> str:
    """Read a word that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{value!r} is not a text")
    return value.strip()


def choice(*known: str) -> Callable[[Raw], str]:
    """Return a reader of one word out of the known ones."""

    def read(value: Raw) -> str:
        word = str(value).lower()
        if word not in known:
            raise ConfigError(f"{value!r} is not one of: {', '.join(known)}")
        return word

    return read


def flag(value: Raw) -> bool:
    """Read true or false; a flag of the command line without a value is true."""
    if isinstance(value, str) and value.strip().lower() in {"true", "false", "1", "0"}:
        return value.strip().lower() in {"true", "1"}
    if not isinstance(value, bool):
        raise ConfigError(f"{value!r} is neither true nor false")
    return value


def names(value: Raw) -> tuple[str, ...]:
    """Read names in certificates, comma-separated."""
    return parse_names(text(value))


def count(value: Raw) -> int:
    """Read a whole number of 1 or more."""
    try:
        number = int(value) if not isinstance(value, float) else -1
    except ValueError:
        number = -1
    if number < 1:
        raise ConfigError(f"{value!r} is not a whole number of 1 or more")
    return number


def size_bytes(value: Raw) -> int:
    """Read a size: bytes, or with a unit of 1024 (64k, 8MiB, 1Gi)."""
    match = _SIZE.fullmatch(str(value).strip())
    if not match:
        raise ConfigError(f"{value!r} is not a size; write bytes, or 64KiB, 8MiB, 1GiB")
    return int(match[1]) * _UNITS[(match[2] or match[3] or "").lower()]


def seconds(value: Raw) -> float:
    """Read a time in seconds, more than 0."""
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise ConfigError(f"{value!r} is not a time in seconds; write a number of more than 0, such as 2.5")
    return number


def host_port(value: Raw) -> str:
    """Read an address to listen on; port 0 is any free one."""
    return join_host_port(*split_host_port(str(value).strip()))


def _is_ipv6(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return False


def advertised(value: Raw) -> str:
    """Read an address that others use: host:port, or only a host (then the port is the bound one).

    A host that is an IPv6 address may come without brackets, as Kubernetes has a pod's.
    """
    address = text(value)
    if _is_ipv6(address):
        return bracketed(address)
    if ":" not in address or (address.startswith("[") and address.endswith("]")):
        return address
    host, port = split_host_port(address)
    if port == 0:
        raise ConfigError(f"{value!r} has port 0; leave the port out to advertise the bound one")
    return join_host_port(host, port)


def socket_path(value: Raw) -> str:
    """Read the path of a Unix socket, with or without `unix://` before it."""
    path = text(value).removeprefix("unix://")
    if not path.startswith("/"):
        raise ConfigError(f"{value!r} is not an absolute path, such as /run/tuplewire/worker.sock")
    if len(path.encode()) > MAX_SOCKET_PATH_BYTES:
        raise ConfigError(
            f"{value!r} is longer than the {MAX_SOCKET_PATH_BYTES} bytes that a Unix socket's path may have"
        )
    return path


def mode(value: Raw) -> int:
    """Read a file mode: octal digits, or in a TOML file also a number (0o660)."""
    try:
        number = int(value, 8) if isinstance(value, str) else int(value)
    except ValueError:
        number = -1
    if isinstance(value, float) or not 0 < number <= 0o777:
        raise ConfigError(f"{value!r} is not a file mode; write octal digits, such as 0660")
    return number
