"""A real Prometheus with the project's configuration, queries to it, and its check of metrics."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import yaml

from helpers.tools import ROOT, ran, require_tool
from tuplewire.processes.child import Child, Command
from tuplewire.processes.worker_processes import Endpoint
from tuplewire_service.testing import eventually

PROMETHEUS = ROOT / "deploy" / "prometheus"
RATE_INTERVAL = "10s"
Sample = tuple[Mapping[str, str], float]
"""The labels of a series and its value."""


def discovered(name: str, address: str, **labels: str) -> dict[str, Any]:
    """Return a native sidecar's port as Kubernetes discovers it. labels: without `__meta_kubernetes_`."""
    usual = {
        "namespace": "spark",
        "pod_name": name,
        "pod_phase": "Running",
        "pod_label_app_kubernetes_io_name": "tuplewire",
        "pod_label_app_kubernetes_io_component": "executor",
        "pod_container_name": "tuplewire",
        "pod_container_init": "true",
        "pod_container_port_name": "metrics",
    }
    found = {f"__meta_kubernetes_{key}": value for key, value in {**usual, **labels}.items()}
    return {"targets": [address], "labels": found}


def with_files(targets: Iterable[Mapping[str, Any]], directory: Path) -> dict[str, Any]:
    """Return the project's prometheus.yml with the targets of a file in place of a cluster's."""
    file = directory / "targets.json"
    file.write_text(json.dumps(list(targets)), encoding="utf-8")
    config: dict[str, Any] = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text(encoding="utf-8"))
    (job,) = config["scrape_configs"]
    # Debian's Prometheus is built without Kubernetes' discovery and rejects its settings.
    del job["kubernetes_sd_configs"]
    job["file_sd_configs"] = [{"files": [str(file)]}]
    config["rule_files"] = [str(PROMETHEUS / "rules.yml")]
    return config


def promtool_accepts(page: str) -> None:
    """Fail unless promtool accepts the names, types and help texts of a page of metrics."""
    promtool = require_tool("promtool", "Debian's package prometheus")
    checked = ran(promtool, "check", "metrics", input=page)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


class Prometheus:
    """Scrapes workers every second, with accelerated rules. It stops at the end of the block."""

    def __init__(self, workers: Iterable[Endpoint], directory: Path) -> None:
        program = require_tool("prometheus", "Debian's package prometheus")
        targets = [
            discovered(each.worker_id, urllib.parse.urlsplit(each.metrics_url).netloc) for each in workers
        ]
        config = with_files(targets, directory)
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        rules = directory / "rules.yml"
        usual = re.sub(r"for: \d+m", "for: 2s", (PROMETHEUS / "rules.yml").read_text(encoding="utf-8"))
        rules.write_text(re.sub(r"\[\d+m\]", f"[{RATE_INTERVAL}]", usual), encoding="utf-8")
        config["rule_files"] = [str(rules)]
        file = directory / "prometheus.yml"
        file.write_text(yaml.safe_dump(config), encoding="utf-8")
        self._command = Command(
            name="prometheus",
            arguments=[
                program,
                f"--config.file={file}",
                f"--storage.tsdb.path={directory / 'data'}",
                "--web.listen-address=127.0.0.1:0",
            ],
            log_path=directory / "prometheus.log",
        )
        self._address = ""

    def __enter__(self) -> Self:
        self._child = Child(self._command)
        try:
            eventually(self._listens, 30, "Prometheus listens")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._child.process.terminate()
        self._child.wait_or_kill(time.monotonic() + 20)

    def _listens(self) -> bool:
        log = self._command.log_path.read_text(encoding="utf-8")
        found = re.search(r'msg="Listening on".* address=(\S+)', log)
        self._address = found[1] if found else ""
        assert self._child.process.poll() is None, self._child.log_tail()
        return bool(found) and "Server is ready" in log

    def _get(self, path: str, **parameters: str) -> Any:
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error

    def query(self, expression: str) -> list[Sample]:
        """Return the current samples of an expression, one per series. An error raises AssertionError."""
        result = self._get("query", query=expression)["result"]
        return [(each["metric"], float(each["value"][1])) for each in result]

    def range(self, expression: str, began: float, ended: float, step: int, *, now: bool) -> list[Any]:
        """Return the samples of an expression in a time range, in Prometheus's form; now: only at its end."""
        if now:
            found = self._get("query", query=expression, time=str(ended))
        else:
            found = self._get(
                "query_range", query=expression, start=str(began), end=str(ended), step=str(step)
            )
        result: list[Any] = found["result"]
        return result

    def until(self, expression: str, satisfied: Callable[[list[Sample]], bool]) -> None:
        """Wait, for at most a minute, until the samples of an expression satisfy a condition."""
        deadline = time.monotonic() + 60
        while not satisfied(samples := self.query(expression)):
            assert time.monotonic() < deadline, f"{expression}\ngives {samples}"
            # It scrapes once a second; more frequent queries would only use CPU time.
            time.sleep(0.2)

    def targets(self) -> list[dict[str, Any]]:
        """Return the targets that are scraped, with `labels`, `health` and `lastError`."""
        active: list[dict[str, Any]] = self._get("targets", state="active")["activeTargets"]
        return active

    def firing(self, alert: str) -> list[dict[str, Any]]:
        """Return the firing instances of an alert, with `labels` and `annotations`."""
        return [
            each
            for each in self._get("alerts")["alerts"]
            if each["state"] == "firing" and each["labels"]["alertname"] == alert
        ]

    def names(self) -> list[str]:
        """Return the name of every metric that was ever scraped or recorded."""
        known: list[str] = self._get("label/__name__/values")
        return known
