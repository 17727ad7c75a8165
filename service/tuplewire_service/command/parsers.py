"""Parsers, flags and control clients that the subcommands of `tuplewire` share.

Used by all commands. Owns no state. Not thread-safe. Design: docs/design/status.md.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Collection, Sequence
from enum import StrEnum
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NoReturn

from tuplewire.errors import ConfigError, NotReadyError
from tuplewire.identity.credentials import Credentials
from tuplewire.settings.addresses import ADDRESS_VARIABLE
from tuplewire.settings.settings import (
    SECONDS_OR_INF,
    Kind,
    Settings,
    choice,
    in_range,
    integer,
    settings_of,
    unknown_error,
)
from tuplewire.text.formatting import fold
from tuplewire.values.task_ids import TASK, TASKS
from tuplewire_service.command.terminal import write_lines
from tuplewire_service.config.stop import EXIT_USAGE

if TYPE_CHECKING:
    from tuplewire.connection.control_client import ControlClient
    from tuplewire.wire import control_pb2 as pb

Handler = Callable[[argparse.Namespace], int]

EXIT_CODES = "Exit codes: 0 done; 1 failed; 64 wrong usage; 70 internal error; 130/143 cut short by a signal."
"""The last part of each command's help."""
_LOCAL_ADDRESS = "127.0.0.1:6700"
_GROUPS = {
    "network": ("advertise", "listen_peers", "max_connection", "socket_mode", "transport"),
    "sessions": ("keepalive_", "linger_", "max_frame_", "max_message_", "resume_"),
    "queues": ("dead_letter_", "receive_queue_", "reject_", "staging_"),
    "security": ("allow_plaintext", "permissions_", "tls_", "token_"),
    "reports": ("address_file", "log_", "metrics_", "state_file", "trac"),
    "program": ("program",),
}
"""The first part of the settings' names in each group of `--help GROUP`."""


class _Help(argparse.Action):
    """Prints the help of a command, and exits. Each group of further options has a separate screen."""

    def __call__(self, parser: Any, _: object, group: Any, _option: object = None) -> None:
        if group:
            parser._action_groups = [parser.further[group]]
        elif parser.further:
            parser._action_groups = [one for one in parser._action_groups if one.title not in parser.further]
            parser.epilog = f"More options: --help {', --help '.join(parser.further)}.\n{parser.epilog}"
        parser.print_help()
        parser.exit()


class _HelpFormatter(argparse.HelpFormatter):
    """Omits options from the usage line, which they would fill. Does not break examples and names."""

    def _fill_text(self, text: str, width: int, _: str) -> str:
        return fold(text, width)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return fold(text, width).splitlines()

    def _format_usage(self, usage: Any, actions: Any, _: Any, prefix: Any) -> str:
        words = [each for each in actions if not each.option_strings or each.required]
        shown = super()._format_usage(usage, words, [], prefix)
        if usage is not None or len(words) == len(list(actions)):  # as argparse calls it for parts of a usage
            return shown
        return shown.replace(self._prog, f"{self._prog} [OPTIONS]", 1)


class Parser(argparse.ArgumentParser):
    """A parser that accepts options anywhere, and exits with EXIT_USAGE and one line after wrong usage."""

    _intermixed = False

    def __init__(self, **more: Any) -> None:
        super().__init__(add_help=False, allow_abbrev=False, formatter_class=_HelpFormatter, **more)
        self.further: dict[str, Any] = {}
        """The groups of options that the help shows separately, by their titles."""
        self.help_flag = self.add_argument("-h", "--help", action=_Help, nargs=0, help="show this help")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Accept options between positional arguments, unless the parser has subcommands."""
        if self._intermixed:
            return super().parse_known_args(args, namespace)
        self._check_options(args)
        if self._subparsers is not None:
            return super().parse_known_args(args, namespace)
        self._intermixed = True  # argparse calls this method again for each half
        try:
            found, unknown = self.parse_known_intermixed_args(args, namespace)
        finally:
            self._intermixed = False
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._option_meant(unknown[0])}")
        return found, unknown

    def _option_meant(self, word: str) -> str:
        """Return a hint with the option that this word is the value of, or looks like."""
        option = "--address" if ":" in word else "--tasks" if word[:1].isdigit() else f"-{word}"
        if option not in self._option_string_actions:
            return ""
        return f"; did you mean {option if word.startswith('-') else f'{option} {word}'}?"

    def _check_options(self, words: Sequence[str]) -> None:
        """Report an unknown option first. Its value would otherwise be read as a positional argument."""
        has_commands = self._subparsers is not None
        known = [each for each in self._option_string_actions if each.startswith("--")]
        for word in takewhile(lambda word: word.startswith("-") if has_commands else word != "--", words):
            option = word.partition("=")[0]
            if (has_commands or option.startswith("--")) and option not in self._option_string_actions:
                place = " before COMMAND" if has_commands else ""
                self.error(str(unknown_error(f"option {option}{place}", option, known)))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            name = str(action.metavar or action.dest).lower()
            hint = ". Write -- before a message that starts with -" if action is self.help_flag else ""
            self.error(f"{unknown_error(f'{name} {value!r}', value, action.choices)}{hint}")

    def error(self, message: str) -> NoReturn:
        message += "" if message.endswith("?") else ";"
        write_lines(sys.stderr, f"{self.prog}: {message} see {self.prog} --help")
        self.exit(EXIT_USAGE)


def kind_arg(kind: Kind) -> dict[str, Any]:
    """Return the `type` and `metavar` of an argument that accepts the values of a setting of this kind."""

    def read(text: str) -> Any:
        try:
            return kind.check(kind.parse(text))
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        except (ValueError, TypeError):
            raise argparse.ArgumentTypeError(f"must be {kind.allowed}, not {text!r}") from None

    return {"type": read, "metavar": kind.metavar}


def enum_arg(words: type[StrEnum]) -> dict[str, Any]:
    """Return the `type`, `metavar` and `choices` of an argument that accepts one of several words."""
    return {**kind_arg(choice(words, "FORMAT")), "choices": list(words)}


SECONDS_ARG = kind_arg(Kind("SECONDS", "a time in seconds or inf, from 0", float, in_range(0.0), float))
POSITIVE_COUNT_ARG = kind_arg(integer())
TASK_ARG = kind_arg(TASK)
TASKS_ARG = kind_arg(TASKS)


def add_command(commands: Any, handler: Handler, help_text: str, example: str, name: str = "") -> Parser:
    """Add a command. Its default name is that of its handler."""
    name = name or handler.__name__.removeprefix("_").replace("_", "-")
    about = help_text[0].upper() + help_text[1:] + "."
    parser: Parser = commands.add_parser(name, help=help_text, description=about)
    parser.epilog = f"example: {parser.prog} {example}".rstrip() + f"\n{EXIT_CODES}"
    parser.set_defaults(handler=handler)
    return parser


def add_client_command(
    commands: Any, handler: Handler, help_text: str, example: str = "", name: str = ""
) -> Parser:
    """Add a command that connects to a running worker, with its address, the timeout and the credentials."""
    parser = add_command(commands, handler, help_text, example, name)
    add_address(parser, "address of the worker: host:port, or unix:///path")
    about = "time limit for an answer (default: 5)"
    parser.add_argument("--timeout", **kind_arg(SECONDS_OR_INF), default=5.0, help=about)
    add_setting_flags(parser, Credentials)
    return parser


def add_address(parser: Parser, about: str) -> None:
    """Add `--address` with its default, which every command has in common."""
    parser.add_argument(
        "--address",
        metavar="ADDRESS",
        default=os.environ.get(ADDRESS_VARIABLE) or _LOCAL_ADDRESS,
        help=f"{about} (environment: {ADDRESS_VARIABLE}; default: {_LOCAL_ADDRESS})",
    )


def add_topology(parser: Parser) -> None:
    """Add the flag for the worker's topology."""
    about = "topology of the worker (environment: TUPLEWIRE_TOPOLOGY; default: default)"
    parser.add_argument("--topology", metavar="NAME", help=about)


def add_setting_flags(parser: Parser, settings: type[Settings]) -> None:
    """Add a flag for each setting of a class, in the groups of `--help GROUP`."""
    for known in settings_of(settings).values():
        title = next((title for title, names in _GROUPS.items() if known.name.startswith(names)), "")
        if title and title not in parser.further:
            parser.further[title] = parser.add_argument_group(title)
            about = "show this help, or the help of a group of options"
            vars(parser.help_flag).update(nargs="?", metavar="GROUP", choices=parser.further, help=about)
        default = f"; default: {known.kind.to_user_value(known.default)}" if known.default else ""
        parser.further.get(title, parser).add_argument(
            known.flag,
            dest=f"setting_{known.name}",
            metavar=known.kind.metavar,
            nargs="?" if known.is_boolean else None,
            const="true" if known.is_boolean else None,
            help=f"{known.help} (environment: {known.variable}{default})".replace("%", "%%"),  # argparse: %
        )


def flag_values(arguments: argparse.Namespace, settings: type[Settings]) -> dict[str, str]:
    """Return the values of the given flags by setting name."""
    given = {name: getattr(arguments, f"setting_{name}") for name in settings_of(settings)}
    return {name: value for name, value in given.items() if value is not None}


def read_credentials(arguments: argparse.Namespace) -> Credentials:
    """Return the credentials of the flags and, for missing flags, of the environment."""
    known = settings_of(Credentials)
    given = flag_values(arguments, Credentials).items()
    flags = {name: known[name].check(raw, f"argument {known[name].flag}", text=True) for name, raw in given}
    return Credentials.from_environment(flags=flags)


def make_control_client(arguments: argparse.Namespace, address: str | None = None) -> ControlClient:
    """Return a control client for the flags of add_client_command(); `address` replaces --address."""
    from tuplewire.connection.control_client import ControlClient

    return ControlClient(
        address or arguments.address, arguments.timeout, credentials=read_credentials(arguments)
    )


def fetch_assignment(client: ControlClient, tasks: Collection[int] = ()) -> pb.Assignment:
    """Return the worker's assignment. Raise NotReadyError, or UnknownTaskError for a task not in it."""
    from tuplewire.connection.task_owners import TaskOwners

    if (assignment := client.get_assignment()) is None:
        raise NotReadyError(f"the worker at {client.address} has no assignment yet: run tuplewire assign")
    owners = TaskOwners(assignment.topology, client.address)
    owners.apply(assignment, client.address)
    if unknown := sorted(set(tasks).difference(owners.by_task)):
        raise owners.unknown_error(unknown)
    return assignment


def fetch_owners(client: ControlClient, tasks: Collection[int]) -> dict[str, str]:
    """Return the address and id of each worker that owns one of the tasks; if none does, the client's."""
    worker_id, assignment = client.status().worker_id, client.get_assignment()
    owners = {
        client.address if each.worker_id == worker_id else each.address: each.worker_id
        for each in (assignment.workers if assignment is not None else ())
        if not set(tasks).isdisjoint(each.tasks)
    }
    return owners or {client.address: worker_id}
