"""Training tasks that exchange their parameters while they train.

Four PySpark tasks fit a line, each to a quarter of the data. After each step, the tasks continue with
the average of all parameters, so all end with the same line. With Spark alone, each step would be a
stage with a collect and a broadcast.

Run it in the root of a clone: python docs/examples/exchange_parameters.py
"""

import numpy as np
import pandas as pd
from pyspark.sql import SparkSession

import tuplewire

STEPS = 100
RATE = 0.5


def train(address):
    """Return the function that each PySpark task runs on its rows."""

    def run(frames):
        x, y = pd.concat(frames).to_numpy().T
        line = np.zeros(2)  # slope and intercept
        with tuplewire.Team.of_stage(tasks=range(1, 5), address=address) as team:
            for _ in range(STEPS):
                error = line[0] * x + line[1] - y
                step = line - RATE * np.array([np.mean(error * x), np.mean(error)])
                line = team.all_reduce(step, "mean")
        yield pd.DataFrame({"task": [team.tasks[team.rank]], "slope": line[0], "intercept": line[1]})

    return run


if __name__ == "__main__":
    spark = SparkSession.builder.master("local[4]").getOrCreate()
    rows = spark.range(0, 4000, 1, numPartitions=4).selectExpr("id / 2000 - 1 x", "3 * x + 2 y")
    with tuplewire.local(tasks="1-4") as worker:
        # barrier: all run at the same time, or the job fails because it has too few cores
        lines = rows.mapInPandas(
            train(worker.address), "task int, slope double, intercept double", barrier=True
        )
        lines.orderBy("task").show()
