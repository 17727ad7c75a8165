"""Credentials of a program, and the comparison of names in certificates.

Clients, Spark and workers read Credentials from settings; clients and workers compare certificate names.
Owns no state: Credentials contain only file names. Thread-safe. Design: docs/design/identity.md.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from tuplewire.errors import ConfigError
from tuplewire.settings.addresses import is_loopback, split_host_port
from tuplewire.settings.settings import BOOLEAN, FILE, Kind, Settings, setting

_LABEL = re.compile(r"[A-Za-z0-9_-]+")


def parse_names(text: str) -> tuple[str, ...]:
    """Parse a comma-separated list of names: DNS names, IP addresses, URIs such as spiffe://prod/worker.

    A DNS name may start with `*.`, which stands for one label. Raises ConfigError for any other `*`.
    """
    names = tuple(name for part in text.split(",") if (name := part.strip()))
    for name in names:
        if "*" in name.removeprefix("*.") or name == "*.":
            raise ConfigError(
                f"{name!r} is not a name in a certificate; write worker.example, *.workers.example, 10.0.0.1 "
                "or spiffe://prod/worker, with commas between them"
            )
    return names


def any_name_matches(names: Iterable[str], patterns: Collection[str]) -> bool:
    """Return True if one of the names in a certificate matches one of the patterns."""
    return any(name_matches(name, pattern) for name in names for pattern in patterns)


def name_matches(name: str, pattern: str) -> bool:
    """Return True if a name in a certificate equals the pattern, or matches its `*.`."""
    name, pattern = canonical_name(name), canonical_name(pattern)
    label, _, rest = name.partition(".")
    return name == pattern or (f"*.{rest}" == pattern and _LABEL.fullmatch(label) is not None)


def canonical_name(name: str) -> str:
    """Return a name as it is compared: IPv6 addresses have several forms; only URIs are case-sensitive."""
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return name if "/" in name or ":" in name else name.lower()


NAMES = Kind(
    "NAMES",
    "a list of names in certificates",
    (list, tuple),
    lambda names: parse_names(",".join(names)),
    parse_names,
    list,
    ",".join,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials(Settings):
    """The names of credential files. They contain no secrets, so they are safe to print and pickle.

    A file is read again after it changes. Unix sockets never use TLS: their owner and mode control access.
    """

    tls_ca: str | None = setting(
        FILE, None, "CA certificates that workers' certificates are checked against; enables TLS on TCP"
    )
    tls_certificate: str | None = setting(FILE, None, "certificate to present")
    tls_key: str | None = setting(FILE, None, "private key of tls_certificate")
    tls_worker_names: tuple[str, ...] = setting(
        NAMES, (), "names in workers' certificates, comma-separated (default: the host of the address)"
    )
    token_file: str | None = setting(FILE, None, "file with the token to present (the first one)")
    allow_plaintext: bool = setting(BOOLEAN, False, "also send the token to other machines without TLS")

    def _check(self) -> None:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ConfigError("tls_certificate and tls_key belong together: give both, or none")
        if self.tls_ca is None and (self.tls_certificate is not None or self.tls_worker_names):
            raise ConfigError("tls_certificate, tls_key and tls_worker_names need tls_ca: name its file, too")

    def uses_tls(self, address: str) -> bool:
        """Return True if a connection to an address (host:port or unix:///path) uses TLS."""
        return self.tls_ca is not None and not address.startswith("unix:")

    def check_token_may_go_to(self, address: str) -> None:
        """Raise ConfigError if a token would be sent over a network without TLS."""
        if self.allow_plaintext or address.startswith("unix:") or self.uses_tls(address):
            return
        # A token may be sent without TLS if it does not leave this machine.
        if not is_loopback(split_host_port(address)[0]):
            raise ConfigError(
                f"the token of {self.token_file} would go to {address} in the clear: name a tls_ca "
                "(TUPLEWIRE_TLS_CA), use a Unix socket, or set allow_plaintext (TUPLEWIRE_ALLOW_PLAINTEXT)"
            )

    @property
    def tls_files(self) -> tuple[Path, ...]:
        """The TLS files that are set."""
        named = (self.tls_ca, self.tls_certificate, self.tls_key)
        return tuple(Path(name) for name in named if name is not None)
