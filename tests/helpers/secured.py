"""Workers with certificates and tokens, and the authority of these certificates: valid or expired ones."""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from helpers.topology import metric
from tuplewire.identity.credentials import Credentials
from tuplewire.processes.worker_processes import Endpoint, WorkerProcesses

_DAY = dt.timedelta(days=1)


@dataclass(frozen=True)
class Issued:
    """A certificate, its key and the authority's certificate, in PEM."""

    certificate: bytes
    key: bytes
    ca: bytes

    def write(self, folder: Path) -> Path:
        """Write tls.crt, tls.key and ca.crt in one step, by a link, as Kubernetes does; return the folder."""
        version = folder / f"..{uuid.uuid4()}"
        version.mkdir(parents=True)
        for name, content in (("tls.crt", self.certificate), ("tls.key", self.key), ("ca.crt", self.ca)):
            (version / name).write_bytes(content)
            if not (folder / name).is_symlink():
                (folder / name).symlink_to(Path("..data") / name)
        swap_data(folder, version)
        return folder


def swap_data(folder: Path, version: Path) -> None:
    """Make `..data` of a mounted folder point to another version, in one step."""
    fresh = folder / f"..data.{uuid.uuid4()}"
    fresh.symlink_to(version.name)
    os.replace(fresh, folder / "..data")  # noqa: PTH105 - Path.replace does the same; this is the system call


class Authority:
    """Signs certificates. pem: the certificate of the root, which the peers trust."""

    def __init__(self, signed_by: Authority | None = None) -> None:
        """Create an authority. signed_by: the parent authority; without it, this is a root."""
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"test {uuid.uuid4()}")])
        above = signed_by or self
        certificate = (
            above._builder(self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(above._key, hashes.SHA256())
        )
        own = certificate.public_bytes(serialization.Encoding.PEM)
        self.pem: bytes = own if signed_by is None else signed_by.pem
        self._chain: bytes = b"" if signed_by is None else own + signed_by._chain

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, expires_in: dt.timedelta = _DAY
    ) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 30 * _DAY)
            .not_valid_after(now + expires_in)
        )

    def issue(self, *names: str, expires_in: dt.timedelta = _DAY) -> Issued:
        """Return a certificate with these names: DNS, IP address or URI. expires_in: may be negative."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            self._builder(x509.Name([]), key, expires_in=expires_in)
            .add_extension(x509.SubjectAlternativeName(list(map(_general_name, names))), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        return Issued(
            certificate.public_bytes(serialization.Encoding.PEM) + self._chain,
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
            self.pem,
        )


def _general_name(name: str) -> x509.GeneralName:
    if "://" in name:
        return x509.UniformResourceIdentifier(name)
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def tls_flags(folder: Path) -> list[str]:
    """Return the flags of a worker with its files in a folder."""
    return [f"--tls-certificate={folder}/tls.crt", f"--tls-key={folder}/tls.key", f"--tls-ca={folder}/ca.crt"]


def files_of(issued: Issued, folder: Path, *worker_names: str, token_file: Path | None = None) -> Credentials:
    """Write a certificate to a folder, and return the credentials of a program that uses it."""
    issued.write(folder)
    return Credentials(
        tls_ca=str(folder / "ca.crt"),
        tls_certificate=str(folder / "tls.crt"),
        tls_key=str(folder / "tls.key"),
        tls_worker_names=worker_names,
        token_file=None if token_file is None else str(token_file),
    )


def variables_of(credentials: Credentials) -> dict[str, str]:
    """Return the environment variables for the same credentials."""
    named = {
        "TLS_CA": credentials.tls_ca,
        "TLS_CERTIFICATE": credentials.tls_certificate,
        "TLS_KEY": credentials.tls_key,
        "TLS_WORKER_NAMES": ",".join(credentials.tls_worker_names),
        "TOKEN_FILE": credentials.token_file,
    }
    return {f"TUPLEWIRE_{name}": value for name, value in named.items() if value}


def denied(endpoint: Endpoint, reason: str) -> float:
    """Return the number of denials for a reason."""
    return metric(endpoint, f'tuplewire_denials_total{{reason="{reason}"}}')


def secret_file(file: Path, content: str) -> Path:
    """Write a file that only its owner can read."""
    file.touch(0o600)
    file.write_text(content, encoding="utf-8")
    return file


def token_files(folder: Path, *names: str) -> tuple[Path, dict[str, Credentials]]:
    """Write a worker's token file and one for each program; return it, and the credentials by name."""
    lines = {name: f"{name} {name}-{'0' * 20}" for name in names}
    return secret_file(folder / "tokens", "\n".join(lines.values())), {
        name: Credentials(token_file=str(secret_file(folder / name.replace("/", "-"), line)))
        for name, line in lines.items()
    }


@contextmanager
def guarded(
    folder: Path, rules: str, *names: str, topology: str = "test", more_flags: Sequence[str] = ()
) -> Iterator[tuple[WorkerProcesses, dict[str, Credentials]]]:
    """Run one worker with rules that requires tokens: "NAME-00000000000000000000"; its own is the first."""
    tokens, credentials = token_files(folder, *names)
    flags = [f"--token-file={tokens}", *more_flags]
    if rules:
        (folder / "permissions.toml").write_text(rules, encoding="utf-8")
        flags.append(f"--permissions-file={folder}/permissions.toml")
    with WorkerProcesses(
        1, topology, flags=flags, directory=folder, drain_seconds=0.1, credentials=credentials[names[0]]
    ) as workers:
        yield workers, credentials
