"""The flags of settings on the command line, made of the declarations."""

from __future__ import annotations

import argparse

from tuplewire.identity.credentials import Credentials
from tuplewire.settings import Settings, settings_of


def add_setting_flags(parser: argparse.ArgumentParser, settings: type[Settings]) -> None:
    """Add a flag for each setting of a class."""
    for known in settings_of(settings).values():
        default = f"; default {known.kind.shown(known.default)}" if known.default else ""
        parser.add_argument(
            known.flag,
            dest=f"setting_{known.name}",
            metavar=known.kind.metavar,
            nargs="?" if known.is_flag else None,
            const="true" if known.is_flag else None,
            default=None,
            help=f"{known.help} (environment: {known.variable}{default})".replace("%", "%%"),
        )


def given_flags(arguments: argparse.Namespace, settings: type[Settings]) -> dict[str, str]:
    """Return the texts of those flags that were given, by the settings' names."""
    given = {name: getattr(arguments, f"setting_{name}") for name in settings_of(settings)}
    return {name: value for name, value in given.items() if value is not None}


def credentials_of(arguments: argparse.Namespace) -> Credentials:
    """Return what the flags say, and the environment where they say nothing; ConfigError."""
    known = settings_of(Credentials)
    given = given_flags(arguments, Credentials).items()
    return Credentials.from_environment(
        flags={name: known[name].parse(value, f"flag {known[name].flag}") for name, value in given}
    )
