"""The image as the template's sidecar: its arguments, volumes and user, with a read-only root."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers import eventually
from helpers.admin import get
from helpers.certificates import Authority
from helpers.container import Container, running
from helpers.manifests import Manifest, cluster, container, executor, the

from tuplewire.connection.control_client import ControlClient
from tuplewire.identity.credentials import Credentials

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

OVERLAY = "mtls"
WORKER, GROUP = 186, 185
PROGRAM = f"""
import os, socket, sys
os.chdir(sys.argv[1])
os.setgroups([{GROUP}])
os.setgid(65534)
os.setuid(185)
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect("worker.sock")
    print("connected")
try:
    os.kill(int(sys.argv[2]), 0)
except PermissionError:
    print("no signals")
"""
"""Code in the executor's container: user 185 in any group, and also in the pod's group."""
GIVEN = {"POD_NAME": "a-pod", "POD_IP": "127.0.0.1"}
OWN_PORTS = ("--listen=0.0.0.0:0", "--admin=127.0.0.1:0", "--address-file=/run/tuplewire/addresses.json")


def _volumes(pod: Manifest, folder: Path) -> dict[str, Path]:
    """Create the worker's mounts; as in Kubernetes, secrets belong to root and the pod's group."""
    pod_group = pod["spec"]["securityContext"]["fsGroup"]
    config = folder / "config"
    config.mkdir()
    (config / "worker.toml").write_text(
        the(cluster(OVERLAY), "ConfigMap", "tuplewire-config")["data"]["worker.toml"], encoding="utf-8"
    )
    tls = Authority().issue("worker.tuplewire").write(folder / "tls")
    token = folder / "token"
    token.mkdir()
    (token / "token").write_text("programs 0123456789abcdef0123456789abcdef", encoding="utf-8")
    rules = folder / "rules"
    rules.mkdir()
    for name, text in the(cluster(OVERLAY), "ConfigMap", "tuplewire-permissions")["data"].items():
        (rules / name).write_text(text, encoding="utf-8")
    made = {
        "tuplewire-config": config,
        "tuplewire-permissions": rules,
        "tuplewire-tls": tls,
        "tuplewire-worker-tokens": token,
    }
    for volume in pod["spec"]["volumes"]:
        if "secret" in volume and volume["name"] in made:
            for path in made[volume["name"]].rglob("*"):
                if not path.is_symlink():
                    os.chown(path, 0, pod_group)
                    path.chmod(0o2750 if path.is_dir() else volume["secret"]["defaultMode"])
    return {
        mount["mountPath"]: made[mount["name"]] / mount.get("subPath", "")
        for mount in container(pod)["volumeMounts"]
        if mount["name"] in made
    }


@contextmanager
def _sidecar(bundle: Path, folder: Path, volumes: dict[str, Path]) -> Iterator[Container]:
    worker = container(executor(OVERLAY))
    context = worker["securityContext"]
    arguments = [re.sub(r"\$\((\w+)\)", lambda found: GIVEN[found[1]], text) for text in worker["args"]]
    try:
        with running(
            bundle,
            folder,
            *arguments,
            *OWN_PORTS,
            user=(context["runAsUser"], context["runAsGroup"]),
            volumes=volumes,
            environment=GIVEN,
        ) as sidecar:
            written = sidecar.shared / "addresses.json"
            eventually(lambda: written.exists() or sidecar.process.poll() is not None, 60, "it listens")
            assert sidecar.process.poll() is None, sidecar.log
            yield sidecar
    finally:
        # The runtime created these folders in the image's root, which other tests inspect.
        shutil.rmtree(bundle / "rootfs" / "etc" / "tuplewire", ignore_errors=True)


def test_the_image_runs_as_the_template_says(bundle: Path, tmp_path: Path) -> None:
    """As a separate user, it reads its group's secrets, serves, answers its probe, and drains."""
    volumes = _volumes(executor(OVERLAY), tmp_path)
    token = volumes["/etc/tuplewire/token"] / "token"
    with _sidecar(bundle, tmp_path, volumes) as sidecar:
        addresses = json.loads((sidecar.shared / "addresses.json").read_text(encoding="utf-8"))
        probe = container(executor(OVERLAY))["startupProbe"]["httpGet"]["path"]
        assert get(addresses["metrics_url"].replace("/metrics", probe))[0] == 200
        socket = sidecar.shared / "worker.sock"
        with ControlClient(f"unix://{socket}", credentials=Credentials(token_file=str(token))) as control:
            assert control.status().worker_id == "a-pod"
        assert oct(socket.stat().st_mode & 0o777) == "0o660"
        assert (socket.stat().st_uid, socket.stat().st_gid) == (WORKER, GROUP)
        program = [sys.executable, "-c", PROGRAM, str(sidecar.shared), str(sidecar.pid)]
        done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
        assert (done.stdout, done.returncode) == ("connected\nno signals\n", 0), done.stderr
        sidecar.process.send_signal(signal.SIGTERM)
        assert sidecar.process.wait(60) == 0, sidecar.log
