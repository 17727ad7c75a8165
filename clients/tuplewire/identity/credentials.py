"""What a program shows of itself, whom it takes for a worker, and the names in certificates."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tuplewire.errors import ConfigError
from tuplewire.settings.addresses import is_loopback, split_host_port
from tuplewire.settings.settings import FILE, FLAG, Kind, Settings, setting

_LABEL = re.compile(r"[A-Za-z0-9_-]+")


def parse_names(text: str) -> tuple[str, ...]:
    """Read a list of names, comma-separated: DNS names, IP addresses, URIs such as spiffe://prod/worker.

    A DNS name may begin with `*.`, which stands for one label. Raises ConfigError for any other `*`.
    """
    names = tuple(name for part in text.split(",") if (name := part.strip()))
    for name in names:
        if "*" in name.removeprefix("*.") or name == "*.":
            raise ConfigError(
                f"{name!r} is no name in a certificate; write worker.example, *.workers.example, 10.0.0.1 or "
                "spiffe://prod/worker, with commas between them"
            )
    return names


def allowed(names: Iterable[str], patterns: Iterable[str]) -> bool:
    """Whether one of the names in a certificate is on a list."""
    patterns = tuple(patterns)
    return any(matches(name, pattern) for name in names for pattern in patterns)


def matches(name: str, pattern: str) -> bool:
    """Whether a name in a certificate is the one of a list, or covered by its `*.`."""
    if "/" in name or ":" in name:  # the case of a URI matters
        return name == pattern
    name, pattern = name.lower(), pattern.lower()
    if name == pattern:
        return True
    label, dot, rest = name.partition(".")
    return bool(dot) and f"*.{rest}" == pattern and _LABEL.fullmatch(label) is not None


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
    """Names of files, not what is in them: safe to print and to pickle. A file is read again once it changes.

    A Unix socket is never TLS: who may open it is decided by its owner and mode.
    """

    tls_ca: str | None = setting(
        FILE, None, "certificates of those who sign workers' certificates; with it, TCP is TLS"
    )
    tls_certificate: str | None = setting(FILE, None, "certificate to show")
    tls_key: str | None = setting(FILE, None, "its private key")
    tls_worker_names: tuple[str, ...] = setting(
        NAMES, (), "names in the certificates of workers, with commas (default: the host that is dialled)"
    )
    token_file: str | None = setting(FILE, None, "file whose first token to show")
    allow_plaintext: bool = setting(FLAG, False, "show the token to another machine without TLS, too")

    def _check(self) -> None:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ConfigError("tls_certificate and tls_key belong together: give both, or none")
        if self.tls_ca is None and (self.tls_certificate is not None or self.tls_worker_names):
            raise ConfigError("tls_certificate, tls_key and tls_worker_names need tls_ca: name its file, too")

    def secures(self, address: str) -> bool:
        """Whether a connection to an address (host:port or unix:///path) is TLS."""
        return self.tls_ca is not None and not address.startswith("unix:")

    def check_token_may_go_to(self, address: str) -> None:
        """Raise ConfigError where a token would cross a network for everybody to read."""
        if self.allow_plaintext or address.startswith("unix:") or self.secures(address):
            return
        if not is_loopback(split_host_port(address)[0]):
            raise ConfigError(
                f"the token of {self.token_file} would go to {address} in the clear: name a tls_ca "
                "(TUPLEWIRE_TLS_CA), use a Unix socket, or set allow_plaintext (TUPLEWIRE_ALLOW_PLAINTEXT)"
            )

    @property
    def files(self) -> tuple[Path, ...]:
        """The files of TLS, as far as they are named."""
        named = (self.tls_ca, self.tls_certificate, self.tls_key)
        return tuple(Path(name) for name in named if name is not None)
