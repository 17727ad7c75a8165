"""The part of the Kubernetes API that Spark needs to create pods. It records the requests."""

from __future__ import annotations

import json
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import yaml

from helpers.manifests import Manifest
from helpers.served import JsonHandler

_KINDS = {"pods": "Pod", "configmaps": "ConfigMap"}


class KubernetesApi(ThreadingHTTPServer):
    """Accepts every resource, and reports it as running without starting anything. Run it by served()."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.created: list[Manifest] = []

    @property
    def master(self) -> str:
        """The address of this server, as a Spark master."""
        return f"k8s://http://127.0.0.1:{self.server_port}"

    def of_kind(self, kind: str) -> list[Manifest]:
        """Return the created resources of one kind."""
        return [each for each in self.created if each["kind"] == kind]


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
        # The answer is a copy: the recorded resource stays unchanged.
        metadata = {**asked["metadata"], "uid": str(len(self.server.created)), "resourceVersion": "1"}
        self.answer(HTTPStatus.CREATED, {**asked, "metadata": metadata})

    def do_PATCH(self) -> None:
        # Server-side apply, which Spark uses for everything except pods.
        asked = yaml.safe_load(self.body())
        self.server.created.append(asked)
        self.answer(HTTPStatus.OK, asked)

    def do_DELETE(self) -> None:
        self.answer(HTTPStatus.OK, {"apiVersion": "v1", "kind": "Status", "status": "Success"})

    @property
    def _resource(self) -> str:
        return self.path.partition("?")[0].rsplit("/", 1)[-1]
