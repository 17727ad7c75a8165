"""Parsers, flags and control clients that the subcommands of `tuplewire` share.

Used by all commands. Owns no state. Not thread-safe.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from tuplewire.errors import ConfigError
from tuplewire.identity.credentials import Credentials
from tuplewire.settings.settings import SECONDS, Kind, Settings, count, settings_of, within
from tuplewire.text.escaping import escape_unprintable
from tuplewire.values.task_ids import TASKS
from tuplewire_service.config.stop import EXIT_USAGE

if TYPE_CHECKING:
    from tuplewire.connection.control_client import ControlClient

Handler = Callable[[argparse.Namespace], int]

EXIT_CODES = "Exit codes: 0 done; 1 failed; 64 wrong usage; 70 internal error; 130 interrupted."
"""The last part of each command's help."""


class Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line, and exits with EXIT_USAGE."""

    _intermixed = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Accept options between positional arguments, unless the parser has subcommands."""
        if self._intermixed or self._subparsers is not None:
            return super().parse_known_args(args, namespace)
        self._intermixed = True  # argparse calls this method again for each half
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._intermixed = False

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: {escape_unprintable(message)}; see {self.prog} --help\n")


def of_kind(kind: Kind) -> dict[str, Any]:
    """Return the `type` and `metavar` of an argument that accepts the values of a setting of this kind."""

    def read(text: str) -> Any:
        try:
            return kind.check(kind.parse(text))
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        except (ValueError, TypeError):
            raise argparse.ArgumentTypeError(f"must be {kind.allowed}, not {text!r}") from None

    return {"type": read, "metavar": kind.metavar}


seconds = of_kind(Kind("SECONDS", "a time in seconds or inf, from 0", float, within(0.0), float))
positive_seconds = of_kind(SECONDS)
number = of_kind(count(0))
positive_number = of_kind(count())
task_list = of_kind(TASKS)


def add_command(commands: Any, handler: Handler, help_text: str, example: str) -> argparse.ArgumentParser:
    """Add a command with the name of its handler."""
    name = handler.__name__.removeprefix("_").replace("_", "-")
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help_text,
        description=help_text[0].upper() + help_text[1:] + ".",
        epilog=f"example: tuplewire {name} {example}. {EXIT_CODES}",
    )
    parser.set_defaults(handler=handler)
    return parser


def add_access(parser: argparse.ArgumentParser) -> None:
    """Add the flags for a connection to a worker: the timeout and the credentials."""
    parser.add_argument("--timeout", **seconds, default=5.0, help="wait for the worker (default: 5)")
    add_setting_flags(parser, Credentials)


def add_setting_flags(parser: argparse.ArgumentParser, settings: type[Settings]) -> None:
    """Add a flag for each setting of a class."""
    for known in settings_of(settings).values():
        default = f"; default: {known.kind.shown(known.default)}" if known.default else ""
        parser.add_argument(
            known.flag,
            dest=f"setting_{known.name}",
            metavar=known.kind.metavar,
            nargs="?" if known.is_flag else None,
            const="true" if known.is_flag else None,
            help=f"{known.help} (environment: {known.variable}{default})".replace("%", "%%"),  # argparse: %
        )


def given_flags(arguments: argparse.Namespace, settings: type[Settings]) -> dict[str, str]:
    """Return the values of the given flags by setting name."""
    given = {name: getattr(arguments, f"setting_{name}") for name in settings_of(settings)}
    return {name: value for name, value in given.items() if value is not None}


def credentials_of(arguments: argparse.Namespace) -> Credentials:
    """Return the credentials of the flags and, for missing flags, of the environment."""
    known = settings_of(Credentials)
    given = given_flags(arguments, Credentials).items()
    flags = {name: known[name].parse(value, f"flag {known[name].flag}") for name, value in given}
    return Credentials.from_environment(flags=flags)


def control_of(arguments: argparse.Namespace) -> ControlClient:
    """Return a client of the control service for the flags of add_access()."""
    from tuplewire.connection.control_client import ControlClient

    return ControlClient(arguments.address, arguments.timeout, credentials=credentials_of(arguments))
