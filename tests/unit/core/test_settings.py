"""Every declared setting: invalid values, and equal objects from all sources; keys of transports."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from numpy import int64

from tuplewire.errors import ConfigError
from tuplewire.identity.credentials import Credentials
from tuplewire.settings.config import SessionSettings
from tuplewire.settings.settings import ANY_TEXT, KEY_PREFIX, Setting, Settings, keys_of, settings_of
from tuplewire.spark.options import SinkOptions, SourceOptions, sink_options, source_options
from tuplewire_service.config.config_sources import load, to_toml
from tuplewire_service.config.worker_config import WorkerConfig
from tuplewire_service.messaging.factory import TRANSPORT_KEY, TransportFactory
from tuplewire_service.messaging.grpc.grpc_transport import GrpcSettings
from tuplewire_service.messaging.transport_settings import TransportSettings
from tuplewire_service.messaging.zmq.zmq_sockets import ZmqSettings
from tuplewire_service.worker.worker_settings import WorkerSettings, transport_settings
from tuplewire_topology.authoring.topology_settings import TopologySettings
from tuplewire_topology.clusters.launching import LaunchSettings

TLS = {"tls_ca": "ca", "tls_certificate": "crt", "tls_key": "key"}

# The other settings that a valid object of each class requires.
BESIDE: dict[type[Settings], dict[str, Any]] = {
    SessionSettings: {},
    TransportSettings: {"incarnation": 1},
    GrpcSettings: {"incarnation": 1},
    ZmqSettings: {"incarnation": 1},
    TopologySettings: {},
    LaunchSettings: {"user": "somebody"},
    WorkerSettings: {"worker_id": "w", "topology": "t"},
    WorkerConfig: {**TLS, "worker_id": "w"},
    Credentials: TLS,
    SourceOptions: {"address": "w:1", "topology": "t", "tasks": (1,)},
    SinkOptions: {"topology": "t", "grouping": "fields", "tasks": (1,)},
}
# Invalid values, by the kind's metavar: values of a wrong type, and values out of bounds.
WRONG: dict[str, list[Any]] = {
    "COUNT": ["1", 1.5, True, [], -1],
    "SIZE": ["1", "1MiB", 1.5, True, 0, -1],
    "SECONDS": ["1", True, [], -1, float("nan"), float("inf"), 10**400],
    "RATIO": [-0.1, 1.1, True, "half"],
    "SECONDS_OR_INF": ["1", True, [], 0, -1, float("nan")],
    "BOOLEAN": ["true", 1, 0, "yes"],
    "NAME": [5, ""],
    "LEVEL": [5, "loud", ["info"]],
    "FORMAT": [5, "xml"],
    "TEXT": [5, True, ["a"]],
    "ID": [5, "", " "],
    "HOST": [5, "", None],
    "FILE": [5, "", Path("/file")],
    "DIRECTORY": [5, ""],
    "NAMES": ["a", [5], ["a*b"]],
    "HOST:PORT": [5, "host", "host:", "host:65536", "::1:1"],
    "HOST[:PORT]": [5, "", "host:0"],
    "PATH": [5, "relative", "/" + 107 * "x"],
    "MODE": ["0660", True, 0, 0o1000],
    "ADDRESS": [5, "nowhere", "unix:relative", "host:0"],
    "ADDRESSES": ["host:1", [5], ["nowhere"], ["unix:relative"]],
    "PORTS": [1, ["1"], [True], [-1], [65536]],
    "OPTIONS": [5, [5], "-X 'dev"],
    "VARIABLES": ["A=b", {"A": 1}, {1: "a"}],
    "TASKS": [5, "1", ["1"], [-1], [2**31]],
    "TASK": ["1", True, -1, 2**31],
    "POLICY": [1.5, True, "sometimes", -1, 2**31, None],
    "TIME": ["1", True, [], 0, -1, float("nan"), float("inf")],
    "WHERE": [5, "first", ["latest"], {"1": 5}, {"-1": "latest"}],
}
# A value that is not the default, by the setting's name or its kind's metavar.
RIGHT: dict[str, Any] = {
    "ack_mode": "processed",
    "overflow": "drop_oldest",
    "reject_order": "wait",
    "error_policy": "skip",
    "grouping": "shuffle",
    "transport": "zmq",
    "log_level": "debug",
    "log_format": "json",
    "cluster_mode": "local",
    "mode": "distributed",
    "allow_plaintext": True,
    "fail_on_data_loss": False,
    "COUNT": 77,
    "SIZE": 3 << 20,
    "SECONDS": 7.5,
    "RATIO": 0.25,
    "SECONDS_OR_INF": float("inf"),
    "BOOLEAN": True,
    "NAME": "name",
    "TEXT": "text",
    "ID": "id",
    "HOST": "::1",
    "FILE": "file",
    "DIRECTORY": "directory",
    "NAMES": ("a.example", "*.b.example"),
    "HOST:PORT": "127.0.0.1:77",
    "HOST[:PORT]": "[fd00::1]",
    "PATH": "/run/ä.sock",
    "MODE": 0o600,
    "ADDRESS": "unix:///a",
    "ADDRESSES": ("unix:///a", "[::1]:0"),
    "PORTS": (6700, 0),
    "OPTIONS": ("-X", "a b"),
    "VARIABLES": {"A": "b"},
    "TASKS": (3, 1, 2),
    "TASK": 9,
    "POLICY": 7,
    "delivery_guarantee": "atLeastOnce",
    "TIME": 7.5,
    "WHERE": {1: "latest"},
}
# Settings that a setting requires, or that conflict with it.
WITH: dict[str, dict[str, Any]] = {
    "transport": dict.fromkeys(TLS),
    "listen_peers": {"transport": "zmq", **dict.fromkeys(TLS)},
}
PAIRS = [(kind, each) for kind in BESIDE for each in settings_of(kind).values()]


def table(pairs: Iterable[tuple[type[Settings], Setting]]) -> pytest.MarkDecorator:
    """Run a test for each of these."""
    named = [pytest.param(kind, each, id=f"{kind.__name__}-{each.name}") for kind, each in pairs]
    return pytest.mark.parametrize(("kind", "each"), named)


OF_A_WORKER = [(kind, each) for kind, each in PAIRS if kind is WorkerConfig]
OF_SPARK = [(kind, each) for kind, each in PAIRS if kind in {SourceOptions, SinkOptions}]


def right(each: Setting) -> Any:
    """Return a value that fits a setting and is not its default."""
    return RIGHT[each.name] if each.name in RIGHT else RIGHT[each.kind.metavar]


def made(kind: type[Settings], each: Setting) -> Settings:
    """Return an object in which a setting is not the default."""
    return kind(**{**BESIDE[kind], **WITH.get(each.name, {}), each.name: right(each)})


def given(config: Settings) -> dict[str, str]:
    """Return the values that differ from the defaults, by name, as text for a command line."""
    result = {}
    for name, setting in settings_of(type(config)).items():
        if (value := getattr(config, name)) != setting.default:
            shown = setting.kind.to_user_value(value)
            result[name] = str(shown).lower() if isinstance(shown, bool) else str(shown)
    return result


@table(PAIRS)
def test_a_wrong_value_is_refused(kind: type[Settings], each: Setting) -> None:
    """The error names the setting or the key that the user wrote, the allowed values, and no secret."""
    for wrong in [*WRONG[each.kind.metavar], object(), {"a": object()}]:
        with pytest.raises(ConfigError, match=rf"^{each.name}\b"):
            kind(**{**BESIDE[kind], each.name: wrong})
    for key in filter(None, {each.key, each.storm}):
        for wrong in WRONG[each.kind.metavar]:
            if wrong is not None:
                with pytest.raises(ConfigError) as raised:
                    kind.from_conf({key: wrong})
                assert str(raised.value).startswith(key)
    with pytest.raises(ConfigError) as raised:
        kind(**{**BESIDE[kind], each.name: Fraction(1, 3)})
    assert str(raised.value).startswith(f"{each.name} must be {each.kind.allowed}")
    assert ("not Fraction(1, 3)" in str(raised.value)) != each.secret


@table(PAIRS)
def test_an_unknown_key_is_refused(kind: type[Settings], each: Setting) -> None:
    """A misspelled key is an error that suggests the correct key."""
    wrong = each.key + "x"
    if wrong.startswith((KEY_PREFIX, *kind.REFUSED)):
        with pytest.raises(ConfigError, match=rf"unknown setting '{wrong}'; did you mean .*{each.key}"):
            kind.from_conf({wrong: 1})
    with pytest.raises(ConfigError, match=rf"unknown setting '{each.name}x'; did you mean .*{each.name}"):
        kind.of(**{each.name + "x": 1})


@table(PAIRS)
def test_a_configuration_gives_the_same_object(kind: type[Settings], each: Setting) -> None:
    """A configuration survives a round trip through JSON. Storm's key, in its unit, replaces Tuplewire's."""
    config = made(kind, each)
    assert kind.from_conf(json.loads(json.dumps(config.conf()))) == config
    if each.storm:
        plain = each.kind_at(each.storm).to_plain(right(each))
        rest = {key: value for key, value in config.conf().items() if key != each.key}
        assert kind.from_conf({**rest, each.storm: plain}) == config
        if each.storm != each.key:
            with pytest.raises(ConfigError, match="are the same setting: keep one"):
                kind.from_conf({each.key: right(each), each.storm: plain})


@table(OF_A_WORKER)
def test_flags_variables_and_file_give_the_same_object(
    kind: type[WorkerConfig], each: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flags, variables and the printed file produce equal objects."""
    config = made(kind, each)
    texts = given(config)
    monkeypatch.chdir(tmp_path)
    if "program_conf_file" in texts:
        Path(texts["program_conf_file"]).write_text("{}", encoding="utf-8")
    variables = {settings_of(kind)[name].variable: text for name, text in texts.items()}
    by_flags, by_variables = load(texts, {}), load({}, variables)
    assert by_flags.config == by_variables.config == config
    assert by_flags.origins[each.name] == f"argument {each.flag}"
    assert by_variables.origins[each.name] == f"environment {each.variable}"
    file = tmp_path / "worker.toml"
    file.write_text(to_toml(by_flags.config, by_flags.origins), encoding="utf-8")
    assert load({}, {}, file).config == config


def test_an_error_names_the_source() -> None:
    """An invalid value is an error that names the flag or the variable."""
    for each in settings_of(WorkerConfig).values():
        wrong = "a*b" if each.kind.metavar == "NAMES" else " "
        if each.kind is not ANY_TEXT:
            with pytest.raises(ConfigError, match=rf"^argument {each.flag}\b"):
                load({each.name: wrong}, {})
            with pytest.raises(ConfigError, match=rf"^environment {each.variable}\b"):
                load({}, {each.variable: wrong})


@table(OF_SPARK)
def test_sparks_options_give_the_same_object(kind: type[Settings], each: Setting) -> None:
    """Options of Spark's data source produce an equal object."""
    config = made(kind, each)
    texts = {settings_of(kind)[name].key: text for name, text in given(config).items()}
    read: Any = source_options if kind is SourceOptions else sink_options
    assert read(texts) == config


def test_the_environment_gives_the_same_credentials() -> None:
    """A program's variables produce equal credentials."""
    for each in settings_of(Credentials).values():
        config = made(Credentials, each)
        variables = {settings_of(Credentials)[key].variable: text for key, text in given(config).items()}
        assert Credentials.from_environment(variables) == config


def test_no_key_means_two_things() -> None:
    """Within one class each key stands for one setting."""
    for kind in BESIDE:
        keys = [key for each in settings_of(kind).values() for key in {each.key, each.storm} if key]
        assert len(keys) == len(keys_of(kind))


@pytest.mark.parametrize("kind", [TransportSettings, TopologySettings, WorkerSettings])
def test_a_session_is_read_out_of_the_same_configuration(kind: type[Settings]) -> None:
    """Session settings are plain keys in a configuration, and SessionSettings in the object."""
    conf: Mapping[str, Any] = {
        "tuplewire.session.max_block_seconds": 5,
        "tuplewire.session.ack_mode": "processed",
        "storm.messaging.netty.buffer.high.watermark": 2 << 20,
        "storm.messaging.netty.min_wait_ms": 100,
        **BESIDE[kind],
    }
    session: Any = getattr(kind.from_conf(conf), "session")  # noqa: B009 - each has one
    assert session == SessionSettings.of(  # an int64 of numpy counts as an int
        max_block_seconds=5, ack_mode="processed", max_pending_bytes=int64(2**21), backoff_initial_seconds=0.1
    )
    with pytest.raises(ConfigError, match=r"^session must be SessionSettings, not \{\}"):
        kind(**{**BESIDE[kind], "session": {}})


def test_a_secret_value_is_shown_nowhere() -> None:
    """The environment of a worker appears in no error and no representation."""
    with pytest.raises(ConfigError) as raised:
        LaunchSettings.from_conf({"topology.environment": {"PASSWORD": ["hidden"]}})
    assert "topology.environment must be a map" in str(raised.value)
    assert raised.value.__cause__ is None
    shown = f"{raised.value} {LaunchSettings(environment={'PASSWORD': 'hidden'})!r}"
    assert "hidden" not in shown


def test_none_is_not_set() -> None:
    """Storm's null is equivalent to an absent key; only some settings may be None."""
    assert TopologySettings.from_conf({"topology.max.spout.pending": None}) == TopologySettings()
    assert TopologySettings(acker_executors=None).n_ackers == 1
    with pytest.raises(ConfigError, match=r"^workers must be"):
        TopologySettings(workers=None)  # type: ignore[arg-type]


def test_keys_of_the_user_pass() -> None:
    """Keys that are not reserved belong to the user and are accepted."""
    mine = {
        "mine": object(),
        "words.limit": -1,
        "storm.zookeeper.root": "/storm",
        "tuplewire.grpc.listen": "host:1",
    }
    assert TopologySettings.from_conf(mine) == TopologySettings()
    assert LaunchSettings.from_conf(mine) == LaunchSettings()


def test_positive() -> None:
    """The bounds and times of a session must be positive, except linger_seconds."""
    assert SessionSettings(linger_seconds=0).linger_seconds == 0
    others = {"ack_mode", "overflow", "linger_seconds", "reject_order"}
    for name in settings_of(SessionSettings).keys() - others:
        with pytest.raises(ConfigError, match=rf"{name} must be .* (from 1|more than 0), not 0"):
            SessionSettings(**{name: 0})  # type: ignore[arg-type]


def test_pending_holds_a_message() -> None:
    """max_pending_bytes must be at least max_message_bytes."""
    SessionSettings(max_pending_bytes=10, max_message_bytes=10)
    with pytest.raises(ConfigError, match=r"max_pending_bytes \(10\) must be at least max_message_bytes"):
        SessionSettings(max_pending_bytes=10, max_message_bytes=11)


of_each_transport = pytest.mark.parametrize("transport", ["local", "grpc", "zmq"])


@of_each_transport
@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("tuplewire.transport.receive_messages", -5, "a whole number from 1"),
        ("tuplewire.transport.host", 5, "a non-empty string"),
        ("tuplewire.session.overflow", "spill", "one of block, fail, drop_oldest"),
        ("storm.messaging.netty.min_wait_ms", 0, "a time in milliseconds, more than 0"),
        *((TRANSPORT_KEY, name, "the name of a transport") for name in (5, ["grpc"])),
    ],
)
def test_a_wrong_value_makes_no_context(transport: str, key: str, value: Any, allowed: str) -> None:
    """An invalid value is an error when the context is created, not when it is used."""
    with pytest.raises(ConfigError) as raised:
        TransportFactory.make_context({TRANSPORT_KEY: transport, key: value})
    assert str(raised.value) == f"{key} must be {allowed}, not {value!r}"


@of_each_transport
@pytest.mark.parametrize(
    ("conf", "problem"),
    [
        ({"tuplewire.transport.session": {}}, "unknown setting 'tuplewire.transport.session'"),
        ({"tuplewire.transprot.host": "::1"}, "'tuplewire.transprot.host'; did you mean tuplewire.transport"),
        ({"tuplewire.host": "::1"}, "unknown setting 'tuplewire.host'; known are: tuplewire.grpc"),
    ],
)
def test_an_unknown_key_makes_no_context(transport: str, conf: dict[str, Any], problem: str) -> None:
    """A key with Tuplewire's prefix must be known to an installed transport."""
    with pytest.raises(ConfigError) as raised:
        TransportFactory.make_context({TRANSPORT_KEY: transport, **conf})
    assert problem in str(raised.value)


@of_each_transport
def test_a_workers_settings_make_a_context(transport: str) -> None:
    """Every transport accepts all settings that a worker passes to it."""
    config = WorkerConfig(
        worker_id="w", resume_seconds=5, max_connections=7, max_connection_age_seconds=9, keepalive_seconds=3
    )
    conf = TransportSettings(**transport_settings(config, 1)).conf()
    TransportFactory.make_context({TRANSPORT_KEY: transport, **conf}).term()
