"""Enrichment of a stream by stateful tasks.

A streaming query sends orders to two tasks, by customer. Each task is a PySpark task that runs all
the time. It stores the total of each customer in memory, and forwards every order with this total.
A second query receives the enriched orders and finds the customers with the highest totals. An
empty message ends a task.

Run it in the root of a clone: python docs/examples/enrich_orders.py
"""

import json
import tempfile
import threading
from collections import Counter

from pyspark.sql import SparkSession

import tuplewire

NEIGHBOURS, ENRICHED = [1, 2], 11
ORDERS = 1000


def enriching_task(address):
    """Return the function that a PySpark task runs to enrich orders."""

    def run(frames):
        for frame in frames:
            spent = Counter()  # the state: by customer
            task = int(frame["id"].iloc[0])
            with (
                tuplewire.Client(address, source=task) as client,
                client.recv([task], timeout=120) as batches,
            ):
                for message in batches.messages():
                    if not message.payload:
                        break
                    order = json.loads(message.payload)
                    spent[order["customer"]] += order["amount"]
                    client.send(ENRICHED, json.dumps({**order, "spent": spent[order["customer"]]}).encode())
            yield frame

    return run


def enrich(spark, address, folder):
    """Send the orders, and return the enriched ones."""
    orders = spark.range(ORDERS).selectExpr("id % 10 as customer", "id as amount")
    orders.write.parquet(f"{folder}/orders")
    tasks = spark.range(1, 3, 1, numPartitions=2)  # one row for each task, in a separate partition
    enriching = threading.Thread(
        target=tasks.mapInPandas(enriching_task(address), "id long", barrier=True).collect
    )
    enriching.start()
    stream = spark.readStream.schema(orders.schema).parquet(f"{folder}/orders")
    sent = stream.selectExpr("customer as key", "to_json(struct(customer, amount)) as message").writeStream
    sent = sent.format("tuplewire").options(address=address, tasks="1,2", grouping="fields")
    sent.option("checkpointLocation", f"{folder}/sent").trigger(availableNow=True).start().awaitTermination()
    with tuplewire.Client(address) as client:
        for task in NEIGHBOURS:
            client.send(task, b"")
    enriching.join()
    came = spark.readStream.format("tuplewire").options(address=address, tasks=str(ENRICHED)).load()
    came = came.selectExpr("from_json(cast(message as string), 'customer int, amount int, spent int') as o")
    came = came.select("o.*").writeStream.format("memory").queryName("enriched")
    came.trigger(availableNow=True).start().awaitTermination()
    return spark.table("enriched")


if __name__ == "__main__":
    spark = SparkSession.builder.master("local[4]").getOrCreate()
    with tuplewire.local(tasks="1,2,11") as worker, tempfile.TemporaryDirectory() as folder:
        enriched = enrich(spark, worker.address, folder)
        enriched.groupBy("customer").agg({"spent": "max", "*": "count"}).orderBy("customer").show()
