"""Bearer tokens in a file, for programs to show and for workers to know."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tuplewire.errors import ConfigError
from tuplewire.identity.watched import UNREADABLE

AUTHORIZATION = "authorization"
"""The key of a call's metadata under which a token is shown."""
MIN_LENGTH = 16
_SCHEME = "Bearer "


@dataclass(frozen=True, slots=True)
class Token:
    """One token, and the name that rules have for whoever shows it. The token itself is never printed."""

    name: str
    secret: str = field(repr=False)

    @property
    def shown(self) -> str:
        """The value of the metadata that shows it."""
        return _SCHEME + self.secret


def read_tokens(path: Path) -> tuple[Token, ...]:
    """Read a token file: a line `TOKEN` or `NAME TOKEN` each; empty lines and those with # are left out.

    Programs show the first; a worker knows them all. Raises ConfigError, which never quotes a token, for a
    file that is not readable, has none, or has one that is too short or not printable ASCII.
    """
    try:
        text = path.read_text(encoding="ascii")
    except OSError as error:
        raise ConfigError(f"cannot read the token file {path}: {error.strerror}; {UNREADABLE}") from error
    except UnicodeDecodeError:
        raise ConfigError(
            f"the token file {path} is not ASCII; write a token as letters and digits"
        ) from None
    tokens = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) > 2:
            raise ConfigError(f"line {number} of the token file {path} is neither TOKEN nor NAME TOKEN")
        name, secret = words if len(words) == 2 else ("", words[0])
        if not name.isprintable():
            raise ConfigError(f"the name in line {number} of the token file {path} is not printable")
        if len(secret) < MIN_LENGTH or not secret.isprintable():
            raise ConfigError(
                f"the token in line {number} of {path} is not {MIN_LENGTH} or more printable characters; "
                "make one with: openssl rand -hex 32"
            )
        tokens.append(Token(name, secret))
    if not tokens:
        raise ConfigError(f"the token file {path} has no token; make one with: openssl rand -hex 32")
    return tuple(tokens)


def find_token(shown: str, tokens: Iterable[Token]) -> Token | None:
    """Return the token that is shown (`Bearer ...`), if it is one of these.

    Takes as long for a token that is nearly right as for any other.
    """
    found = None
    value = shown.encode()
    for token in tokens:
        if hmac.compare_digest(value, token.shown.encode()):
            found = token
    return found
