"""Requests to the admin port of a process, as Prometheus and Kubernetes send them."""

from __future__ import annotations

import urllib.error
import urllib.request

_SECONDS = 30


def get(url: str, accept: str = "") -> tuple[int, str]:
    """Return the status and body of any response. accept: a request header."""
    request = urllib.request.Request(url, headers={"Accept": accept})  # noqa: S310 - our own http address
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as response:  # noqa: S310
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def scrape(metrics_url: str) -> str:
    """Return the page of metrics. Raises OSError if there is none."""
    with urllib.request.urlopen(metrics_url, timeout=_SECONDS) as response:  # noqa: S310
        page: bytes = response.read()
    return page.decode()


def samples(metrics_url: str) -> dict[str, float]:
    """Return the value of each sample of one scrape, by its name with labels."""
    lines = [line for line in scrape(metrics_url).splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}
