"""The live page of `tuplewire top --web`: its permissions, and how it names a slow task or bolt."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest
from helpers import eventually
from helpers.browser import browser, page_data, until, web_viewer
from helpers.secured import Authority, files_of, tls_flags, token_files, variables_of
from helpers.traffic import blocked, deliver
from helpers.words import slow_conf, slow_topology
from helpers.worker_process import run_command

from tuplewire import Client
from tuplewire.errors import BindError
from tuplewire.processes.worker_processes import Endpoint, WorkerProcesses
from tuplewire.wire.control_pb2 import GetStatusResponse
from tuplewire_service.command.viewer.live_page import PAGE, LivePage
from tuplewire_service.command.viewer.rates import WorkerSample
from tuplewire_topology.clusters.cluster import DistributedCluster

SLOW_TASK = 3


class Answer(NamedTuple):
    """A response of the viewer."""

    status: int
    headers: dict[str, str]
    body: str


def asked(link: str, path: str, method: str = "GET", **headers: str) -> Answer:
    """Send a request to the viewer."""
    connection = http.client.HTTPConnection(urlsplit(link).netloc, timeout=30)
    with contextlib.closing(connection):
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return Answer(answer.status, dict(answer.getheaders()), answer.read().decode())


@pytest.fixture(scope="module")
def worker() -> Iterator[Endpoint]:
    """Run a worker with a sender, and with a consumer that never acknowledges messages."""
    flags = ["--receive-queue-messages=100"]
    with WorkerProcesses(1, "default", flags=flags, drain_seconds=0.1) as workers:
        workers.assign({0: range(10)})
        at = workers.endpoints[0]
        with blocked(at.address, at.address, SLOW_TASK):
            yield at


@pytest.fixture(scope="module")
def link(worker: Endpoint) -> Iterator[str]:
    """Run a viewer of the worker, and yield the link that it prints."""
    with web_viewer(worker.address) as found:
        yield found


def test_the_page_can_do_nothing_else(link: str) -> None:
    """The page loads nothing external, cannot be framed, runs only its own script, and is below 100 KB."""
    found = asked(link, "/")
    assert found.body == PAGE.read_text(encoding="utf-8")
    assert len(found.body) < 100_000
    assert "//" not in found.body.replace("http://www.w3.org/2000/svg", "")
    policy = found.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "frame-ancestors 'none'" in policy
    assert found.headers["X-Frame-Options"] == "DENY"
    assert found.headers["Content-Type"] == "text/html; charset=utf-8"
    assert asked(link, "/metrics").status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(link: str, method: str) -> None:
    """The page is read-only: the server supports only GET."""
    assert asked(link, "/live.json", method).status == http.HTTPStatus.NOT_IMPLEMENTED


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer é"}])
def test_only_the_link_opens_it(link: str, headers: dict[str, str]) -> None:
    """Other programs on this machine and other sites in the user's browser do not have the token."""
    answer = asked(link, "/live.json", **headers)
    assert (answer.status, answer.body) == (401, "use the link that the command printed\n")


def test_all_who_look_share_one_look() -> None:
    """Each interval polls the workers once, regardless of the number of open browsers."""
    looks = 0

    def look() -> list[WorkerSample]:
        nonlocal looks
        looks += 1
        return [WorkerSample("w", "127.0.0.1:1", GetStatusResponse(worker_id="w", topology="t"))]

    with LivePage(look, 0, interval=3600.0) as page:
        found = [page_data(page.url) for _ in range(3)]
    assert looks == 1
    assert found[0] == found[2]
    assert (found[0]["topology"], found[0]["pace"]) == ("t", 3600.0)
    with LivePage(look, 0, interval=0.0) as page:
        page_data(page.url)
        page_data(page.url)
    assert looks == 3


def test_a_port_in_use_is_named(link: str) -> None:
    """The error names the option that changes the port."""
    port = urlsplit(link).port or 0
    with pytest.raises(BindError, match=f"127.0.0.1:{port} for the page: .*; choose another --port"):
        LivePage(list, port, 1.0)


def test_the_page_is_no_table(worker: Endpoint) -> None:
    """Options for tables are refused together with --web."""
    ended = run_command("top", "--address", worker.address, "--web", "--once")
    assert ended.returncode == 64
    assert "--web cannot be combined with" in ended.stderr


RULES = """
[[client]]
tokens = ["operator"]
control = ["assign"]

[[client]]
send = "*"
"""


def test_it_shows_what_its_user_may_see(tmp_path: Path) -> None:
    """The viewer polls each worker with the user's certificate and token; rules limit the visible senders."""
    authority = Authority()
    certificate = authority.issue("worker.example").write(tmp_path / "worker")
    rules = tmp_path / "permissions.toml"
    rules.write_text(RULES, encoding="utf-8")
    tokens, shown = token_files(tmp_path, "operator", "one", "two")
    program = files_of(authority.issue("jobs.example"), tmp_path / "files", "worker.example")
    mine = {name: replace(program, token_file=each.token_file) for name, each in shown.items()}
    flags = [*tls_flags(certificate), f"--token-file={tokens}", f"--permissions-file={rules}"]
    with WorkerProcesses(
        2, "default", flags=flags, directory=tmp_path, drain_seconds=0.1, credentials=mine["operator"]
    ) as workers:
        workers.assign({0: [1], 1: [2]})
        near, far = workers.endpoints
        with (
            Client(far.address, credentials=mine["one"]) as one,
            Client(far.address, credentials=mine["two"]) as two,
        ):
            for client in (one, two):
                deliver(client, 2, b"x")

            def seen(name: str) -> set[str]:
                with web_viewer(near.address, environment=variables_of(mine[name])) as link:
                    told = page_data(link)
                assert [each["state"] for each in told["workers"]] == ["ready", "ready"]
                return {each["identity"] for each in told["senders"] if each["worker"] == "worker-1"}

            assert {"token one", "token two"} <= seen("operator")
            assert seen("one") == {"token one"}


def test_a_browser_shows_the_culprit(link: str, tmp_path: Path) -> None:
    """The page names the blocking task and shows it in red; tabs and filter work without browser errors."""
    eventually(lambda: page_data(link)["problems"], 60, "somebody blocks")
    with browser(tmp_path) as tab:
        tab.open(link)
        sentence = f"task {SLOW_TASK} at worker-0 blocks senders at worker-0"
        until(tab, f"by('blocking').innerText.includes('{sentence}')", "the culprit is named")
        first = "document.querySelector('#body tr')"
        held = f"{first}.cells[0].innerText === '{SLOW_TASK}' && {first}.className === 'held'"
        until(tab, held, "its row is first")
        red = "getComputedStyle(document.querySelector('#blocking p')).color"
        box = "document.querySelector('#worker-worker-0 .box')"
        until(tab, f"getComputedStyle({first}.cells[0]).color === {red}", "its row is red")
        until(tab, f"getComputedStyle({box}).stroke === {red}", "the worker is red")
        square = f"document.querySelector('[aria-label=\"task {SLOW_TASK}, blocks others\"]')"
        until(tab, f"getComputedStyle({square}).fill === {red}", "its square is red")
        captions = "[...document.querySelectorAll('#lines figcaption')]"
        assert tab.value(f"{captions}.map(each => each.firstChild.textContent)") == [
            "Accepted",
            "Acknowledged",
            "End to end, 99 %",
            "In a queue, 99 %",
            "Pending",
            "Blocked",
            "Dropped",
        ]
        ledger = "/^Accepted [0-9,]+ = acknowledged 0 [+] dropped 0 [+] pending/"
        assert tab.value(f"{ledger}.test(by('ledger').innerText)")
        tab.value(f"{first}.click()")
        until(tab, "document.querySelector('#detail').innerText.includes('sleeps')", "the task by itself")
        tab.value(f"{box}.parentNode.onclick()")
        until(tab, "by('detailtitle').innerText === 'worker worker-0'", "the worker by itself")
        for kind, name in (("consumer", "sleeps"), ("sender", "sends")):
            tab.value(f"document.querySelector('#tab-{kind}s').click()")
            until(tab, f"{first}.cells[0].innerText === '{name}'", f"the {kind}s")
            tab.value(f"{first}.click()")
            until(tab, f"by('detailtitle').innerText === '{kind} {name}'", f"a {kind} by itself")
        tab.value("const f = document.querySelector('#filter'); f.value = 'nobody'; f.oninput()")
        until(tab, "document.querySelectorAll('#body tr').length === 0", "the filter")
        tab.resize(390, 800)
        until(tab, "document.documentElement.scrollWidth <= 390", "it fits a phone")
        assert tab.complaints == []


def test_a_browser_shows_what_is_dead(tmp_path: Path) -> None:
    """Dead workers are named and red, with the tasks they have; without the viewer, the page is grey."""
    with WorkerProcesses(2, "default", drain_seconds=0.1) as workers, browser(tmp_path) as tab:
        workers.assign({0: [1000], 1: range(250)})
        near, far = workers.endpoints
        with web_viewer(near.address) as link:
            tab.open(link)
            until(tab, "last.workers[1].state === 'ready'", "both are ready")
            os.kill(far.process_id, signal.SIGKILL)
            named = "/^worker-1 has not answered for [0-9]+ s/.test(by('blocking').innerText)"
            until(tab, named, "the worker is named")
            red = tab.value("getComputedStyle(by('blocking').firstChild).color")
            assert (
                tab.value("getComputedStyle(document.querySelector('#worker-worker-1 .box')).stroke") == red
            )
            assert tab.value("getComputedStyle(document.querySelector('.bar.dead')).backgroundColor") == red
            box = tab.value("by('worker-worker-1').textContent")
            assert re.search(r"worker-1no answer for [\d.]+ m?s250 tasks", box), box
            os.kill(near.process_id, signal.SIGKILL)
            until(tab, "/^no answer for/.test(by('state').innerText)", "the first worker is dead, too")
            assert tab.value("getComputedStyle(by('state')).color") == red
            assert tab.value("by('title').innerText").startswith("Topology default, 2 workers")
            assert tab.complaints == []
        until(tab, "by('main').className === 'stale'", "the page itself is old")
        assert "does not answer; the values are old" in tab.value("by('state').innerText")


BOX = "getComputedStyle(document.querySelector('#component-{} .box')).stroke"


@pytest.fixture
def urls(tmp_path: Path) -> Iterator[list[str]]:
    """Run the topology in two processes with a viewer of each, and yield the links to the pages."""
    slow = tmp_path / "slow"
    with DistributedCluster() as cluster, ExitStack() as viewers:
        running = cluster.submit("words", slow_conf(slow), slow_topology())
        yield [viewers.enter_context(web_viewer(each)) for each in running.addresses]
        slow.unlink(missing_ok=True)


@pytest.mark.slow
def test_a_stranger_finds_the_slow_bolt(urls: list[str], tmp_path: Path) -> None:
    """The page shows the slow bolt and the blocked component until it recovers, also on a phone."""
    slow = tmp_path / "slow"
    for url in urls:
        shown = {each["component"] for each in page_data(url)["components"]}
        assert shown == {"lines", "split", "count", "store"}
    with browser(tmp_path / "profile") as tab:
        tab.open(urls[0])
        until(tab, "by('map').querySelectorAll('[id^=component-]').length === 4", "the topology is drawn")
        until(tab, f"{BOX.format('count')} === {BOX.format('split')}", "nobody is slow yet")
        widths = "last.edges.map(e => width(e.rate))"
        until(tab, f"last.edges.every(e => e.rate > 0) && new Set({widths}).size > 1", "tuples flow")
        drawn = "[...by('map').querySelectorAll('path')].map(each => +each.getAttribute('stroke-width'))"
        assert tab.value(f"String({drawn}) === String({widths})")  # widths of the edges by rate
        press = "dispatchEvent(new KeyboardEvent('keydown', {{key: '{}', bubbles: true}}))"
        tab.value("by('component-split').focus()")
        tab.value(f"by('component-split').{press.format('Enter')}")
        assert tab.value("document.activeElement.innerText") == "component split"
        until(tab, "by('trail').querySelectorAll('figure').length === 2", "its time lines")
        tab.value(f"document.activeElement.{press.format('Escape')}")
        tab.value("window.seen = last")
        until(tab, "window.seen !== last", "it is drawn anew")
        assert tab.value("document.activeElement.id") == "component-split"  # the focus is unchanged
        nameless = (
            "[...document.querySelectorAll('[role=button], [role=img], button, input')].filter(each => "
            "!each.ariaLabel && !each.textContent.trim() && !each.closest('label')).map(each => each.id)"
        )
        assert tab.value(nameless) == []
        slow.touch()
        until(tab, "by('blocking').innerText.includes('bolt count is slow')", "the culprit is named")
        until(tab, "by('blocking').innerText.includes('blocks split')", "and whom it blocks")
        red = tab.value("getComputedStyle(by('blocking').firstChild).color")
        until(tab, f"{BOX.format('count')} === '{red}'", "the culprit is red")
        until(tab, f"{BOX.format('store')} !== '{red}'", "who comes after it is not, once its queue is done")
        assert tab.value("by('news').textContent.includes('bolt count is slow')")  # for a screen reader
        slow.unlink()
        until(tab, f"{BOX.format('count')} !== '{red}' && !by('blocking').innerText", "all is well")
        tab.resize(390, 800)
        assert tab.value("document.documentElement.scrollWidth") <= 390
        ground = "getComputedStyle(document.body).backgroundColor"
        light = tab.value(ground)
        tab.dark()
        assert tab.value(ground) != light
        assert tab.complaints == []
