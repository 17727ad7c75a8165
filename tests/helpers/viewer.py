"""`tuplewire top --web` as a process, and the data of its page."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from helpers.worker_process import COMMAND, environment_without_ours


@contextmanager
def web_viewer(address: str, environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """Run the viewer for a worker until the block ends, then stop it as by Ctrl-C; yield its link."""
    viewer = subprocess.Popen(
        [*COMMAND, "top", "--web", "--port=0", "--interval=1", "--address", address],
        env={**environment_without_ours(), **(environment or {})},
        stdout=subprocess.PIPE,
        text=True,
    )
    with viewer:
        try:
            assert viewer.stdout is not None
            line = viewer.stdout.readline()
            found = re.fullmatch(r"open (http://127\.0\.0\.1:\d+/#token=\S+) in a browser .*\n", line)
            assert found is not None, (line, viewer.poll())
            yield found[1]
        finally:
            viewer.send_signal(signal.SIGINT)
            viewer.wait(30)
    assert viewer.returncode == 128 + signal.SIGINT


def page_data(link: str) -> dict[str, Any]:
    """Return the data that the page at a link reads."""
    parts = urlsplit(link)
    token = parts.fragment.removeprefix("token=")
    request = Request(f"http://{parts.netloc}/live.json", headers={"Authorization": f"Bearer {token}"})
    with urlopen(request, timeout=30) as answer:  # noqa: S310 - our own address
        found: dict[str, Any] = json.load(answer)
        return found
