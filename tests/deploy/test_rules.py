"""The files for Prometheus and Grafana: valid, current and complete."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.manifests import CHART, chart, cluster, the
from helpers.prometheus import PROMETHEUS, discovered, with_files
from helpers.tools import ROOT, ran, require_tool

FILES = CHART / "files"
GUIDE = ROOT / "docs" / "how-to" / "debug.md"
RULES = yaml.safe_load((FILES / "rules.yml").read_text(encoding="utf-8"))
ALERTS: list[dict[str, Any]] = [
    rule for group in RULES["groups"] for rule in group["rules"] if "alert" in rule
]
DASHBOARD = json.loads((FILES / "tuplewire.json").read_text(encoding="utf-8"))
UNITS = yaml.safe_load((PROMETHEUS / "rules_test.yml").read_text(encoding="utf-8"))["tests"]


def promtool(*words: str | Path) -> str:
    """Run promtool; fail the test with its output if it reports a problem."""
    program = require_tool("promtool", "Debian's package prometheus")
    run = ran(program, *words)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def test_rules_are_valid() -> None:
    """Every expression and template parses, and no rule is duplicated."""
    promtool("check", "rules", "--lint=all", "--lint-fatal", FILES / "rules.yml")


def test_units() -> None:
    """Every alert fires in the cases of rules_test.yml, with its exact text, and only there."""
    promtool("test", "rules", PROMETHEUS / "rules_test.yml")


@pytest.mark.parametrize("name", [alert["alert"] for alert in ALERTS])
def test_both_ways(name: str) -> None:
    """rules_test.yml contains every alert both firing and not firing."""
    cases = [case["exp_alerts"] for unit in UNITS if unit["name"] == name for case in unit["alert_rule_test"]]
    assert any(cases)
    assert not all(cases)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: str(alert["alert"]))
def test_what_to_do(alert: dict[str, Any]) -> None:
    """Every alert has a severity, a summary and a description, and links to a heading in the guide."""
    assert alert["labels"]["severity"] in {"critical", "warning"}
    assert alert["annotations"].keys() == {"summary", "description", "runbook_url"}
    page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
    assert ROOT / page == GUIDE
    guide = GUIDE.read_text(encoding="utf-8")
    assert anchor == alert["alert"].lower()
    assert f"\n### {alert['alert']}\n" in guide[guide.index("\n## Debug\n") :]


def test_every_metric_is_looked_at() -> None:
    """Each documented metric is used by the dashboard or by a rule."""
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    looked_at = "".join(
        each.read_text("utf-8") for each in (PROMETHEUS / "dashboard.yml", FILES / "rules.yml")
    )
    names = re.findall(r"^\| `(tuplewire_\w+)`", page, re.MULTILINE)
    assert len(names) > 50
    assert [name for name in names if not re.search(rf"\b{name}(_bucket)?\b", looked_at)] == []


def test_no_other_headings() -> None:
    """The operator's guide describes only alerts that exist."""
    guide = GUIDE.read_text(encoding="utf-8")
    assert set(re.findall(r"^### (Tuplewire\w+)$", guide, re.MULTILINE)) == {
        alert["alert"] for alert in ALERTS
    }


def test_the_dashboard_is_current() -> None:
    """The dashboard is generated from the current dashboard.yml; `make monitoring` updates it."""
    script = PROMETHEUS / "make_dashboard.py"
    run = subprocess.run([sys.executable, script], capture_output=True, timeout=240, check=True)
    assert run.stdout == (FILES / "tuplewire.json").read_bytes()


def test_every_query_selects_the_namespace() -> None:
    """Each selector of the dashboard is limited to the namespaces. All: also series without a namespace."""
    panels = [each for each in DASHBOARD["panels"] if each["type"] != "row"]
    for expression in (target["expr"] for panel in panels for target in panel["targets"]):
        selectors = re.findall(r"{.*?}", expression)
        assert selectors
        assert all('namespace=~"$namespace"' in each for each in selectors)
    (variable,) = [each for each in DASHBOARD["templating"]["list"] if each["name"] == "namespace"]
    assert variable["allValue"] == ".*"


def test_places() -> None:
    """No panel overlaps another or exceeds the 24 columns, and panel ids are unique."""
    panels = DASHBOARD["panels"]
    taken: set[tuple[int, int]] = set()
    for place in (panel["gridPos"] for panel in panels):
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        taken |= cells
    assert max(x for x, _ in taken) == 23
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_the_operator_gets_the_same_rules() -> None:
    """PrometheusRule contains the groups of rules.yml; Grafana finds the dashboard by its label."""
    rendered = cluster("prod")
    assert the(rendered, "PrometheusRule")["spec"] == RULES
    found = the(rendered, "ConfigMap", "tuplewire-dashboard")
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(found["data"]["tuplewire.json"])["uid"] == "tuplewire"


def test_runbooks_have_an_address() -> None:
    """The chart puts runbookBase before the path of each runbook."""
    base = "https://git.example/blob/main/"
    objects = chart("monitoring.enabled=true", f"monitoring.runbookBase={base}")
    rules = [rule for group in the(objects, "PrometheusRule")["spec"]["groups"] for rule in group["rules"]]
    found = [rule["annotations"]["runbook_url"] for rule in rules if "alert" in rule]
    assert found == [base + alert["annotations"]["runbook_url"] for alert in ALERTS]


def test_configuration_outside_kubernetes(tmp_path: Path) -> None:
    """The operator's guide has a valid configuration for other machines."""
    section = GUIDE.read_text(encoding="utf-8").partition("\n## Metrics, alerts, dashboard\n")[2]
    (snippet,) = re.findall(r"```yaml\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)
    file = tmp_path / "prometheus.yml"
    file.write_text(snippet, encoding="utf-8")
    promtool("check", "config", file)


def test_discovery(tmp_path: Path) -> None:
    """Of the ports that Kubernetes lists, discovery keeps one per running worker, named after its pod."""
    offered = [
        discovered("exec-1", "10.0.0.1:9464"),
        discovered("exec-1", "10.0.0.1:6700", pod_container_port_name="grpc"),
        discovered("exec-1", "10.0.0.1:7079", pod_container_port_name="blockmanager"),
        discovered("exec-2", "10.0.0.2:9464", pod_phase="Succeeded"),
        discovered("exec-3", "10.0.0.3:9464", pod_phase="Pending"),
        discovered("messaging-0", "10.0.0.4:9464", pod_container_init="false"),
    ]
    file = tmp_path / "prometheus.yml"
    file.write_text(yaml.safe_dump(with_files(offered, tmp_path)), encoding="utf-8")
    answer = json.loads(promtool("check", "service-discovery", "--timeout=5s", file, "tuplewire"))
    kept = [each["labels"] for each in answer if each["labels"]]
    assert sorted(kept, key=itemgetter("worker")) == [
        {
            "__address__": address,
            "__metrics_path__": "/metrics",
            "__scheme__": "http",
            "__scrape_interval__": "15s",
            "__scrape_timeout__": "10s",
            "instance": address,
            "job": "tuplewire",
            "namespace": "spark",
            "role": "executor",
            "worker": worker,
        }
        for worker, address in (("exec-1", "10.0.0.1:9464"), ("messaging-0", "10.0.0.4:9464"))
    ]


def test_the_operator_finds_the_same() -> None:
    """PodMonitor and prometheus.yml agree on label, port, job, interval, and a worker's name and role."""
    monitor = the(cluster("prod"), "PodMonitor")["spec"]
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text(encoding="utf-8"))
    (job,) = config["scrape_configs"]
    (pods,) = job["kubernetes_sd_configs"]
    ((label, value),) = monitor["selector"]["matchLabels"].items()
    (endpoint,) = monitor["podMetricsEndpoints"]
    by_target = {each.get("target_label", each["source_labels"][0]): each for each in job["relabel_configs"]}
    assert pods["selectors"] == [{"role": "pod", "label": f"{label}={value}"}]
    assert monitor["jobLabel"] == label
    assert value == job["job_name"]
    assert endpoint["port"] == by_target["__meta_kubernetes_pod_container_port_name"]["regex"]
    assert endpoint["interval"] == config["global"]["scrape_interval"]
    assert endpoint["relabelings"] == [
        {"sourceLabels": by_target[label]["source_labels"], "targetLabel": label}
        for label in ("worker", "role")
    ]
