"""An executor's pod, run as processes of this machine. Its volumes are folders."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from helpers import eventually
from helpers.admin import get
from helpers.manifests import Manifest, container, variables
from helpers.tools import ran
from helpers.worker_process import environment_without_ours

SPARK = "spark-kubernetes-executor"
_SECONDS = 240.0
_OWN_PORTS = ("--listen=[::]:0", "--listen-admin=127.0.0.1:0")


class PodHere:
    """The pod. volumes: the folder of each volume, which containers may mount at different paths."""

    def __init__(self, pod: Manifest, name: str, volumes: Mapping[str, Path], folder: Path) -> None:
        self.pod = pod
        self.name = name
        self.volumes = volumes
        self._addresses = folder / "addresses.json"
        self._log = folder / "log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Run the worker, with the arguments and the environment of the template."""
        worker = container(self.pod)
        environment = self._environment(worker)
        arguments = [
            self.local(worker, re.sub(r"\$\((\w+)\)", lambda found: environment[found[1]], text))
            for text in worker["args"]
        ]
        command = [sys.executable, "-m", "tuplewire_service", *arguments, *_OWN_PORTS]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, f"--address-file={self._addresses}"], env=environment, stderr=log
            )
        eventually(lambda: self._addresses.exists() or self.process_ended, _SECONDS, "the worker listens")
        assert not self.process_ended, self.log

    @property
    def process_ended(self) -> bool:
        """True if the worker's process has exited."""
        return self.process is not None and self.process.poll() is not None

    @property
    def address(self) -> str:
        """The address that the worker announces to its peers."""
        return str(self._written("address"))

    def probe(self, name: str) -> int:
        """Return the HTTP status of a probe of the worker."""
        path = container(self.pod)[name]["httpGet"]["path"]
        return get(str(self._written("metrics_url")).replace("/metrics", path))[0]

    def run(self, program: str, *without: str) -> subprocess.CompletedProcess[str]:
        """Run a Python program as the executor would, without some of the variables."""
        environment = self._environment(container(self.pod, SPARK))
        for name in without:
            environment.pop(name, None)
        return ran(sys.executable, "-c", program, env=environment, seconds=_SECONDS)

    def ask(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command `tuplewire` in the worker's container, as `kubectl exec` does."""
        worker = container(self.pod)
        local = [self.local(worker, text) for text in arguments]
        return ran(
            sys.executable, "-m", "tuplewire_service", *local, env=self._environment(worker), seconds=_SECONDS
        )

    @contextmanager
    def running(self, *command: str | Path) -> Iterator[subprocess.Popen[bytes]]:
        """Run a command in place of the executor during the block."""
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                command, env=self._environment(container(self.pod, SPARK)), stdout=log, stderr=log
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait(_SECONDS)

    @property
    def log(self) -> str:
        """The output of the worker and the executor."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def end(self) -> int:
        """Send SIGTERM to the worker, as the kubelet does after the executor's exit; return its exit code."""
        assert self.process
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(_SECONDS)

    def local(self, one: Manifest, text: str) -> str:
        """Replace the mount paths of a container in a string by the paths of this machine."""
        mounts = sorted(one["volumeMounts"], key=lambda mount: len(mount["mountPath"]), reverse=True)
        for mount in mounts:
            source = self.volumes[mount["name"]] / mount.get("subPath", "")
            text = text.replace(mount["mountPath"], str(source))
        return text

    def _environment(self, one: Manifest) -> dict[str, str]:
        given = {name: self.local(one, value) for name, value in variables(one).items()}
        by_field = {"metadata.name": self.name, "status.podIP": "127.0.0.1"}
        filled_in = {
            each["name"]: by_field[each["valueFrom"]["fieldRef"]["fieldPath"]]
            for each in one.get("env", [])
            if "valueFrom" in each
        }
        return {**environment_without_ours(), **given, **filled_in}

    def _written(self, key: str) -> Any:
        return json.loads(self._addresses.read_text(encoding="utf-8"))[key]


@contextmanager
def pod_here(
    pod: Manifest, name: str, folder: Path, config: str, secrets: Mapping[str, Path]
) -> Iterator[PodHere]:
    """Create the volumes of a pod, with Secrets and ConfigMaps by name, and run its worker in the block."""
    volumes = {}
    for volume in pod["spec"]["volumes"]:
        volumes[volume["name"]] = folder / volume["name"]
        if "secret" in volume:
            volumes[volume["name"]] = secrets[volume["secret"]["secretName"]]
        elif volume["name"] in secrets:
            volumes[volume["name"]] = secrets[volume["name"]]
        else:
            volumes[volume["name"]].mkdir(parents=True)
    running = PodHere(pod, name, volumes, folder)
    settings = volumes["tuplewire-config"] / "worker.toml"
    settings.write_text(running.local(container(pod), config), encoding="utf-8")
    try:
        running.start()
        yield running
    finally:
        if running.process and not running.process_ended:
            running.process.kill()
            running.process.wait(_SECONDS)
