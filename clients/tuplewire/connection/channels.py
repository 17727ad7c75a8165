"""Channels for credentials: plain text, or TLS to a worker that has an allowed certificate.

gRPC for Python compares a certificate with one DNS name or IP address. Workers are reached at addresses that
are not in their certificates (a pod's IP), and may have one of several names or a URI. With a list of names,
a handshake with Python's ssl checks the signature and the names first; the channel then trusts only that
certificate. Used by the control client, the gRPC channels and the worker's transports. Owns the TLS files and
tokens of one set of credentials. Thread-safe. Design: docs/design/identity.md.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from tuplewire.connection.loop import run_in_thread
from tuplewire.errors import ConfigError, UnreachableError
from tuplewire.identity.credentials import Credentials, any_name_matches, canonical_name
from tuplewire.identity.files import AUTHORIZATION_KEY, UNREADABLE, Token, WatchedFiles, read_tokens
from tuplewire.settings.addresses import grpc_target, split_host_port

_HANDSHAKE_SECONDS = 5.0
TRUST_HINT = (
    "; check that tls_ca (TUPLEWIRE_TLS_CA) signed the worker's certificate, and that it has a name of "
    "tls_worker_names (TUPLEWIRE_TLS_WORKER_NAMES; default: the host of the address)"
)
"""The hint of an error if this side refuses a worker's certificate."""
NO_WORKER_HINT = "; start a worker there, or correct the address"
_NO_TLS_HINT = "; the port has no TLS: unset tls_ca (TUPLEWIRE_TLS_CA), or start its worker with TLS"
_PEM = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----.*?-----END \1-----", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """The contents of the files of Credentials; never printed. context: for the handshake with ssl."""

    ca: bytes = field(repr=False)
    certificate: bytes | None = field(repr=False)
    key: bytes | None = field(repr=False)
    context: ssl.SSLContext = field(repr=False)


class ChannelFactory:
    """Opens channels with the given credentials, or the environment's (None). Thread-safe.

    A file that cannot be used raises ConfigError at the first use. Later, the previous contents stay valid.
    """

    def __init__(
        self,
        credentials: Credentials | None,
        *,
        tls: Callable[[], TlsMaterial] | None = None,
        worker_names: Callable[[], Sequence[str]] | None = None,
    ) -> None:
        """Read no file yet. tls, worker_names: return the current values; default: from the credentials."""
        if not isinstance(credentials, Credentials | None):  # the text has no value, which may be a secret
            raise ConfigError(f"credentials are a tuplewire.Credentials, not a {type(credentials).__name__}")
        self.credentials = Credentials.from_environment() if credentials is None else credentials
        self._worker_names = worker_names or (lambda: self.credentials.tls_worker_names)
        self._tls = tls or WatchedFiles(self.credentials.tls_files, lambda: read_tls(self.credentials)).get
        self._tokens: WatchedFiles[tuple[Token, ...]] | None = None
        if self.credentials.token_file is not None:
            path = Path(self.credentials.token_file)
            self._tokens = WatchedFiles([path], lambda: read_tokens(path))

    def metadata(self, address: str) -> tuple[tuple[str, str], ...]:
        """Return the token as metadata of a call; raise ConfigError if it must not be sent to the address."""
        if self._tokens is None:
            return ()
        self.credentials.check_token_may_go_to(address)
        return ((AUTHORIZATION_KEY, self._tokens.get()[0].bearer_value),)

    def handshake_hint(self, address: str) -> str:
        """Return the hint of an error if the peer closes a new connection immediately."""
        hint = "does the worker require TLS (TUPLEWIRE_TLS_CA)"
        if self.credentials.uses_tls(address):
            shown = self.credentials.tls_certificate or "no certificate: TUPLEWIRE_TLS_CERTIFICATE is not set"
            hint = f"does the worker use TLS, does it accept this certificate ({shown}), and is it valid"
        return "" if address.startswith("unix:") else f"; {hint}? Has it reached max_connections?"

    def tls_state(self) -> object:
        """Return an object that changes with the TLS files: then a new channel is needed."""
        return self._tls() if self.credentials.tls_ca is not None else None

    async def open_channel(self, address: str, options: Sequence[tuple[str, Any]]) -> grpc.aio.Channel:
        """Return a channel to an address; raise UnreachableError if a check of its names by TLS fails."""
        if not self.credentials.uses_tls(address):
            return grpc.aio.insecure_channel(grpc_target(address), options=options)
        tls_args = await run_in_thread(partial(self._tls_channel_args, address, options, _HANDSHAKE_SECONDS))
        return grpc.aio.secure_channel(grpc_target(address), *tls_args)

    def open_blocking_channel(
        self, address: str, options: Sequence[tuple[str, Any]], timeout: float = _HANDSHAKE_SECONDS
    ) -> grpc.Channel:
        """Do the same as open_channel(), blocking. timeout: in seconds; at most 5 are used."""
        if not self.credentials.uses_tls(address):
            return grpc.insecure_channel(grpc_target(address), options=options)
        return grpc.secure_channel(grpc_target(address), *self._tls_channel_args(address, options, timeout))

    def _tls_channel_args(
        self, address: str, options: Sequence[tuple[str, Any]], timeout: float
    ) -> tuple[grpc.ChannelCredentials, list[tuple[str, Any]]]:
        """Return a channel's credentials and options. With a list of names, this needs a handshake."""
        tls, names = self._tls(), self._worker_names()
        # Without a list of names, gRPC compares the certificate with the host of the address.
        if not names:
            return grpc.ssl_channel_credentials(tls.ca, tls.key, tls.certificate), [*options]
        decoded, der = _fetch_certificate(address, tls.context, timeout)
        cert_names = certificate_names(decoded)
        if not any_name_matches(cert_names, names):
            raise UnreachableError(
                f"{address} is not a worker of this cluster: its certificate has the names "
                f"{', '.join(cert_names) or '(none)'}, and tls_worker_names are "
                f"{', '.join(names)}; if it is one, add a name to tls_worker_names"
            )
        comparable = [
            canonical_name(name) for kind, name in decoded["subjectAltName"] if kind in {"DNS", "IP Address"}
        ]
        if not comparable:
            raise UnreachableError(
                f"{address}: gRPC for Python cannot use a certificate that has only URIs for names "
                f"({', '.join(cert_names)}); issue it with a DNS name, too"
            )
        # Trust only this certificate, and let gRPC compare a name that is in it: a server with another
        # certificate of the same CA is refused.
        pem = ssl.DER_cert_to_PEM_cert(der).encode()
        credentials = grpc.ssl_channel_credentials(pem, tls.key, tls.certificate)
        # A wildcard matches any label, and gRPC compares a complete host name.
        name = comparable[0].replace("*", "worker")
        return credentials, [*options, ("grpc.ssl_target_name_override", name)]


def read_tls(credentials: Credentials) -> TlsMaterial:
    """Read the TLS files; raise ConfigError with the file's name if one is missing or two do not match."""
    ca = _read_pem(credentials.tls_ca)
    assert ca is not None  # noqa: S101 - callers check that TLS is configured
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # _tls_channel_args() compares the names with a list
    context.set_alpn_protocols(["h2"])
    try:
        context.load_verify_locations(cadata=ca.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(f"{credentials.tls_ca} has no certificates in PEM: {error}") from error
    certificate, key = _read_pem(credentials.tls_certificate), _read_pem(credentials.tls_key)
    if credentials.tls_certificate is not None:
        load_key_pair(context, credentials)
    return TlsMaterial(ca, certificate, key, context)


def load_key_pair(context: ssl.SSLContext, credentials: Credentials) -> None:
    """Load the certificate and its key. Raises ConfigError with both names if the pair cannot be used."""
    assert credentials.tls_certificate is not None  # noqa: S101 - the caller has checked it
    try:
        # With an empty password, an encrypted key is an error instead of a prompt on the terminal.
        context.load_cert_chain(credentials.tls_certificate, credentials.tls_key, password="")
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(
            f"{credentials.tls_certificate} and {credentials.tls_key} are not a certificate and its key "
            f"(PEM, without a password): {error}"
        ) from error


def _read_pem(name: str | None) -> bytes | None:
    if name is None:
        return None
    try:
        content = Path(name).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {name}: {error.strerror}; {UNREADABLE}") from error
    # Keep the PEM blocks only: bundles contain comments in any encoding, and byte order marks.
    return b"\n".join(each[0] for each in _PEM.finditer(content)) + b"\n"


def certificate_names(certificate: dict[str, Any]) -> list[str]:
    """Return the names in a certificate, as ssl decodes it: DNS names, IP addresses, URIs."""
    names = certificate.get("subjectAltName", ())
    # ssl writes IPv6 addresses like FD00:0:0:0:0:0:0:A.
    return [canonical_name(name) if kind == "IP Address" else name for kind, name in names]


def _fetch_certificate(address: str, context: ssl.SSLContext, timeout: float) -> tuple[dict[str, Any], bytes]:
    """Return the certificate that a worker shows, as decoded by ssl, and in DER."""
    host, port = split_host_port(address)
    try:
        with (
            socket.create_connection((host, port), min(timeout, _HANDSHAKE_SECONDS)) as plain,
            context.wrap_socket(plain, server_hostname=host) as secured,
        ):
            return secured.getpeercert() or {}, secured.getpeercert(binary_form=True) or b""
    except (OSError, ValueError) as error:  # ValueError: the host is not a valid name
        hint = NO_WORKER_HINT if isinstance(error, ConnectionRefusedError) else ""
        hint = TRUST_HINT if isinstance(error, ssl.SSLCertVerificationError) else hint
        hint = _NO_TLS_HINT if "WRONG_VERSION" in str(error) else hint
        raise UnreachableError(f"{address}: no TLS connection: {error}{hint}") from error
