"""Detects gevent and eventlet: gRPC's threads cannot wake greenlets."""

from __future__ import annotations

import sys

from tuplewire.errors import ConfigError

GREEN_THREAD_LIBRARIES = {
    "gevent.monkey": ("is_module_patched", ("threading", "select")),
    "eventlet.patcher": ("is_monkey_patched", ("thread", "select")),
}
"""Modules that patch threads and select, with the function that reports a patch and its arguments."""


def refuse_green_threads() -> None:
    """Raise ConfigError if gevent or eventlet has patched threads or select: every wait would hang."""
    for name, (check_name, parts) in GREEN_THREAD_LIBRARIES.items():
        # A library that is not imported has patched nothing.
        module = sys.modules.get(name)
        if module is not None and any(map(getattr(module, check_name), parts)):
            library = name.partition(".")[0]
            raise ConfigError(
                f"{library} has replaced Python's threads or select, and Tuplewire needs the real ones: call "
                f"patch_all(thread=False, select=False), or use Tuplewire in a process without {library}"
            )
