"""The flags of commands that talk to a worker: what they show of themselves, over TUPLEWIRE_* variables."""

from __future__ import annotations

import argparse
from typing import Any

from tuplewire.credentials import Credentials
from tuplewire_service.server.setting import names

_FILES = {
    "tls_ca": "certificates of those who sign workers' certificates; with it, TCP is TLS",
    "tls_certificate": "certificate to show",
    "tls_key": "its private key",
    "token_file": "file whose first token to show",
}


def add_credential_flags(parser: argparse.ArgumentParser) -> None:
    """Add them to a command."""
    for field, effect in _FILES.items():
        _add(parser, field, effect, metavar="FILE")
    _add(
        parser,
        "tls_worker_names",
        "names in the certificates of workers, with commas (default: the host in ADDRESS)",
        metavar="NAMES",
        type=names,
    )
    _add(
        parser,
        "allow_plaintext",
        "show the token to another machine without TLS, too",
        action="store_const",
        const=True,
    )


def _add(parser: argparse.ArgumentParser, field: str, effect: str, **how: Any) -> None:
    parser.add_argument(
        "--" + field.replace("_", "-"), help=f"{effect} (environment: TUPLEWIRE_{field.upper()})", **how
    )


def credentials_of(arguments: argparse.Namespace) -> Credentials:
    """Return what the flags say, and the environment where they say nothing; ConfigError."""
    given = {name: getattr(arguments, name) for name in (*_FILES, "tls_worker_names", "allow_plaintext")}
    return Credentials.from_environment(flags={name: value for name, value in given.items() if value})
