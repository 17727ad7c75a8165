"""Generates the Grafana dashboard from dashboard.yml, on standard output."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_LIST = Path(__file__).with_name("dashboard.yml")
_COLUMNS = 24
_DATASOURCE = {"type": "prometheus", "uid": "$datasource"}
_WORKER, _NAMESPACE = 'worker=~"$worker"', 'namespace=~"$namespace"'
_NAMESPACES = "label_values(tuplewire_build_info, namespace)"
_TOPOLOGIES = f"label_values(tuplewire_build_info{{{_NAMESPACE}}}, topology)"
_WORKERS = f'label_values(tuplewire_build_info{{{_NAMESPACE}, topology=~"$topology"}}, worker)'


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A panel of dashboard.yml. Raises TypeError if a key is unknown or missing."""

    title: str
    says: str
    unit: str
    queries: tuple[Mapping[str, str], ...]
    kind: str = "timeseries"
    width: int = 8
    stacked: bool = False
    columns: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the panel in Grafana's format, without id and position."""
        defaults: dict[str, Any] = {"unit": self.unit}
        if self.kind == "timeseries":
            defaults["min"] = 0  # without it, small changes would look large
            defaults["custom"] = {"axisSoftMax": 1} if self.unit == "percentunit" else {}
        if self.stacked:
            defaults["custom"] |= {"stacking": {"mode": "normal"}, "fillOpacity": 50}
        made = {
            "type": self.kind,
            "title": self.title,
            "description": self.says,
            "datasource": _DATASOURCE,
            "fieldConfig": {"defaults": defaults, "overrides": []},
            "targets": list(self._targets()),
        }
        return {**made, "transformations": self._merged()} if self.kind == "table" else made

    def _targets(self) -> Iterator[dict[str, Any]]:
        for letter, query in zip("ABCDEFGH", self.queries, strict=False):
            target = {
                "refId": letter,
                "datasource": _DATASOURCE,
                "expr": query["expr"].replace(_WORKER, f"{_NAMESPACE}, {_WORKER}"),
                "legendFormat": query.get("legend", ""),
            }
            as_table = {"instant": True, "range": False, "format": "table"}
            yield {**target, **as_table} if self.kind == "table" else target

    def _merged(self) -> list[dict[str, Any]]:
        """Return the transformation that joins several tables, with display names for the values."""
        values = (
            ["Value"] if len(self.queries) == 1 else [f"Value #{each['refId']}" for each in self._targets()]
        )
        renamed = dict(zip(values, self.columns, strict=True))
        hidden = {"Time": True, "__name__": True}
        return [
            {"id": "merge", "options": {}},
            {"id": "organize", "options": {"excludeByName": hidden, "renameByName": renamed}},
        ]


def dashboard(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    return {
        "uid": "tuplewire",
        "title": "Tuplewire",
        "tags": ["tuplewire"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
                # Without Kubernetes, series have no namespace: `.*` also matches these.
                _variable("namespace", "Namespace", _NAMESPACES) | {"allValue": ".*"},
                _variable("topology", "Topology", _TOPOLOGIES),
                _variable("worker", "Worker", _WORKERS),
            ]
        },
        "panels": [{"id": number, **each} for number, each in enumerate(_placed(rows), start=1)],
    }


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _placed(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield rows and panels with their positions, from left to right and from top to bottom."""
    top = 0
    for row in rows:
        yield {"type": "row", "title": row["row"], "panels": [], "gridPos": _place(0, top, _COLUMNS, 1)}
        top, left, height = top + 1, 0, 8
        for panel in (Panel(**each) for each in row["panels"]):
            width, height = (4, 4) if panel.kind == "stat" else (panel.width, 8)
            if left + width > _COLUMNS:
                left, top = 0, top + height
            yield {**panel.to_json(), "gridPos": _place(left, top, width, height)}
            left += width
        top += height


def _place(left: int, top: int, width: int, height: int) -> dict[str, int]:
    return {"x": left, "y": top, "w": width, "h": height}


def _in_lines(made: dict[str, Any]) -> str:
    """Return the dashboard as JSON with one line per panel, for readable diffs."""
    panels = ",\n  ".join(map(json.dumps, made["panels"]))
    others = [f"{json.dumps(name)}: {json.dumps(made[name])}" for name in made if name != "panels"]
    return "{\n " + ",\n ".join(others) + f',\n "panels": [\n  {panels}\n ]\n}}'


if __name__ == "__main__":
    print(_in_lines(dashboard(yaml.safe_load(_LIST.read_text(encoding="utf-8")))))
