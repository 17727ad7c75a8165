"""The worker's configuration: sources, precedence, types, errors, and its security settings."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.tools import ran

from tuplewire.environment import CLIENT_VARIABLES, refuse_misspelled
from tuplewire.errors import ConfigError
from tuplewire.settings.settings import SECONDS, SIZE, Kind, integer, settings_of
from tuplewire_service.command.cli import command_parser, main
from tuplewire_service.config.config_sources import load
from tuplewire_service.config.worker_config import (
    ADVERTISED_ADDRESS,
    FILE_MODE,
    HOST_PORT,
    SOCKET_PATH,
    WorkerConfig,
)
from tuplewire_service.security.permissions import permissions_of, read_rules


def _file(directory: Path, text: str) -> Path:
    file = directory / "worker.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_defaults_are_valid_and_storms_first_slot() -> None:
    """Without any source, the worker listens on Storm's first port."""
    loaded = load({}, {})
    assert loaded.config.listen == "127.0.0.1:6700"
    assert loaded.config.worker_id.endswith(":6700")
    assert set(loaded.origins.values()) == {"default"}


def test_flags_win_over_environment_over_file(tmp_path: Path) -> None:
    """Flags override the environment, which overrides the file, for each setting separately."""
    file = _file(tmp_path, 'topology = "file"\nlog_level = "error"\nlisten = "127.0.0.1:1"\n')
    environment = {"TUPLEWIRE_TOPOLOGY": "environment", "TUPLEWIRE_LOG_LEVEL": "debug"}
    loaded = load({"topology": "flag"}, environment, file)
    assert (loaded.config.topology, loaded.config.log_level) == ("flag", "debug")
    assert loaded.config.listen == "127.0.0.1:1"
    assert loaded.origins["topology"] == "argument --topology"
    assert loaded.origins["log_level"] == "environment TUPLEWIRE_LOG_LEVEL"
    assert loaded.origins["listen"] == f"listen in {file}"


def test_environment_names_the_file(tmp_path: Path) -> None:
    """TUPLEWIRE_CONFIG replaces --config."""
    file = _file(tmp_path, 'topology = "words"')
    assert load({}, {"TUPLEWIRE_CONFIG": str(file)}).config.topology == "words"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("receive_queue_mesages = 1", "did you mean receive_queue_messages"),
        ('tls_cert = "x"', "did you mean tls_certificate?"),
        ('storm.messaging.transprot = "grpc"', "storm.messaging.transport"),
        ("receive_queue_messages = 1\ntopology.executor.receive.buffer.size = 2", "the same setting"),
        ("topology = true", "topology in "),
        ("allow_plaintext = 1", "allow_plaintext in "),
        ('allow_plaintext = "true"', "must be true or false, not 'true'"),
        ("listen = [1]", "listen in "),
        ("listen = ", "is not TOML"),
        ('max_message_bytes = "1 parsec"', "max_message_bytes in "),
    ],
)
def test_bad_file_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    """An error in the file names the key, and suggests known keys for an unknown one."""
    with pytest.raises(ConfigError, match=r"worker\.toml") as caught:
        load({}, {}, _file(tmp_path, text))
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (integer(), "1.5"),
        (SECONDS, "soon"),
        *((SIZE, text) for text in ("", "8MB", "-1", "1.5k", "k", "8 bits")),
        (HOST_PORT, "127.0.0.1"),
        (HOST_PORT, ":6700"),
        (HOST_PORT, "h:\uff16"),
        (ADVERTISED_ADDRESS, "10.0.0.1:0"),
        (FILE_MODE, "0888"),
        (FILE_MODE, "0"),
        (FILE_MODE, "7777"),
    ],
)
def test_bad_values(kind: Kind, text: str) -> None:
    """An invalid value is refused when it is parsed. MB is ambiguous, and a part of a byte is invalid."""
    with pytest.raises(ValueError):  # noqa: PT011 - the setting explains the error
        kind.check(kind.parse(text))


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (HOST_PORT, "[::1]:6700", "[::1]:6700"),
        (HOST_PORT, "localhost:0", "localhost:0"),
        (ADVERTISED_ADDRESS, "10.0.0.1", "10.0.0.1"),
        (ADVERTISED_ADDRESS, "[::1]", "[::1]"),
        (ADVERTISED_ADDRESS, "fd00::1", "[fd00::1]"),
        (ADVERTISED_ADDRESS, "pod-1:6700", "pod-1:6700"),
        (FILE_MODE, "0660", 0o660),
        (FILE_MODE, 0o660, 0o660),
        (SOCKET_PATH, "unix:///run/x.sock", "/run/x.sock"),
        (SOCKET_PATH, "/" + 106 * "x", "/" + 106 * "x"),
        (SECONDS, "2.5", 2.5),
        (SIZE, "512", 512),
        (SIZE, "64k", 65536),
        (SIZE, "8MiB", 8 << 20),
        (SIZE, "8 mi", 8 << 20),
        (SIZE, "1Gi", 1 << 30),
        (SIZE, "7B", 7),
    ],
)
def test_good_values(kind: Kind, text: str | int, value: object) -> None:
    """Common notations for addresses, modes, paths, times and sizes are accepted."""
    assert kind.check(kind.parse(text) if isinstance(text, str) else text) == value


def test_every_setting_has_a_flag_with_help(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`worker --help` and its groups show every flag once, with its variable, and each fits a screen."""
    monkeypatch.setenv("COLUMNS", "80")
    shown = []
    for group in ("", "network", "sessions", "queues", "security", "reports", "program"):
        shown.append(_screen(["worker", "--help", *filter(None, [group])], capsys))
        assert "example: tuplewire worker" in shown[-1]
        assert not group or f"--help {group}" in " ".join(shown[0].split())
    for known in settings_of(WorkerConfig).values():
        value = f"[{known.kind.metavar}]" if known.is_boolean else known.kind.metavar
        (screen,) = [each for each in shown if f"{known.flag} {value}" in each]
        assert known.variable in screen


def _screen(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return the help that a command prints, which must fit a screen."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    shown = capsys.readouterr().out
    fits = shown.count("\n") <= 40 and max(map(len, shown.splitlines())) <= 80
    assert (ended.value.code, fits) == (0, True), (words, shown)
    return shown


def test_the_help_of_each_command_fits_a_screen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On 80 columns, each help has at most 40 lines, and the help of `tuplewire` has groups of commands."""
    monkeypatch.setenv("COLUMNS", "80")
    commands = [each.prog.split()[1:] for each in _parsers(command_parser(["run"]))]
    for command in commands:
        _screen([*command, "--help"], capsys)
        assert _screen(["help", *command[:1]], capsys) == _screen([*command[:1], "--help"], capsys)
    shown = _screen(["--help"], capsys)
    listed = re.findall(r"^  ([a-z][a-z-]+) +[a-z]", shown, re.MULTILINE)
    assert sorted(listed) == sorted(command[0] for command in commands if len(command) == 1)
    assert all(f"\n{group}:\n" in shown for group in ("workers", "messages", "tools"))


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from _parsers(each)


def test_every_command_has_an_example() -> None:
    """The help of each command and job ends with a valid example and the exit codes."""
    helps = {each.prog: each.format_help() for each in _parsers(command_parser(["run"]))}
    assert {"tuplewire", "tuplewire worker", "tuplewire tap", "tuplewire run flights"} <= helps.keys()
    for command, shown in helps.items():
        assert "\nExit codes: 0 done; 1 failed; 64 wrong usage" in shown, command
        whole = re.search(rf"^example: {command}.*\nExit codes: ", shown, re.MULTILINE)
        assert whole or command == "tuplewire run", command


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["worker", "--listen", "nowhere"], "tuplewire worker: argument --listen: 'nowhere' is not"),
        # Only the workers of one process can use the local transport.
        (["worker", "--transport", "local"], "argument --transport must be one of grpc, zmq, not"),
        (["worker", "--config=/no/such.toml"], "cannot read the configuration /no/such.toml"),
        (["worker", "--receive-queue-bytes=1k"], "receive_queue_bytes"),
        (["worker", "--tasks=0-9", "--assignment-file=a.json"], "tasks are for a single worker"),
        (["worker", "--lisen", "x"], "tuplewire worker: unknown option --lisen; did you mean --listen or"),
        (["worker", "--task", "0-9"], "unknown option --task; did you mean --tasks"),
        (["send"], "tuplewire send: TASK is missing"),
        (["status", "--address", "nowhere"], "tuplewire status: address 'nowhere' is neither"),
        (
            ["status", "h:1"],
            "tuplewire status: unrecognized arguments: h:1; did you mean --address h:1? see tuplewire status",
        ),
        (["tap", "42"], "unrecognized arguments: 42; did you mean --tasks 42? see tuplewire tap --help"),
        (["worker", "-tasks", "0-9"], "unrecognized arguments: -tasks 0-9; did you mean --tasks?"),
        (["drain", "worker-1"], "tuplewire drain: unrecognized arguments: worker-1; see tuplewire drain"),
        (["-V"], "tuplewire: unknown option -V before COMMAND; known are: --help, --version"),
        (
            ["recv", "--adress", "h:1", "4"],
            "tuplewire recv: unknown option --adress; did you mean --address?",
        ),
        (["--address", "h:1", "status"], "tuplewire: unknown option --address before COMMAND"),
        (["recv", "1-"], "argument TASKS: task ids are written like 1,2,10-19"),
        (["recv", "1", "--format", "jsn"], "--format: must be one of lines, json, prefixed, not 'jsn'"),
        (["send", "3000000000", "x"], "argument TASK: must be a task id from 0 to 2147483647"),
        (["nonsense"], "unknown command 'nonsense'; known are: activate, assign"),
        (["stats"], "tuplewire: unknown command 'stats'; did you mean status? see tuplewire --help"),
        (["log-level", "warn"], "unknown level 'warn'; did you mean warning?"),
        (["worker", "--help", "securty"], "unknown group 'securty'; did you mean security?"),
        ([], "COMMAND"),
        (["drain", "--deadline", "-1"], "--deadline: must be a time in seconds, more than 0"),
        (["recv", "1", "--count", "0"], "argument --count: must be a whole number from 1, not '0'"),
        (["recv", "1", "--timeout", "0"], "--timeout: must be a time in seconds or inf, more than 0"),
        (["recv", "1", "--idle", "nan"], "argument --idle"),
        (["status", "--watch", "nan"], "argument --watch"),
        (["status", "--watch", "1e10"], "argument --watch: must be more than 0, at most 86400, not '1e10'"),
        (["status", "--timeout", "-5"], "argument --timeout"),
        (["top", "--interval", "nan"], "argument --interval"),
        (["top", "--interval", "1e10"], "argument --interval: must be more than 0, at most 86400"),
        (["tap", "--rate", "5000"], "argument --rate: must be a whole number from 1 to 1000, not '5000'"),
        (["top", "--web", "--port", "99999"], "argument --port: must be a whole number from 0 to 65535"),
        (["log-level", "debug", "--for", "1e6"], "argument --for: must be more than 0, at most 86400"),
        (["dead-letters", "drop", "abc", "--all"], "choose what to drop: IDs as `list` prints them, --task"),
        (["assign", "/no/such/file"], "cannot read the assignment /no/such/file"),
    ],
)
def test_wrong_usage_is_one_line_and_64(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong usage and invalid configuration print one line to stderr and exit with 64."""
    try:
        code = main(arguments)
    except SystemExit as ended:
        code = int(str(ended.code))
    shown = capsys.readouterr()
    assert code == 64
    assert shown.err.count("\n") == 1
    assert complaint in shown.err
    assert not shown.out


TLS: dict[str, Any] = {"tls_ca": "ca.crt", "tls_certificate": "tls.crt", "tls_key": "tls.key"}


@pytest.mark.parametrize("listen", ["0.0.0.0:6700", "[::]:6700", "10.0.0.1:6700", "worker.example:6700"])
@pytest.mark.parametrize("name", ["listen", "listen_peers"])
def test_plaintext_for_other_machines_takes_a_flag(listen: str, name: str) -> None:
    """Without TLS, a public address, also one for peers, is an error that names the fix."""
    settings: dict[str, Any] = {name: listen, "transport": "grpc" if name == "listen" else "zmq"}
    with pytest.raises(
        ConfigError, match=rf"^{name} is .* there is no TLS: set tls_certificate.*allow_plaintext"
    ):
        WorkerConfig(**settings)
    assert WorkerConfig(**settings, allow_plaintext=True)
    assert name == "listen_peers" or WorkerConfig(**settings, **TLS)


OPEN_ZMQ = {"transport": "zmq", "allow_plaintext": True}
NO_TLS = "the transport zmq between workers does not support TLS"


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"receive_queue_bytes": 1024, "max_message_bytes": 4096}, r"\(1024\) must be at least max_message"),
        ({"worker_id": "\udcff"}, "worker_id .* set LC_ALL"),
        ({"topology": "\udcff"}, "topology .* set LC_ALL"),
        ({"listen_peers": "127.0.0.1:6800"}, "listen_peers has no effect with the transport grpc"),
        ({"tls_certificate": "tls.crt", "tls_ca": "ca.crt"}, "belong together"),
        ({"tls_ca": "ca.crt"}, "tls_ca alone"),
        ({"tls_client_names": ("w",)}, "tls_client_names need"),
        ({**OPEN_ZMQ, **TLS}, NO_TLS),
        ({**OPEN_ZMQ, "token_file": "token"}, NO_TLS),
        ({**OPEN_ZMQ, "permissions_file": "rules"}, NO_TLS),
    ],
)
def test_settings_that_do_not_fit_together(settings: dict[str, Any], complaint: str) -> None:
    """For example, a worker with incomplete TLS settings does not start in plaintext."""
    with pytest.raises(ConfigError, match=complaint):
        WorkerConfig(**settings)


def test_messages_may_be_larger_than_the_default_of_a_session() -> None:
    """A worker has no setting for max_pending_bytes, which follows max_message_bytes."""
    config = WorkerConfig(max_message_bytes=1 << 30, receive_queue_bytes=1 << 30)
    assert config.session.max_pending_bytes == 1 << 30


def test_examples_of_the_page_are_right(tmp_path: Path) -> None:
    """The settings and rules in the guide are valid without changes."""
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "secure.md").read_text(encoding="utf-8")
    settings, rules = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    worker, permissions = tmp_path / "worker.toml", tmp_path / "permissions.toml"
    worker.write_text(settings, encoding="utf-8")
    permissions.write_text(rules, encoding="utf-8")
    assert load({}, {}, worker).config.tls_client_names == ("*.jobs.example", "spiffe://prod/etl")
    granted = permissions_of(read_rules(permissions), ["etl.jobs.example"], None, "flights")
    assert 99 in granted.send
    assert 200 in granted.receive


OTHERS = ("TUPLEWIRE_VERSION", "TUPLEWIRE_IMAGE_TAG", "TUPLEWIRE_HOME", "TUPLEWIRE_")
OF_KUBERNETES = (
    "TUPLEWIRE_SERVICE_HOST",
    "TUPLEWIRE_METRICS_SERVICE_PORT_HTTP",
    "TUPLEWIRE_PORT_9464_TCP_ADDR",
    "TUPLEWIRE_PORT",
)


def test_variables_of_others_are_ignored() -> None:
    """Variables of an image are ignored; a worker ignores those of a Service, both ignore the other's."""
    environment = dict.fromkeys(OTHERS, "1")
    refuse_misspelled(environment, CLIENT_VARIABLES)
    refuse_misspelled({each.variable: "1" for each in settings_of(WorkerConfig).values()}, CLIENT_VARIABLES)
    environment |= dict.fromkeys(("TUPLEWIRE_ADDRESS", "PATH", *OF_KUBERNETES), "whatever")
    assert load({}, environment).origins == load({}, {}).origins


def test_misspelled_variables_are_refused() -> None:
    """Misspelled variables are refused: without its CA, a program would connect in plaintext."""
    for wrong, meant in (
        ("TUPLEWIRE_ADRESS", "TUPLEWIRE_ADDRESS"),
        ("TUPLEWIRE_TOPLOGY", "TUPLEWIRE_TOPOLOGY"),
        ("TUPLEWIRE_TOKENFILE", "TUPLEWIRE_TOKEN_FILE"),
        ("TUPLEWIRE_TLS_CERTIFCATE", "TUPLEWIRE_TLS_CERTIFICATE"),
    ):
        with pytest.raises(ConfigError, match=f"{wrong}; did you mean {meant}"):
            load({}, {wrong: "x"})
        with pytest.raises(ConfigError, match=f"{wrong}; did you mean {meant}"):
            refuse_misspelled({wrong: "x"}, CLIENT_VARIABLES)
    program = "import tuplewire; tuplewire.Client('127.0.0.1:1')"
    assert f"did you mean {meant}?" in ran(sys.executable, "-c", program, env={wrong: "x"}).stderr
