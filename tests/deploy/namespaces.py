"""Separate hosts: network namespaces joined by a bridge, with links that fail like real ones."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from helpers.fork_server import no_fork_server
from helpers.restartable import Host
from helpers.tools import missing, ran, require_tool

_CLONE_NEWNET = 0x40000000
_SECONDS = 240.0
_TABLE = "faults"
_PREFIX = "tuplewire"
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def entered(namespace: str) -> Iterator[None]:
    """Move this thread into a network namespace: its new sockets and processes belong to that namespace."""
    with Path("/proc/thread-self/ns/net").open() as here, Path(f"/run/netns/{namespace}").open() as there:
        _set_namespace(there.fileno())
        try:
            with no_fork_server():
                yield
        finally:
            _set_namespace(here.fileno())


def _set_namespace(descriptor: int) -> None:
    if _libc.setns(descriptor, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def _run(*words: str, standard_input: str | None = None) -> None:
    done = ran(*words, input=standard_input, seconds=_SECONDS)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")


def _sweep() -> None:
    """Delete the namespaces of processes that were killed."""
    for namespace in Path("/run/netns").glob(f"{_PREFIX}-*"):
        if not Path("/proc", namespace.name.split("-")[1]).exists():
            _run("ip", "netns", "delete", namespace.name)


class Hosts:
    """Named hosts during a block. If network namespaces are not allowed, the test is skipped, or fails."""

    def __init__(self, names: Sequence[str]) -> None:
        self._hub = f"{_PREFIX}-{os.getpid()}"
        self._numbers = {name: number for number, name in enumerate(names, 1)}
        self._up = ExitStack()

    def __enter__(self) -> Self:
        for tool, package in (("ip", "iproute2"), ("ss", "iproute2"), ("nft", "nftables")):
            require_tool(tool, f"the Debian package {package}")
        with ExitStack() as up:
            try:
                _sweep()
                self._namespace(up, self._hub)
                self._in(self._hub, "link add bridge type bridge", "link set bridge up")
            except RuntimeError as error:
                missing(f"network namespaces are not allowed here ({error}); run as root of a machine")
            for name in self._numbers:
                self._namespace(up, self._inside(name))
                self._connect(name)
            self._up = up.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._up.close()

    def __getitem__(self, name: str) -> Host:
        """Return a host, for starting processes on it."""
        return Host(self.address(name), partial(entered, self._inside(name)), ("--allow-plaintext=true",))

    def address(self, name: str) -> str:
        return f"10.77.0.{self._numbers[name]}"

    def _inside(self, name: str) -> str:
        return f"{self._hub}-{name}"

    def _port(self, name: str) -> str:
        """Return the bridge's end of a host's link."""
        return f"port{self._numbers[name]}"

    @staticmethod
    def _in(namespace: str, *commands: str) -> None:
        _run("ip", "-n", namespace, "-batch", "-", standard_input="\n".join(commands))

    @classmethod
    def _namespace(cls, up: ExitStack, namespace: str) -> None:
        _run("ip", "netns", "add", namespace)
        up.callback(_run, "ip", "netns", "delete", namespace)
        cls._in(namespace, "link set lo up")

    def _connect(self, name: str) -> None:
        hub, inside, port = self._hub, self._inside(name), self._port(name)
        self._in(hub, f"link add {port} type veth peer name uplink netns {inside}")
        self._in(hub, f"link set {port} master bridge", f"link set {port} up")
        self._in(inside, f"address add {self.address(name)}/24 dev uplink", "link set uplink up")

    @contextmanager
    def cut(self, name: str) -> Iterator[None]:
        """Disconnect a host until the end of the block."""
        self._in(self._hub, f"link set {self._port(name)} down")
        try:
            yield
        finally:
            self._in(self._hub, f"link set {self._port(name)} up")

    @contextmanager
    def black_hole(self, near: str, far: str) -> Iterator[None]:
        """Drop every packet between two hosts."""
        peer = self.address(far)
        with self._filtered(near, f"ip saddr {peer} drop", f"ip daddr {peer} drop"):
            yield

    @contextmanager
    def resetting(self, near: str, far: str) -> Iterator[None]:
        """Answer every TCP packet between two hosts with a reset, and reset the existing connections."""
        peer, reset = self.address(far), "tcp flags & rst == 0 reject with tcp reset"
        with self._filtered(near, f"ip saddr {peer} {reset}", f"ip daddr {peer} {reset}"):
            self.kill_connections(near, far)
            yield

    def kill_connections(self, near: str, far: str) -> None:
        """Reset a host's TCP connections to another host, at both ends."""
        _run("ip", "netns", "exec", self._inside(near), "ss", "--kill", "dst", self.address(far))

    @contextmanager
    def _filtered(self, near: str, incoming: str, outgoing: str) -> Iterator[None]:
        inside = ("ip", "netns", "exec", self._inside(near), "nft")
        rules = f"""table ip {_TABLE} {{
            chain incoming {{ type filter hook input priority 0; {incoming}; }}
            chain outgoing {{ type filter hook output priority 0; {outgoing}; }}
        }}"""
        _run(*inside, "-f", "-", standard_input=rules)
        try:
            yield
        finally:
            _run(*inside, "delete", "table", "ip", _TABLE)
