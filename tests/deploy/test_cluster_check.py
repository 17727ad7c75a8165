"""`make cluster-check` without a cluster: the commands it would run, and its job with real workers."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import yaml
from helpers import eventually
from helpers.manifests import VERSIONS, check_pod, container, executor, rendered, the, validate
from helpers.restartable import RestartableWorker
from helpers.tools import ROOT, ran
from helpers.topology import TOPOLOGY, acknowledged, assignment_file

SCRIPT = ROOT / "deploy" / "cluster-check.sh"
JOB = ROOT / "deploy" / "cluster_job.py"
IMAGE = "r.example/tuplewire:1"
BASH = shutil.which("bash") or "/bin/bash"
CONTEXT = ("--yes", "--image", IMAGE)
"""An existing cluster."""
ROUNDS = {
    "plain": [
        *("Workers", "A job", "A task elsewhere", "A page", "A pod", "An upgrade", "The end"),
        *("A memory limit", "The guide"),
    ],
    "secure": [
        *("Workers", "A worker beside an executor", "A stranger", "A job", "A task elsewhere", "A page"),
        *("A drain", "A roll", "A pod", "An upgrade", "The end", "The release", "The default manifests"),
    ],
}
STEPS = [f"{name}: {step}" for name, steps in ROUNDS.items() for step in steps]
"""Steps that run in every cluster."""
STEPS_OF_ITS_OWN = ["cluster: The image", "secure: A node", "secure: Autoscaling"]
"""Further steps if the check creates the cluster."""
STEPS_OF_NODES = [
    *("plain: Spark in cluster mode", "secure: A stranger over IPv6", "secure: Spark in client mode"),
    *("secure: A stream", "plain: A Team", "secure: A Team"),
]
"""Further steps in the cluster of deploy/cluster only."""
REMOVES: dict[object, str] = {
    (): "deploy/cluster/down.sh",
    ("--kind",): "kind delete cluster",
    CONTEXT: "delete namespace",
}
_WAIT_SECONDS = 60.0


Run = Callable[..., subprocess.CompletedProcess[str]]
"""Runs the script with arguments, and with environment variables."""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that runs the script with only `cat` on PATH: no kubectl, docker or kind."""
    (tmp_path / "cat").symlink_to(shutil.which("cat") or "/bin/cat")
    return partial(_run, PATH=str(tmp_path))


def _run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return ran(BASH, SCRIPT, *words, env=environment)


@pytest.mark.parametrize("words", [(), ("--kind",), CONTEXT], ids=["nodes", "kind", "context"])
def test_it_prints_what_it_would_run(run: Run, words: tuple[str, ...]) -> None:
    """Each step prints its purpose and commands; everything created is removed. No tool is needed."""
    done = run("--print", *words)
    assert (done.returncode, done.stderr) == (0, "")
    found = re.findall(r"(?m)^== \d+\. (.*)\n   shows: .+\n\$ ", done.stdout)
    its_own = words != CONTEXT
    assert [each for each in found if each in STEPS] == STEPS
    assert [each for each in STEPS_OF_ITS_OWN if each in found] == (STEPS_OF_ITS_OWN if its_own else [])
    assert [each for each in STEPS_OF_NODES if each in found] == (STEPS_OF_NODES if words == () else [])
    assert (" drain NODE" in done.stdout) == its_own
    assert ("kind create" in done.stdout) == ("docker " in done.stdout) == ("--kind" in words)
    assert done.stdout.endswith("\n\nNothing was run.\n")
    assert REMOVES[words] in done.stdout
    kept = run("--print", "--keep", *words).stdout
    assert not any(each in kept for each in REMOVES.values())


@pytest.mark.parametrize("name", ROUNDS)
def test_one_round_alone(run: Run, name: str) -> None:
    """It runs only the steps of that round, in its namespace."""
    output = run("--print", *CONTEXT, "--only", name).stdout
    assert re.findall(r"(?m)^== \d+\. (?!cluster)(.*)$", output) == [
        f"{name}: {step}" for step in ROUNDS[name]
    ]
    assert set(re.findall(r"--namespace (\S+)", output)) == {f"tuplewire-{name}"}


def test_it_runs_the_commands_of_the_guide(run: Run) -> None:
    """The printed commands include every kubectl and helm command of docs/how-to/deploy.md, unchanged."""
    guide = (ROOT / "docs" / "how-to" / "deploy.md").read_text(encoding="utf-8")
    blocks = re.findall(r"(?ms)^```(\w*)\n(.*?)^```$", guide)
    code = "\n".join(text for language, text in blocks if not language)
    wanted = [line for line in code.splitlines() if line.lstrip().startswith(("helm ", "kubectl ", "secret"))]
    assert len(wanted) > 15
    printed = {line.removeprefix("$ ") for line in run("--print").stdout.splitlines()}
    assert [line for line in wanted if line not in printed] == []


@pytest.mark.parametrize("name", ROUNDS)
def test_what_it_applies_keeps_the_schemas(run: Run, name: str) -> None:
    """The jobs satisfy the `restricted` pod security standard, and the objects of each step are valid."""
    output = run("--print", "--only", name).stdout
    inputs = re.findall(r"(?ms)^\$ [^\n]* <<END\n(.*?)^END$", output)  # of the printed commands
    loaded = (each for text in inputs for each in yaml.safe_load_all(text))
    space, *others = (each for each in loaded if isinstance(each, dict))
    assert space["metadata"]["labels"] == {"pod-security.kubernetes.io/enforce": "restricted"}
    for version in VERSIONS:
        for each in (space, *others):
            if each["kind"] != "APIService":
                validate(each, version)
    jobs = [each for each in others if each["kind"] == "Job"]
    expected = {"recv", "send", "elsewhere", "upgraded", "submit-topology", "submit-team"}
    if name == "plain":
        expected |= {"outgrow"}
    else:
        expected |= {"friend", "stranger", "stranger-6", "submit-sink", "submit-stream", "scaling"}
    assert {job["metadata"]["name"] for job in jobs} == expected
    for job in jobs:
        check_pod(job["spec"]["template"])
        spec = job["spec"]["template"]["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (program,) = spec["containers"]
        assert program["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
        spark = job["metadata"]["name"].startswith("submit-")
        assert program["image"] == ("localhost/spark:dev" if spark else "localhost/tuplewire:dev")


def test_the_pod_with_a_sidecar_is_whole(run: Run) -> None:
    """The pod is the executor's template, with another program in place of Spark."""
    output = run("--print", *CONTEXT, "--only", "secure").stdout
    (patch,) = re.findall(r"--patch \$'(.*?)' \|", output)
    pod = {**executor("dev"), "spec": {**executor("dev")["spec"]}}
    pod["spec"]["containers"] = [dict(container(pod, "spark-kubernetes-executor"))]
    for each in json.loads(patch.replace(r"\n", "\n")):
        assert each["op"] == "add"
        *_, field = each["path"].split("/")
        (pod["spec"]["containers"][0] if "containers" in each["path"] else pod["spec"])[field] = each["value"]
    check_pod(pod)
    assert container(pod, "spark-kubernetes-executor")["image"] == IMAGE
    for version in VERSIONS:
        validate(pod, version)


def test_the_workers_are_those_that_the_job_names(run: Run) -> None:
    """Both as installed and as rendered, the chart has two workers, and worker 1 owns the tasks 4 and 5."""
    for name in ROUNDS:
        output = run("--print", *CONTEXT, "--only", name).stdout.replace("\\,", ",")
        line, *_ = re.findall(r"helm .*(?:install|template) .*--values.*", output)
        flags = re.findall(r"--(?:values|set|set-string) \S+", line)
        manifests = rendered(*" ".join(flags).split())
        stateful = the(manifests, "StatefulSet")["spec"]
        assert (container(stateful["template"])["image"], stateful["replicas"]) == (IMAGE, 2)
        data = the(manifests, "ConfigMap", "tuplewire-assignment")["data"]["assignment.json"]
        tasks = {each["worker_id"]: each["tasks"] for each in json.loads(data)["workers"]}
        assert {4, 5} <= set(tasks["tuplewire-worker-1"])
        assert len(tasks) == 2


@pytest.fixture
def stubbed(tmp_path: Path) -> Run:
    """Return a function that runs the script with tools that record their arguments, and fail at BREAK."""
    folder = tmp_path / "stubs"
    folder.mkdir()
    for name in ("cat", "grep", "ln", "mkdir", "mktemp", "rm", "sed", "sleep"):
        (folder / name).symlink_to(shutil.which(name) or name)
    python = folder / "python3"
    python.write_text(f"#!{BASH}\n{PYTHON}".replace("PYTHON", str(Path(sys.executable).resolve())))
    python.chmod(0o755)
    for name in ("docker", "helm", "kind", "kubectl", "openssl"):
        stub = folder / name
        stub.write_text(STUB.replace("NAME", name).replace("BASH", BASH))
        stub.chmod(0o755)
    return partial(_run, PATH=str(folder), ASKED=str(tmp_path / "asked"))


PYTHON = """[[ ${1:-} != -c ]] || { echo ready ready; exit; }
exec PYTHON "$@"
"""
STUB = """#!BASH
echo "NAME $*" >>"$ASKED"
case " $* " in
    *" template "*) echo "image: a-chart" ;;
    *restartCount*) echo 0 0 ;;
    *" get pod tuplewire-worker-"*) echo "node-of-$7" ;;
    *" -- python - "*) echo "${CODE:-$(PYTHONPATH=clients:service:topology python3 -)}" ;;
    *" port-forward "* | *" --web "*) exec sleep 60 ;;
    *" logs job/scaling "*) echo "full: all" ;;
    *" current-context "*) echo somewhere ;;
    *" --filename - "*) cat >>"$ASKED.inputs"; cat "$ASKED.inputs" ;;
esac
[[ -z ${BREAK:-} || " $* " != *" $BREAK "* ]]
"""


@pytest.mark.parametrize("words", [("--kind",), CONTEXT], ids=["kind", "context"])
def test_the_steps_go_through(stubbed: Run, tmp_path: Path, words: tuple[str, ...]) -> None:
    """If every tool succeeds, all steps run in order, on one cluster, and the cluster is cleaned up."""
    done = stubbed(*words)
    assert (done.returncode, done.stderr) == (0, "")
    steps = re.findall(r"(?m)^== \d+\. (.*)$", done.stdout)
    assert f"The {len(steps)} steps are through." in done.stdout
    lines = (tmp_path / "asked").read_text(encoding="utf-8").splitlines()
    context = "--context somewhere" if words == CONTEXT else "--context kind-tuplewire-check"
    local = ("kubectl patch --local", "kubectl config")
    assert all(context in line for line in lines if line.startswith("kubectl") and not line.startswith(local))
    assert "image: a-chart" in (tmp_path / "asked.inputs").read_text()
    assert REMOVES[words] in lines[-1]
    assert any(" drain node-of-tuplewire-worker-1 " in line for line in lines) == (words != CONTEXT)


def test_a_pod_with_other_code_is_a_failure(stubbed: Run) -> None:
    """A worker with an image from another commit fails the check, and the error names the worker."""
    done = stubbed("--kind", CODE="other")
    assert done.returncode == 1
    assert "tuplewire-worker-0 does not run this commit" in done.stderr
    assert "FAILED: plain: The end" in done.stderr


def test_a_step_that_fails_is_named(stubbed: Run, tmp_path: Path) -> None:
    """The script exits with 1, prints the cluster's state, and removes only its own objects."""
    done = stubbed("--kind", BREAK="rollout restart")
    assert done.returncode == 1
    assert "FAILED: secure: A roll" in done.stderr
    lines = (tmp_path / "asked").read_text(encoding="utf-8").splitlines()
    assert any(" get pods,jobs,events" in line for line in lines)
    assert lines[-1] == "kind delete cluster --name tuplewire-check"
    for words, broken in ((("--kind",), "create cluster"), (CONTEXT, "create")):
        (tmp_path / "asked").unlink()
        assert stubbed(*words, BREAK=broken).returncode == 1
        assert "delete" not in (tmp_path / "asked").read_text(encoding="utf-8")


def test_what_is_missing_is_named(run: Run) -> None:
    """Without its tools, the script runs nothing, lists the missing tools, and has a separate exit code."""
    everywhere = {"openssl", "python3", "kubectl"}
    for words, expected in (
        (("--kind",), {*everywhere, "kind", "docker"}),
        (CONTEXT, everywhere),
        ((), {"apt-get"}),
    ):
        done = run(*words)
        assert (done.returncode, done.stdout) == (69, "")
        told, *lines = done.stderr.splitlines()
        assert "NOT CHECKED, nothing was run" in told
        tools = {line.split()[0] for line in lines} - {"helm", "go"}  # which may be installed
        assert tools >= expected
        assert tools == expected or not words


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--yse",), "unknown argument --yse"),
        (("--yes",), "--yes needs --image"),
        (("--image",), "--image needs a value"),
        (("--only", "both"), "--only is plain or secure, not both"),
        (("--image", "r.example/tuplewire:1"), "--image is for --yes and --kind"),
        (("--kind", "--image", "r.example:5000/tuplewire"), "--image needs a tag"),
    ],
)
def test_wrong_usage(run: Run, words: tuple[str, ...], problem: str) -> None:
    """The script exits immediately, and its error refers to --help."""
    done = run(*words)
    assert (done.returncode, done.stdout) == (64, "")
    assert problem in done.stderr
    assert "see --help" in done.stderr


@pytest.mark.slow
def test_the_job_outlives_a_roll_of_both_workers(tmp_path: Path) -> None:
    """Both workers are drained and restarted under load; all sent messages are received once, in order."""
    assignment, stop = tmp_path / "assignment.json", tmp_path / "stop"
    environment = {**os.environ, "TUPLEWIRE_TOPOLOGY": TOPOLOGY}

    def program(*words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, JOB, *words], env=environment, stdout=subprocess.PIPE, text=True
        )

    with (
        RestartableWorker("near", tmp_path, assignment) as near,
        RestartableWorker("far", tmp_path, assignment) as far,
    ):
        assignment_file(tmp_path, 1, {near.endpoint: [0], far.endpoint: [4]})
        near.wait_ready()
        far.wait_ready()
        with program("elsewhere", near.endpoint.address, "4") as elsewhere:
            found = elsewhere.communicate(timeout=_WAIT_SECONDS)[0]
        assert found == "received 100 messages of another worker's task\n"
        with (
            program("recv", far.endpoint.address, "4") as receiver,
            program("send", near.endpoint.address, "4", str(stop)) as sender,
        ):
            try:
                for worker in (far, near):
                    eventually(lambda: acknowledged(far.endpoint, 4) > 100, _WAIT_SECONDS, "it runs")
                    assert worker.restart().exit_code == 0
                eventually(lambda: acknowledged(far.endpoint, 4) > 100, _WAIT_SECONDS, "it goes on")
                stop.touch()
                sent, received = (each.communicate(timeout=_WAIT_SECONDS)[0] for each in (sender, receiver))
            finally:
                sender.kill()
                receiver.kill()
        assert (sender.returncode, receiver.returncode) == (0, 0)
    (count,) = re.findall(r"^sent (\d+) messages", sent)
    assert received == f"received {count} messages, each once and in order\n"
