"""Credentials: incomplete ones, destinations of a token, names in certificates, and files of TLS."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from helpers.secured import Authority, Issued, files_of

from tuplewire import Client, Credentials
from tuplewire.connection.channels import read_tls
from tuplewire.errors import ConfigError
from tuplewire.identity.credentials import name_matches, parse_names
from tuplewire_service.security.certificates import read_identity

FILE = "file"


@pytest.mark.parametrize(
    ("variables", "complaint"),
    [
        ({"TLS_CERTIFICATE": "c", "TLS_CA": "a"}, "belong together"),
        ({"TLS_CERTIFICATE": "c", "TLS_KEY": "k"}, "need tls_ca"),
        ({"TLS_WORKER_NAMES": "w"}, "need tls_ca"),
        ({"ALLOW_PLAINTEXT": "maybe"}, "true or false"),
    ],
)
def test_what_does_not_hold_together_is_an_error(variables: dict[str, str], complaint: str) -> None:
    """Incomplete credentials raise an error instead of being ignored."""
    with pytest.raises(ConfigError, match=complaint):
        Credentials.from_environment({f"TUPLEWIRE_{name}": value for name, value in variables.items()})


def test_token_leaves_this_machine_only_over_tls_or_if_told_so() -> None:
    """A token for another machine requires TLS or allow_plaintext; the error explains this."""
    for address in ("unix:///s", "127.0.0.1:1", "[::1]:1", "localhost:1"):
        Credentials(token_file=FILE).check_token_may_go_to(address)
    for address in ("10.0.0.1:1", "worker.example:1", "[fd00::1]:1", "0.0.0.0:1"):
        with pytest.raises(ConfigError, match="in the clear: name a tls_ca"):
            Credentials(token_file=FILE).check_token_may_go_to(address)
        Credentials(token_file=FILE, tls_ca="ca").check_token_may_go_to(address)
        Credentials(token_file=FILE, allow_plaintext=True).check_token_may_go_to(address)


def test_client_raises_before_its_token_leaves() -> None:
    """The token is not sent, and the first use of the client raises the error."""
    client = Client("192.0.2.1:6700", credentials=Credentials(token_file=FILE))

    def send() -> None:
        client.send(1, b"")
        client.flush(60)

    with pytest.raises(ConfigError, match="in the clear"):
        send()
    client.close(0)


@pytest.mark.parametrize(
    ("name", "pattern", "matching"),
    [
        ("Worker.Example", "worker.EXAMPLE", True),
        ("a.workers.example", "*.workers.example", True),
        ("*.workers.example", "*.workers.example", True),
        ("spiffe://prod/worker", "spiffe://prod/worker", True),
        ("FD00:0:0:0:0:0:0:A", "fd00::a", True),
        ("fd00::a", "FD00:0:0:0:0:0:0:A", True),
        ("fd00::a", "fd00::b", False),
        ("other.example", "worker.example", False),
        ("workers.example", "*.workers.example", False),
        ("a.b.workers.example", "*.workers.example", False),
        (".workers.example", "*.workers.example", False),
        ("*.workers.example", "a.workers.example", False),
        ("spiffe://prod/Worker", "spiffe://prod/worker", False),
        ("spiffe://a.workers.example", "*.workers.example", False),
        ("me@a.workers.example", "*.workers.example", False),
        ("", "*.example", False),
    ],
)
def test_names_and_patterns(name: str, pattern: str, *, matching: bool) -> None:
    """DNS names and IP addresses ignore case. `*.` matches one label, never a URI or an e-mail address."""
    assert name_matches(name, pattern) is matching


@pytest.mark.parametrize("wrong", ["*", "a.*.example", "a*.example", "*.", "**.example"])
def test_other_wildcards_are_errors(wrong: str) -> None:
    """A `*` in any other position is an error, not a literal character."""
    with pytest.raises(ConfigError, match="is not a name in a certificate"):
        parse_names(f"a.example,{wrong}")


AUTHORITY = Authority()
GOOD = AUTHORITY.issue("worker.example", "10.0.0.1", "spiffe://test/worker")
JUNK = b"-----BEGIN PRIVATE KEY-----\ngeheimnis\n-----END PRIVATE KEY-----\n"


def _locked(issued: Issued) -> bytes:
    return serialization.load_pem_private_key(issued.key, None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"geheimnis"),
    )


def test_good_files_tell_names_and_expiry(tmp_path: Path) -> None:
    """An identity contains the names and the expiry time of its certificate."""
    identity = read_identity(files_of(GOOD, tmp_path))
    assert identity.names == ("worker.example", "10.0.0.1", "spiffe://test/worker")
    tomorrow = dt.datetime.now(dt.UTC) + dt.timedelta(days=1)
    assert identity.expires_at == pytest.approx(tomorrow.timestamp(), abs=3600)
    assert "PRIVATE" not in repr(identity)


@pytest.mark.parametrize(
    "before", [b"\xef\xbb\xbf", "# Autorität für alle\n".encode(), b"\xff\xfe no text at all\r\n"]
)
def test_bundles_have_marks_and_comments(tmp_path: Path, before: bytes) -> None:
    """Only PEM blocks count, as in OpenSSL; other contents are ignored."""
    identity = read_identity(files_of(replace(GOOD, ca=before + GOOD.ca + before), tmp_path))
    assert identity.names[0] == "worker.example"


@pytest.mark.parametrize(
    ("issued", "named"),
    [
        (replace(GOOD, ca=b"geheimnis"), "ca.crt has no certificates in PEM"),
        (replace(GOOD, certificate=JUNK), "tls.crt and .*tls.key are not a certificate and its key"),
        (replace(GOOD, key=JUNK), "tls.crt and .*tls.key are not a certificate and its key"),
        (replace(GOOD, key=AUTHORITY.issue("worker.example").key), "tls.crt and .*tls.key are no"),
        (replace(GOOD, key=_locked(GOOD)), "without a password"),
    ],
    ids=["ca", "certificate", "key", "key of another", "password"],
)
def test_files_that_are_of_no_use(tmp_path: Path, issued: Issued, named: str) -> None:
    """Programs and workers report the file, and never its contents."""
    credentials = files_of(issued, tmp_path)
    for read in (read_tls, read_identity):
        with pytest.raises(ConfigError, match=named) as told:
            read(credentials)
        assert "geheimnis" not in f"{told.value!r} {told.value.__cause__!r}"


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: AUTHORITY.issue("w", expires_in=-dt.timedelta(days=1)), "expired; it must be valid now"),
        (lambda: replace(Authority().issue("w"), ca=AUTHORITY.pem), "signed by one of .*ca.crt"),
    ],
    ids=["expired", "another CA"],
)
def test_workers_do_not_take_what_others_would_refuse(
    tmp_path: Path, make: Callable[[], Issued], named: str
) -> None:
    """A worker verifies its certificate against its own CA before use."""
    with pytest.raises(ConfigError, match=named):
        read_identity(files_of(make(), tmp_path))
