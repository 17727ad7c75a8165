"""A real browser without a window, over a pipe (Chrome's DevTools protocol), and the pages of a viewer."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from helpers import eventually
from helpers.tools import require_tool
from helpers.worker_process import COMMAND, environment_without_ours

PROGRAM = "chromium-headless-shell"
_SECONDS = 60.0
"""Seconds that a new user may need."""


class Browser:
    """One tab of the browser. `complaints`: script errors, and requests that the page's policy blocked."""

    def __init__(self, to: int, back: int) -> None:
        self.complaints: list[str] = []
        self._to = to
        self._back = os.fdopen(back, "rb", closefd=False)
        self._numbers = count(1)
        self._session = ""
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._ask(f"{domain}.enable")

    def _ask(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            said = json.loads(self._read())
            if said.get("method") == "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(said["params"]["exceptionDetails"]))
            if said.get("method") == "Log.entryAdded" and said["params"]["entry"]["level"] == "error":
                self.complaints.append(said["params"]["entry"]["text"])
            if said.get("id") == number:
                assert "error" not in said, said["error"]
                return said["result"]

    def _read(self) -> bytes:
        read = bytearray()
        while (byte := self._back.read(1)) != b"\0":
            assert byte, "the browser has ended"
            read += byte
        return bytes(read)

    def open(self, url: str) -> None:
        """Navigate to a page."""
        self._ask("Page.navigate", url=url)

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page, or None if it fails."""
        return self._ask("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def dark(self) -> None:
        """Prefer dark colours from now on."""
        feature = {"name": "prefers-color-scheme", "value": "dark"}
        self._ask("Emulation.setEmulatedMedia", features=[feature])

    def resize(self, width: int, height: int) -> None:
        """Set the size of the window in pixels."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1}
        self._ask("Emulation.setDeviceMetricsOverride", **size, mobile=False)

    def picture(self, file: Path) -> None:
        """Write a screenshot as PNG."""
        answer = self._ask("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(answer["data"]))


def until(tab: Browser, expression: str, what: str) -> None:
    """Wait until an expression is true in the page."""
    eventually(lambda: tab.value(expression), _SECONDS, f"{what}; {tab.complaints}")


@contextmanager
def browser(directory: Path) -> Iterator[Browser]:
    """Start a browser, with a profile in this directory."""
    program = require_tool(PROGRAM, f"Debian's package {PROGRAM}")
    read, to = os.pipe()
    back, write = os.pipe()
    flags = ["--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", f"--user-data-dir={directory}"]
    # The browser reads from descriptor 3 and writes to 4.
    line = f'exec "$@" 3<&{read} 4>&{write}'
    process = subprocess.Popen(
        ["bash", "-c", line, "bash", program, *flags],
        pass_fds=(read, write),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(read)
    os.close(write)
    try:
        yield Browser(to, back)
    finally:
        process.kill()
        process.wait()
        os.close(to)
        os.close(back)


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
            for _ in range(2):  # the second one is ignored
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
