"""gevent and eventlet replace threads by coroutines of their own, which gRPC's threads cannot wake."""

from __future__ import annotations

import sys

from tuplewire.errors import ConfigError

_LIBRARIES = {
    "gevent.monkey": ("is_module_patched", ("threading", "select")),
    "eventlet.patcher": ("is_monkey_patched", ("thread", "select")),
}
"""What replaces threads and select by its own, and how it says so."""


def refuse_green_threads() -> None:
    """Raise ConfigError where gevent or eventlet has replaced threads: whoever waits would wait for ever."""
    for name, (asks, parts) in _LIBRARIES.items():
        module = sys.modules.get(name)
        if module is not None and any(map(getattr(module, asks), parts)):
            library = name.partition(".")[0]
            raise ConfigError(
                f"{library} has replaced Python's threads or select, and Tuplewire needs the real ones: call "
                f"patch_all(thread=False, select=False), or use Tuplewire in a process without {library}"
            )
