"""Writes a SparkApplication of the Spark operator, of the chart's manifests, to standard output.

It has the templates of an executor's and a driver's pod, and the other settings that Spark needs.

    helm template tuplewire deploy/helm/tuplewire | deploy/make_spark_application.py
"""

from __future__ import annotations

import sys
from typing import Any

import yaml

from tuplewire.spark import kubernetes

_HEAD = """\
# Made of the chart by `make manifests`; change it there, and here what is yours: image, program, sizes.
# For the operator of Kubeflow, 2.0 or newer. The Secrets and the ConfigMap tuplewire-config have to be there.
"""


def spark_application(manifests: str) -> str:
    """Return the manifest in YAML. manifests: the chart as rendered by Helm."""
    templates: dict[str, dict[str, Any]] = {}
    for each in filter(None, yaml.safe_load_all(manifests)):
        for role in ("driver", "executor"):
            if each["metadata"]["name"] == f"tuplewire-{role}-template":
                pod = yaml.safe_load(each["data"][f"{role}-template.yaml"])
                metadata = {name: pod["metadata"][name] for name in ("labels", "annotations")}
                templates[role] = {"template": {"metadata": metadata, "spec": pod["spec"]}}
    settings = kubernetes.settings("template", driver_template="template")
    application = {
        "apiVersion": "sparkoperator.k8s.io/v1beta2",
        "kind": "SparkApplication",
        "metadata": {"name": "your-job"},
        "spec": {
            "type": "Python",
            "pythonVersion": "3",
            "mode": "cluster",
            "sparkVersion": "4.3.0",
            "image": "registry.example.com/your-spark:4.3.0",
            "mainApplicationFile": "local:///opt/your-job/job.py",
            "restartPolicy": {"type": "Never"},
            # The operator hands the templates to Spark itself, with Spark's usual names for the containers.
            "sparkConf": {name: value for name, value in settings.items() if "podTemplate" not in name},
            "driver": {"cores": 1, "memory": "1g", "serviceAccount": "spark", **templates["driver"]},
            "executor": {"instances": 2, "cores": 2, "memory": "2g", **templates["executor"]},
        },
    }
    text: str = yaml.safe_dump(application, sort_keys=False, width=110)
    return _HEAD + text


if __name__ == "__main__":
    print(spark_application(sys.stdin.read()), end="")
