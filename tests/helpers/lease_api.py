"""As much of the Kubernetes API as a lease needs, over TLS: it refuses who has not seen the newest one."""

from __future__ import annotations

import json
import ssl
import threading
from contextlib import AbstractContextManager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from helpers.certificates import Authority
from helpers.served import JsonHandler, served

TOKEN = "a-pods-own-token"  # noqa: S105 - of a stub
_PATH = "/apis/coordination.k8s.io/v1/namespaces/streams/leases"


class LeaseApi(ThreadingHTTPServer):
    """Keeps leases. account: a folder as pods have it mounted. down: answers nobody while it is set."""

    def __init__(self, account: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.account = account
        self.leases: dict[str, Any] = {}
        self.lock = threading.Lock()
        self.down = False
        authority = Authority()
        files = authority.issue("127.0.0.1").write(account)
        (account / "namespace").write_text("streams")
        (account / "token").write_text(f"{TOKEN}\n")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files / "tls.crt", files / "tls.key")
        self.socket = context.wrap_socket(self.socket, server_side=True)

    @property
    def environment(self) -> dict[str, str]:
        """What Kubernetes tells each pod."""
        return {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self.server_port)}

    def holder(self, name: str) -> str:
        """Return who has a lease, if anybody."""
        with self.lock:
            lease = self.leases.get(name)
            return "" if lease is None else str(lease["spec"]["holderIdentity"])


def lease_api(account: Path) -> AbstractContextManager[LeaseApi]:
    """Serve it while the block runs."""
    return served(LeaseApi(account))


class _Handler(JsonHandler, BaseHTTPRequestHandler):
    server: LeaseApi

    def do_GET(self) -> None:
        with self.server.lock:
            found = self.server.leases.get(self.path.removeprefix(f"{_PATH}/"))
            self.answer(HTTPStatus.NOT_FOUND if found is None else HTTPStatus.OK, found or {"message": "no"})

    def do_POST(self) -> None:
        asked = json.loads(self.body())
        name = asked["metadata"]["name"]
        with self.server.lock:
            if self.path != _PATH or name in self.server.leases:
                self.answer(HTTPStatus.CONFLICT, {"message": "it is there"})
                return
            asked["metadata"]["resourceVersion"] = "1"
            self.server.leases[name] = asked
            self.answer(HTTPStatus.CREATED, asked)

    def do_PUT(self) -> None:
        asked = json.loads(self.body())
        name = self.path.removeprefix(f"{_PATH}/")
        with self.server.lock:
            known = self.server.leases[name]["metadata"]["resourceVersion"]
            if asked["metadata"]["resourceVersion"] != known:
                self.answer(HTTPStatus.CONFLICT, {"message": "somebody was first"})
                return
            asked["metadata"]["resourceVersion"] = str(int(known) + 1)
            self.server.leases[name] = asked
            self.answer(HTTPStatus.OK, asked)

    def answer(self, status: HTTPStatus, body: Any) -> None:
        """Answer whoever has the token, unless nobody is to be answered."""
        if self.server.down:
            status, body = HTTPStatus.INTERNAL_SERVER_ERROR, {"message": "down"}
        elif self.headers["Authorization"] != f"Bearer {TOKEN}":
            status, body = HTTPStatus.UNAUTHORIZED, {"message": "who are you?"}
        super().answer(status, body)
