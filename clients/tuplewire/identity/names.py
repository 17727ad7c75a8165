"""Names in certificates (subject alternative names), and the lists that say whose may do what."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tuplewire.errors import ConfigError

_LABEL = re.compile(r"[A-Za-z0-9_-]+")


def parse_names(text: str) -> tuple[str, ...]:
    """Read a list of names, comma-separated: DNS names, IP addresses, URIs such as spiffe://prod/worker.

    A DNS name may begin with `*.`, which stands for one label. Raises ConfigError for any other `*`.
    """
    names = tuple(name for part in text.split(",") if (name := part.strip()))
    for name in names:
        if "*" in name.removeprefix("*.") or name == "*.":
            raise ConfigError(
                f"{name!r} is no name in a certificate; write worker.example, *.workers.example, 10.0.0.1 or "
                "spiffe://prod/worker, with commas between them"
            )
    return names


def allowed(names: Iterable[str], patterns: Iterable[str]) -> bool:
    """Whether one of the names in a certificate is on a list."""
    patterns = tuple(patterns)
    return any(matches(name, pattern) for name in names for pattern in patterns)


def matches(name: str, pattern: str) -> bool:
    """Whether a name in a certificate is the one of a list, or covered by its `*.`."""
    if name == pattern:
        return True
    if "/" in name or ":" in name:  # the case of a URI matters
        return False
    name, pattern = name.lower(), pattern.lower()
    if name == pattern:
        return True
    label, dot, rest = name.partition(".")
    return bool(dot) and f"*.{rest}" == pattern and _LABEL.fullmatch(label) is not None
