"""Clients and subscriptions belong to their process: a copy in another one would silently lose messages."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from helpers.topology import TOPOLOGY, Pair
from pyspark import cloudpickle

from tuplewire import Client, aio
from tuplewire.spark.client_handle import ClientHandle, close_clients


@pytest.mark.parametrize("take", [pickle.dumps, cloudpickle.dumps, copy.copy, copy.deepcopy])
def test_they_are_not_pickled_or_copied(workers: Pair, take: Callable[[Any], object]) -> None:
    """Pickling or copying one, which happens on Spark's driver, raises an error that names ClientHandle."""
    address, task = workers.near.address, workers.near_task()
    unconnected = aio.Client(address, topology=TOPOLOGY)
    with Client(address, topology=TOPOLOGY) as client, ClientHandle(address, topology=TOPOLOGY) as in_task:
        subscription = client.recv([task], timeout=20)
        for live in (client, in_task, subscription, unconnected, unconnected.recv([task])):
            name = type(live).__name__
            with pytest.raises(
                TypeError, match=rf"a {name} has a connection .* tuplewire.spark.ClientHandle"
            ):
                take(live)
        with pytest.raises(TypeError, match="ClientHandle"):
            cloudpickle.dumps(lambda row: client.send(task, row))  # type: ignore[no-untyped-call]
        subscription.close()
    close_clients()
