"""Workers with certificates and tokens, for tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from helpers.certificates import Issued
from helpers.topology import metric
from tuplewire.identity.credentials import Credentials
from tuplewire.processes.worker_processes import Endpoint, WorkerProcesses


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
    return metric(endpoint, f'tuplewire_denied_total{{reason="{reason}"}}')


def secret_file(file: Path, content: str) -> Path:
    """Write a file that only its owner can read."""
    file.touch(0o600)
    file.write_text(content, encoding="utf-8")
    return file


def token_files(folder: Path, *names: str) -> tuple[Path, dict[str, Credentials]]:
    """Write a worker's token file and one for each program; return it, and the credentials by name."""
    lines = {name: f"{name} {name}-{'0' * 20}" for name in names}
    tokens = secret_file(folder / "tokens", "\n".join(lines.values()))
    return tokens, {
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
