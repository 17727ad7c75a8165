"""Errors about certificates and keys name the file, and never quote its contents."""

from __future__ import annotations

import datetime as dt
import itertools
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from helpers.certificates import Authority, Issued
from helpers.secured import files_of

from tuplewire.connection.channels import read_tls
from tuplewire.errors import ConfigError
from tuplewire_service.security.certificates import read_identity

AUTHORITY = Authority()
GOOD = AUTHORITY.issue("worker.example", "10.0.0.1", "spiffe://test/worker")
JUNK = b"-----BEGIN PRIVATE KEY-----\ngeheimnis\n-----END PRIVATE KEY-----\n"


def _locked(issued: Issued) -> bytes:
    key = serialization.load_pem_private_key(issued.key, None)
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"geheimnis"),
    )


def test_good_files_tell_names_and_expiry(tmp_path: Path) -> None:
    """An identity contains the names and the expiry time of its certificate."""
    identity = read_identity(files_of(GOOD, tmp_path))
    assert identity.names == ("worker.example", "10.0.0.1", "spiffe://test/worker")
    tomorrow = dt.datetime.now(dt.UTC) + dt.timedelta(days=1)
    assert identity.expires == pytest.approx(tomorrow.timestamp(), abs=3600)
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
        (replace(GOOD, certificate=JUNK), "tls.crt and .*tls.key are no certificate and its key"),
        (replace(GOOD, key=JUNK), "tls.crt and .*tls.key are no certificate and its key"),
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


def test_missing_file_is_named(tmp_path: Path) -> None:
    """The error names the missing file."""
    credentials = files_of(GOOD, tmp_path)
    (tmp_path / "ca.crt").unlink()
    with pytest.raises(ConfigError, match=r"cannot read .*ca\.crt: No such file .*; name a file"):
        read_tls(credentials)


@pytest.mark.slow
def test_files_exchanged_one_by_one_are_no_defect(tmp_path: Path) -> None:
    """During a rotation, reading old and new files together works or raises ConfigError."""
    credentials = files_of(GOOD, tmp_path)
    assert credentials.tls_key is not None
    key, keys = Path(credentials.tls_key), (AUTHORITY.issue("worker.example").key, GOOD.key)
    done = threading.Event()

    def exchange() -> None:
        for fresh in itertools.cycle(keys):
            if done.is_set():
                return
            (tmp_path / "fresh").write_bytes(fresh)
            (tmp_path / "fresh").replace(key)

    exchanging = threading.Thread(target=exchange)
    exchanging.start()
    try:
        told = 0
        for _ in range(500):
            try:
                read_identity(credentials)
            except ConfigError:
                told += 1
    finally:
        done.set()
        exchanging.join()
    assert told
