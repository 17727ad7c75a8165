"""The check of unknown TUPLEWIRE_* variables, for programs and workers."""

from __future__ import annotations

import difflib
import functools
import os
from collections.abc import Iterable, Mapping

from tuplewire.errors import ConfigError
from tuplewire.identity.credentials import Credentials
from tuplewire.settings.settings import ENVIRONMENT_PREFIX, settings_of
from tuplewire.tracing import TracingSettings

_MIN_SIMILARITY = 0.8
CLIENT_VARIABLES = {ENVIRONMENT_PREFIX + name for name in ("ADDRESS", "TOPOLOGY", "CONFIG")}.union(
    each.variable for kind in (Credentials, TracingSettings) for each in settings_of(kind).values()
)
"""The variables that clients read."""


def refuse_misspelled(environment: Mapping[str, str], known: Iterable[str]) -> None:
    """Raise ConfigError for an unknown variable whose name is close to a known one.

    Others are ignored: images set TUPLEWIRE_VERSION, and Kubernetes sets TUPLEWIRE_SERVICE_HOST.
    """
    names = {name.removeprefix(ENVIRONMENT_PREFIX): name for name in known}
    for variable in environment:
        name = variable.removeprefix(ENVIRONMENT_PREFIX)
        if name == variable or name in names:
            continue
        for near in difflib.get_close_matches(name, names, n=1, cutoff=_MIN_SIMILARITY):
            raise ConfigError(f"unknown environment variable {variable}; did you mean {names[near]}?")


@functools.cache
def check_variables() -> None:
    """Check the variables of this process once. Raises ConfigError; see refuse_misspelled()."""
    refuse_misspelled(os.environ, CLIENT_VARIABLES)
