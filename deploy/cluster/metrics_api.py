"""A small custom-metrics API for the autoscaling step, which serves the workers' own metrics to Kubernetes.

    python metrics_api.py SERVICE FOLDER

SERVICE is the headless Service of the workers; FOLDER has the certificate, tls.crt and tls.key. A cluster in
production has an adapter of Prometheus instead. Source of the paths: custom.metrics.k8s.io/v1beta2.
"""

from __future__ import annotations

import json
import re
import ssl
import sys
import urllib.request
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from prometheus_client.parser import text_string_to_metric_families

PORT = 6443
MOST_WORKERS = 4
METRIC = "tuplewire_fullest_queue_ratio"
VERSION = "custom.metrics.k8s.io/v1beta2"
PATH = re.compile(rf"/apis/{re.escape(VERSION)}/namespaces/([^/]+)/pods/\*/{METRIC}")


class Metrics(BaseHTTPRequestHandler):
    """Answers the discovery of the API, and the metric of all pods of a namespace."""

    service = ""

    def do_GET(self) -> None:
        """Answer a request of the API server."""
        path = unquote(self.path.partition("?")[0])
        if path.rstrip("/") == f"/apis/{VERSION}":
            resource = {"name": f"pods/{METRIC}", "singularName": "", "namespaced": True}
            resource |= {"kind": "MetricValueList", "verbs": ["get"]}
            self._answer(
                {
                    "kind": "APIResourceList",
                    "apiVersion": "v1",
                    "groupVersion": VERSION,
                    "resources": [resource],
                }
            )
        elif match := PATH.fullmatch(path):
            items = [value for number in range(MOST_WORKERS) if (value := self._of_pod(match[1], number))]
            self._answer({"kind": "MetricValueList", "apiVersion": VERSION, "metadata": {}, "items": items})
        else:
            self.send_error(404)

    def _of_pod(self, namespace: str, number: int) -> dict[str, Any] | None:
        """Return the value of a worker's pod; None if no worker answers there."""
        pod = f"tuplewire-worker-{number}"
        try:
            with urllib.request.urlopen(f"http://{pod}.{self.service}:9464/metrics", timeout=2) as response:
                text = response.read().decode()
        except OSError:
            return None
        (value,) = (
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == METRIC
        )
        return {
            "describedObject": {"kind": "Pod", "namespace": namespace, "name": pod, "apiVersion": "/v1"},
            "metric": {"name": METRIC},
            "timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "value": f"{round(value * 1000)}m",
        }

    def _answer(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    """Serve until the process ends."""
    Metrics.service, folder = sys.argv[1], Path(sys.argv[2])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    server = ThreadingHTTPServer(("", PORT), Metrics)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
