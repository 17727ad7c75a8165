"""Security settings of a worker: required combinations and errors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tuplewire.errors import ConfigError
from tuplewire_service.config.config_sources import load, to_toml
from tuplewire_service.config.worker_config import WorkerConfig
from tuplewire_service.security.permissions import read_rules

TLS = {"tls_ca": "ca.crt", "tls_certificate": "tls.crt", "tls_key": "tls.key"}


@pytest.mark.parametrize("listen", ["0.0.0.0:6700", "[::]:6700", "10.0.0.1:6700", "worker.example:6700"])
def test_plaintext_for_other_machines_takes_a_flag(listen: str) -> None:
    """Without TLS, a public listen address is an error that names the fix."""
    with pytest.raises(
        ConfigError, match=r"listen is .* there is no TLS: give tls_certificate.*allow_plaintext"
    ):
        WorkerConfig(listen=listen)
    assert WorkerConfig(listen=listen, allow_plaintext=True)
    assert WorkerConfig(listen=listen, tls_ca="ca", tls_certificate="crt", tls_key="key")


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "127.9.9.9:1", "[::1]:0", "localhost:0"])
def test_loopback_takes_none(listen: str) -> None:
    """Loopback addresses do not require TLS."""
    assert WorkerConfig(listen=listen)


def test_peers_of_another_transport_count_too() -> None:
    """A public ZeroMQ address requires the flag, too."""
    with pytest.raises(ConfigError, match=r"listen_peers is 10\.0\.0\.1:1"):
        WorkerConfig(transport="zmq", listen_peers="10.0.0.1:1")
    assert WorkerConfig(transport="zmq", listen_peers="10.0.0.1:1", allow_plaintext=True)


@pytest.mark.parametrize("shut", [TLS, {"token_file": "token"}, {"permissions_file": "rules"}])
def test_zmq_is_no_way_around(shut: dict[str, str]) -> None:
    """ZeroMQ supports none of these settings, so the combination is an error."""
    settings: dict[str, object] = {"transport": "zmq", "allow_plaintext": True, **shut}
    with pytest.raises(ConfigError, match="the transport zmq between workers does not support TLS"):
        WorkerConfig(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"tls_certificate": "tls.crt", "tls_ca": "ca.crt"}, "belong together"),
        ({"tls_certificate": "tls.crt", "tls_key": "tls.key"}, "need tls_ca"),
        ({"tls_ca": "ca.crt"}, "tls_ca alone"),
        ({"tls_worker_names": ("w",)}, "need tls_ca"),
        ({"tls_client_names": ("w",)}, "tls_client_names need"),
    ],
)
def test_half_of_tls_is_an_error(settings: dict[str, str], complaint: str) -> None:
    """A worker with incomplete TLS settings does not start in plaintext."""
    with pytest.raises(ConfigError, match=complaint):
        WorkerConfig(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "value"), [("allow_plaintext = true", True), ("allow_plaintext = false", False)]
)
def test_file_has_truths(tmp_path: Path, text: str, *, value: bool) -> None:
    """TOML's `true` and `false` are accepted."""
    file = tmp_path / "worker.toml"
    file.write_text(text, encoding="utf-8")
    assert load({}, {}, file).config.allow_plaintext is value


@pytest.mark.parametrize("text", ["allow_plaintext = 1", 'allow_plaintext = "true"', "topology = true"])
def test_file_has_nothing_else_for_a_truth(tmp_path: Path, text: str) -> None:
    """Other types are refused for a boolean, and a boolean is refused for a string."""
    file = tmp_path / "worker.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"must be (true or false|a text that is not empty), not"):
        load({}, {}, file)


def test_examples_of_the_page_are_right(tmp_path: Path) -> None:
    """The settings and rules in the guide are valid without changes."""
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "secure.md").read_text(encoding="utf-8")
    settings, rules = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    worker, permissions = tmp_path / "worker.toml", tmp_path / "permissions.toml"
    worker.write_text(settings, encoding="utf-8")
    permissions.write_text(rules, encoding="utf-8")
    assert load({}, {}, worker).config.tls_client_names == ("*.jobs.example", "spiffe://prod/etl")
    granted = read_rules(permissions).of(["etl.jobs.example"], None, "flights")
    assert 99 in granted.send
    assert 200 in granted.receive


def test_sources_agree(tmp_path: Path) -> None:
    """Names and booleans are the same from a flag, the environment and a file, also after printing."""
    file = tmp_path / "worker.toml"
    file.write_text('tls_ca = "a"\ntls_certificate = "c"\ntls_key = "k"\n', encoding="utf-8")
    environment = {"TUPLEWIRE_TLS_WORKER_NAMES": "a.example,*.b.example"}
    loaded = load({"allow_plaintext": "true"}, environment, file)
    assert loaded.config.tls_worker_names == ("a.example", "*.b.example")
    printed = to_toml(loaded.config, loaded.origins)
    assert 'tls_worker_names = "a.example,*.b.example"  # environment' in printed
    assert "allow_plaintext = true  # flag" in printed
    again = tmp_path / "again.toml"
    again.write_text(printed, encoding="utf-8")
    assert load({}, {}, again).config == loaded.config
