"""Writes a SparkApplication of the Spark operator, with a worker beside each executor, to standard output.

It is the overlay prod's template of an executor's pod, and what Spark has to know beside it.
"""

from __future__ import annotations

import yaml
from make_chart import render

from tuplewire.spark import kubernetes

_HEAD = """\
# Made of deploy/kustomize by `make chart`; change it there, and here what is yours: image, program, sizes.
# For the operator of Kubeflow, 2.0 or newer. The Secrets and the ConfigMap tuplewire-config have to be there:
# the overlay prod, or the chart.
"""
_BY_THE_OPERATOR = (
    "spark.kubernetes.executor.podTemplateFile",
    "spark.kubernetes.executor.podTemplateContainerName",
)
"""It hands the template of the application to Spark itself, with Spark's usual name for the container."""


def spark_application() -> str:
    """Return the manifest in YAML."""
    (pod,) = render("overlays/prod/executor", []).values()
    settings = kubernetes.settings("template", secure=True)
    labels = pod["metadata"]["labels"]
    metadata = {"labels": labels, "annotations": pod["metadata"]["annotations"]}
    application = {
        "apiVersion": "sparkoperator.k8s.io/v1beta2",
        "kind": "SparkApplication",
        "metadata": {"name": "your-job"},
        "spec": {
            "type": "Python",
            "pythonVersion": "3",
            "mode": "cluster",
            "sparkVersion": "4.0.1",
            "image": "registry.example.com/your-spark:4.0.1",
            "mainApplicationFile": "local:///opt/your-job/job.py",
            "restartPolicy": {"type": "Never"},
            "sparkConf": {name: value for name, value in settings.items() if name not in _BY_THE_OPERATOR},
            "driver": {"cores": 1, "memory": "1g", "serviceAccount": "spark"},
            "executor": {
                "instances": 2,
                "cores": 2,
                "memory": "2g",
                "template": {"metadata": metadata, "spec": pod["spec"]},
            },
        },
    }
    text: str = yaml.safe_dump(application, sort_keys=False, width=110)
    return _HEAD + text


if __name__ == "__main__":
    print(spark_application(), end="")
