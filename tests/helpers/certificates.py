"""A certificate authority for tests: certificates with any names, valid or expired, as files of a Secret."""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import uuid
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

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
