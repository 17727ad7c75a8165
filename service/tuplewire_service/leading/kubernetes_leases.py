"""A lease that Kubernetes keeps (coordination.k8s.io/v1), by the API and the account that a pod has."""

from __future__ import annotations

import http.client
import json
import os
import ssl
from http import HTTPStatus
from pathlib import Path
from typing import Any

from tuplewire.addresses import bracketed
from tuplewire.errors import ConfigError, UnreachableError
from tuplewire_service.leading.lease import LEASE_SECONDS, Lease

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod has its account."""
_TIMEOUT_SECONDS = 1.5


class KubernetesLeases:
    """One lease of the pod's namespace. For use on one thread.

    Raises ConfigError where this is no pod with an account.
    """

    def __init__(self, name: str, account: Path = ACCOUNT) -> None:
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
        if not host or not port:
            raise ConfigError(
                "a lease is for pods of Kubernetes, and KUBERNETES_SERVICE_HOST and _PORT are not set here: "
                "leave it out where one program alone assigns"
            )
        self._name = name
        self._account = account
        self._address = bracketed(host), int(port)
        try:
            namespace = (account / "namespace").read_text(encoding="utf-8").strip()
            self._context = ssl.create_default_context(cafile=str(account / "ca.crt"))
        except OSError as error:
            raise ConfigError(
                f"cannot read the pod's account in {account}: {error}; set automountServiceAccountToken"
            ) from error
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"

    def get(self) -> Lease | None:
        """Return what is kept, or None where there is nothing; UnreachableError."""
        status, answer = self._call("GET", f"{self._path}/{self._name}", None)
        if status == HTTPStatus.NOT_FOUND:
            return None
        spec = self._expect(status, answer, HTTPStatus.OK).get("spec", {})
        return Lease(
            spec.get("holderIdentity") or "",
            spec.get("leaseDurationSeconds") or LEASE_SECONDS,
            spec.get("renewTime") or "",
            spec.get("acquireTime") or "",
            spec.get("leaseTransitions") or 0,
            answer["metadata"]["resourceVersion"],
        )

    def put(self, lease: Lease) -> bool:
        """Write it; False where somebody has written meanwhile. Raises UnreachableError."""
        metadata = {"name": self._name, "resourceVersion": lease.version}
        if not lease.version:
            del metadata["resourceVersion"]
        spec = {
            "holderIdentity": lease.holder,
            "leaseDurationSeconds": lease.seconds,
            "acquireTime": lease.acquired,
            "renewTime": lease.renewed,
            "leaseTransitions": lease.transitions,
        }
        content = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": spec,
        }
        if lease.version:
            status, answer = self._call("PUT", f"{self._path}/{self._name}", content)
        else:
            status, answer = self._call("POST", self._path, content)
        if status == HTTPStatus.CONFLICT:
            return False
        self._expect(status, answer, HTTPStatus.OK, HTTPStatus.CREATED)
        return True

    def _call(self, method: str, path: str, content: Any) -> tuple[int, Any]:
        try:
            # Read each time: Kubernetes replaces it.
            token = (self._account / "token").read_text(encoding="utf-8").strip()
            host, port = self._address
            connection = http.client.HTTPSConnection(
                host, port, timeout=_TIMEOUT_SECONDS, context=self._context
            )
            try:
                body = None if content is None else json.dumps(content)
                headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
                connection.request(method, path, body, headers)
                response = connection.getresponse()
                return response.status, json.loads(response.read())
            finally:
                connection.close()
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise UnreachableError(f"the Kubernetes API does not answer: {error}") from error

    def _expect(self, status: int, answer: Any, *expected: int) -> Any:
        if status not in expected:
            message = answer.get("message", "") if isinstance(answer, dict) else ""
            raise UnreachableError(
                f"the Kubernetes API answers {status} for the lease {self._name}: {message}"
            )
        return answer
