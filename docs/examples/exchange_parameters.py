"""Training tasks that exchange their parameters while they train.

Four PySpark tasks fit a line, each to a quarter of the data. After each step, every task sends its
parameters to the other three and continues with the average, so all end with the same line.
Parameters are a NumPy array in a message. With Spark alone, each step would be a stage with a
collect and a broadcast.

Run it: python exchange_parameters.py
"""

import numpy as np
import pandas as pd
from pyspark import TaskContext
from pyspark.sql import SparkSession

import tuplewire
from tuplewire import TaskMessageBatch

TASKS = [1, 2, 3, 4]
STEPS = 100
RATE = 0.5


def exchange(task, parameters, client, messages, early):
    """Send these parameters to the other tasks, and return the average of all tasks.

    A faster task is at most one step ahead. Its next parameters arrive early, and wait for their step.
    """
    others = [other for other in TASKS if other != task]
    client.send(TaskMessageBatch.from_columns(others, [task.to_bytes() + parameters.tobytes()] * len(others)))
    of = {task: parameters, **{other: early[other].pop(0) for other in others if early[other]}}
    while len(of) < len(TASKS):
        payload = next(messages).payload
        other, theirs = payload[0], np.frombuffer(payload[1:])
        if other in of:
            early[other].append(theirs)
        else:
            of[other] = theirs
    return np.mean([of[each] for each in TASKS], axis=0)


def train(address):
    """Return the function that each PySpark task runs on its rows."""

    def run(frames):
        task = TASKS[TaskContext.get().partitionId()]
        x, y = pd.concat(frames).to_numpy().T
        line = np.zeros(2)  # slope and intercept
        early = {other: [] for other in TASKS}
        with tuplewire.Client(address, source=task) as client, client.recv([task], timeout=60) as batches:
            messages = batches.messages()
            for _ in range(STEPS):
                error = line[0] * x + line[1] - y
                step = line - RATE * np.array([np.mean(error * x), np.mean(error)])
                line = exchange(task, step, client, messages, early)
        yield pd.DataFrame({"task": [task], "slope": line[0], "intercept": line[1]})

    return run


if __name__ == "__main__":
    spark = SparkSession.builder.master("local[4]").getOrCreate()
    rows = spark.range(0, 4000, 1, numPartitions=len(TASKS)).selectExpr("id / 2000 - 1 x", "3 * x + 2 y")
    with tuplewire.local(tasks="1-4") as worker:
        # barrier: all run at the same time, or the job fails because it has too few cores
        lines = rows.mapInPandas(
            train(worker.address), "task int, slope double, intercept double", barrier=True
        )
        lines.orderBy("task").show()
