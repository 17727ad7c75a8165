"""The debug bundle of a worker: a zip file for troubleshooting."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import time
import zipfile
from pathlib import Path
from typing import Any

from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import ConfigError
from tuplewire_service.command.status_report import status_as_json
from tuplewire_service.command.viewer.cluster_rows import cluster_rows
from tuplewire_service.command.viewer.rates import WorkerSample
from tuplewire_service.control.control_messages import MOST_CLIENTS

_BETWEEN_SECONDS = 1.0
_NAME = re.compile(r"[a-z-]{1,30}\.(?:json|toml|txt)")


def write_bundle(client: ControlClient, file: Path) -> list[str]:
    """Write a worker's debug files, status and rates to a new zip file, and return the names in it.

    Only the owner can read the file. Raises ConfigError if it exists.
    """
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigError(f"{file} is there already: give another name with -o") from None
    try:
        with (
            os.fdopen(descriptor, "wb") as stream,
            zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as bundle,
        ):
            contents = _contents(client)
            for name, content in contents.items():
                bundle.writestr(name, content)
    except BaseException:
        file.unlink()
        raise
    return sorted(contents)


def _contents(client: ControlClient) -> dict[str, bytes]:
    before, began = client.status(MOST_CLIENTS), time.monotonic()
    # The worker chooses the names. None may be a path, which could be outside of the folder when unpacked.
    contents = {name: content for name, content in client.debug().items() if _NAME.fullmatch(name)}
    time.sleep(max(0.0, began + _BETWEEN_SECONDS - time.monotonic()))  # for rates
    now = client.status(MOST_CLIENTS)
    rows = cluster_rows([WorkerSample(now.worker_id, client.address, now, before)])
    contents["status.json"] = _as_json(status_as_json(now))
    contents["live.json"] = _as_json(dataclasses.asdict(rows))
    return contents


def _as_json(value: Any) -> bytes:
    return json.dumps(value, indent=2, default=str).encode()
