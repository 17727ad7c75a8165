"""As much of the Kubernetes API as Spark needs to ask for pods: it notes what was asked for."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import yaml

from helpers.manifests import Manifest
from helpers.served import JsonHandler, served

_KINDS = {"pods": "Pod", "configmaps": "ConfigMap"}


class KubernetesApi(ThreadingHTTPServer):
    """Takes whatever is created, says that it runs, and leaves that to others."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.created: list[Manifest] = []

    @property
    def master(self) -> str:
        """What Spark calls it."""
        return f"k8s://http://127.0.0.1:{self.server_port}"

    def of_kind(self, kind: str) -> list[Manifest]:
        """Return what was asked for, of one kind."""
        return [each for each in self.created if each["kind"] == kind]


def kubernetes_api() -> AbstractContextManager[KubernetesApi]:
    """Serve it while the block runs."""
    return served(KubernetesApi())


class _Handler(JsonHandler, BaseHTTPRequestHandler):
    server: KubernetesApi

    def do_GET(self) -> None:
        kind = _KINDS.get(self._resource, "Status")
        version = {"apiVersion": "v1", "kind": f"{kind}List", "metadata": {"resourceVersion": "1"}}
        items = [{**each, "status": {"phase": "Running"}} for each in self.server.of_kind(kind)]
        self.answer(HTTPStatus.OK, {**version, "items": items})

    def do_POST(self) -> None:
        asked = json.loads(self.body())
        self.server.created.append(asked)
        # It answers with a copy: what was asked for stays as it came.
        metadata = {**asked["metadata"], "uid": str(len(self.server.created)), "resourceVersion": "1"}
        self.answer(HTTPStatus.CREATED, {**asked, "metadata": metadata})

    def do_PATCH(self) -> None:
        # Server-side apply, which is how Spark makes all but pods.
        asked = yaml.safe_load(self.body())
        self.server.created.append(asked)
        self.answer(HTTPStatus.OK, asked)

    def do_DELETE(self) -> None:
        self.answer(HTTPStatus.OK, {"apiVersion": "v1", "kind": "Status", "status": "Success"})

    @property
    def _resource(self) -> str:
        return self.path.partition("?")[0].rsplit("/", 1)[-1]
