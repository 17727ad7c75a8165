"""The worker's image, and a container of it as in Kubernetes: read-only, without capabilities."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from helpers import eventually
from helpers.tools import ROOT, missing, ran, require_tool

SOCKETS = "/run/tuplewire"
"""The mount point of the volume that the worker shares with the executor."""
NAME_OF_AN_INDEX = "index-of-this-machine.invalid"
"""Used in pip's configuration during the build; it must not occur in the image."""
_PRIVATE_CGROUPS = 'umount -R /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec "$@"'
"""crun does not support hosts with cgroups of both versions: it gets a view of version 2 alone."""


@dataclass
class Container:
    """A running container. `process` stands for it: it receives its signals, and exits with its exit code."""

    process: subprocess.Popen[bytes]
    pid: int
    shared: Path
    log_file: Path

    @property
    def log(self) -> str:
        """Its output so far."""
        return self.log_file.read_text(encoding="utf-8")

    @property
    def status(self) -> dict[str, str]:
        """The kernel's status of its first process: /proc/PID/status."""
        lines = Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8").splitlines()
        return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}

    @property
    def mounts(self) -> dict[str, set[str]]:
        """Its mount points and their options: /proc/PID/mountinfo."""
        lines = Path(f"/proc/{self.pid}/mountinfo").read_text(encoding="utf-8").splitlines()
        return {fields[4]: set(fields[5].split(",")) for fields in (line.split() for line in lines)}


def require_namespaces() -> list[str]:
    """Return the command that starts a program so that crun can run; skip loudly if that is not permitted."""
    wrapper = [require_tool("unshare", "Debian's util-linux"), "--mount", "--propagation=private"]
    wrapper += ["bash", "-c", _PRIVATE_CGROUPS, "_"]
    tried = ran(*wrapper, "true", seconds=30)
    if tried.returncode:
        missing(
            f"a mount namespace, which only root gets, and not in every container: {tried.stderr.strip()}"
        )
    return wrapper


@contextmanager
def running(
    bundle: Path,
    directory: Path,
    *arguments: str,
    user: tuple[int, int] = (185, 185),
    volumes: Mapping[str, Path] = MappingProxyType({}),
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Container]:
    """Run an unpacked image (an OCI bundle); the arguments replace the image's, as in Kubernetes' `args`.

    It shares this machine's network, and `directory/shared` at /run/tuplewire, the only writable folder.
    It is killed if the test has not stopped it.
    """
    wrapper = require_namespaces()
    crun = require_tool("crun", "Debian's crun")
    shared = directory / "shared"
    shared.mkdir()
    os.chown(shared, *user)
    given = json.loads((bundle / "config.json").read_text(encoding="utf-8"))
    configuration = _configured(given, bundle / "rootfs", shared, arguments, user)
    configuration["process"]["env"] += [f"{name}={value}" for name, value in environment.items()]
    configuration["mounts"] += [
        {"destination": place, "type": "bind", "source": str(path), "options": ["rbind", "ro"]}
        for place, path in volumes.items()
    ]
    (directory / "config.json").write_text(json.dumps(configuration), encoding="utf-8")
    name = f"tuplewire-test-{os.getpid()}-{user[0]}"
    state, pid_file, log_file = directory / "state", directory / "pid", directory / "log"
    runtime = [crun, "--cgroup-manager=disabled", f"--root={state}"]
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            [*wrapper, *runtime, "run", f"--bundle={directory}", f"--pid-file={pid_file}", name],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:

        def made() -> bool:  # the file exists before its content
            return process.poll() is not None or (pid_file.exists() and pid_file.stat().st_size > 0)

        eventually(made, 60, "container made")
        assert process.poll() is None, log_file.read_text(encoding="utf-8")
        yield Container(process, int(pid_file.read_text(encoding="utf-8")), shared, log_file)
    finally:
        if process.poll() is None:
            subprocess.run([*runtime, "kill", name, "KILL"], check=False, timeout=60)
            process.wait(60)
        subprocess.run([*runtime, "delete", "--force", name], capture_output=True, check=False, timeout=60)


def _configured(
    given: dict[str, Any], root: Path, shared: Path, arguments: tuple[str, ...], user: tuple[int, int]
) -> dict[str, Any]:
    """Return the OCI configuration of one container: the image's, and the additions of a pod's spec."""
    made = copy.deepcopy(given)
    process = made["process"]
    process["terminal"] = False
    process["args"] = [process["args"][0], *arguments]
    process["user"] = {"uid": user[0], "gid": user[1]}
    process["noNewPrivileges"] = True
    process["capabilities"] = {kind: [] for kind in process["capabilities"]}
    process.pop("rlimits", None)
    made["root"] = {"path": str(root), "readonly": True}
    made["mounts"] = [mount for mount in made["mounts"] if mount["destination"] in {"/proc", "/dev"}]
    made["mounts"] += [
        {"destination": SOCKETS, "type": "bind", "source": str(shared), "options": ["bind", "rw"]}
    ]
    made["linux"]["namespaces"] = [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")]
    return made


def build_image(layout: Path) -> None:
    """Build the image into an OCI layout. Earlier downloads are used again."""
    require_namespaces()  # the build mounts, too
    for tool in ("buildah", "skopeo", "mmdebstrap"):
        require_tool(tool, f"Debian's {tool}")
    trusted = f"{os.environ.get('PIP_TRUSTED_HOST', '')} {NAME_OF_AN_INDEX}"
    environment = os.environ | {"PYTHON": sys.executable, "PIP_TRUSTED_HOST": trusted}
    built = ran(ROOT / "deploy" / "build-image.sh", "--out", layout, env=environment, seconds=540)
    assert built.returncode == 0, built.stderr


def unpack(layout: Path, bundle: Path) -> None:
    """Make a bundle of an image: its files in `rootfs`, and `config.json` for an OCI runtime."""
    umoci = require_tool("umoci", "Debian's umoci")
    command = [umoci, "unpack", "--image", f"{layout}:dev", str(bundle)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
