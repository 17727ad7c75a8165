"""A program's credentials: fields, environment variables, and permitted destinations of a token."""

from __future__ import annotations

import pickle

import pytest

from tuplewire import Client, Credentials
from tuplewire.errors import ConfigError

FILE = "file"


def test_environment_is_read() -> None:
    """The variables are named after the fields; an empty variable counts as unset."""
    assert Credentials.from_environment(
        {
            "TUPLEWIRE_TLS_CA": "ca",
            "TUPLEWIRE_TLS_CERTIFICATE": "",
            "TUPLEWIRE_TLS_WORKER_NAMES": "a.example, b.example",
            "TUPLEWIRE_ALLOW_PLAINTEXT": "true",
        },
        {"token_file": FILE},
    ) == Credentials(
        tls_ca="ca", tls_worker_names=("a.example", "b.example"), allow_plaintext=True, token_file=FILE
    )


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


@pytest.mark.parametrize("address", ["unix:///s", "127.0.0.1:1", "[::1]:1", "localhost:1"])
def test_token_goes_within_this_machine(address: str) -> None:
    """A token may be sent to Unix sockets and loopback addresses, which other machines cannot read."""
    Credentials(token_file=FILE).check_token_may_go_to(address)


@pytest.mark.parametrize("address", ["10.0.0.1:1", "worker.example:1", "[fd00::1]:1", "0.0.0.0:1"])
def test_token_leaves_this_machine_only_over_tls_or_if_told_so(address: str) -> None:
    """A token for another machine requires TLS or allow_plaintext; the error explains this."""
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


def test_only_names_of_files_travel() -> None:
    """Credentials are pickled with the names of their files; the files are not read."""
    credentials = Credentials(tls_ca="/ca.crt", token_file=FILE)
    assert pickle.loads(pickle.dumps(credentials)) == credentials  # noqa: S301
