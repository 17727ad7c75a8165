"""The default ids of clients, which operators read in views and logs. Design: docs/design/identity.md."""

from __future__ import annotations

import os
import socket
import sys
import uuid
from pathlib import Path


def new_client_id() -> str:
    """Return a unique id: script, host, process, 8 random characters, as containers may share the rest."""
    script = Path(next(iter(sys.argv), ""))
    name = script.parent.name if script.name == "__main__.py" else script.name.removeprefix("-c")
    client_id = f"{name[:64] or 'python'}@{socket.gethostname()}:{os.getpid()}-{uuid.uuid4().hex[:8]}"
    return client_id.encode(errors="replace").decode()
