"""The default ids of clients, which operators read in views and logs. Design: docs/design/identity.md."""

from __future__ import annotations

import os
import socket
import sys
import uuid
from pathlib import Path


def new_client_id() -> str:
    """Return a unique id: the script, the host, the process, and 8 random characters.

    Containers of one pod have the same host, and may have the same process id.
    """
    script = Path(next(iter(sys.argv), ""))
    name = script.parent.name if script.name == "__main__.py" else script.name.removeprefix("-c")
    shown = f"{name[:64] or 'python'}@{socket.gethostname()}:{os.getpid()}-{uuid.uuid4().hex[:8]}"
    return shown.encode(errors="replace").decode()
