"""Where a topology runs, by `storm.cluster.mode`. Source: Storm's `ConfigUtils.isLocalMode`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuplewire_service.executors.distributed_cluster import DistributedCluster
from tuplewire_service.executors.local_cluster import LocalCluster
from tuplewire_service.launching.launch_settings import ClusterMode, LaunchSettings


def cluster_of(conf: Mapping[str, Any]) -> LocalCluster | DistributedCluster:
    """Return what runs topologies with these settings: in this process, or in one for each worker.

    Raises ConfigError for a setting of the launcher that is wrong.
    """
    settings = LaunchSettings.from_conf(conf)
    return DistributedCluster() if settings.mode is ClusterMode.DISTRIBUTED else LocalCluster()
