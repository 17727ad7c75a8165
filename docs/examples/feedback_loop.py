"""A feedback loop between two PySpark tasks that run at the same time.

Task 1 is a room, and task 2 its thermostat. The room sends its temperature, and the thermostat
answers with the power of the heating, until the room is warm. Each round is one message in each
direction, and takes milliseconds. Spark alone would need a stage for each round.

Run it in the root of a clone: python docs/examples/feedback_loop.py
"""

from pyspark.sql import SparkSession

import tuplewire

ROOM, THERMOSTAT = 1, 2
WANTED = 21.0
WARM = b"warm"


def room(client, batches):
    """Lose some heat, gain the heat of the heating, and send the temperature."""
    temperature = 12.0
    client.send(THERMOSTAT, b"%f" % temperature)
    rounds = 0
    for message in batches.messages():
        if message.payload == WARM:
            break
        temperature += float(message.payload) - 0.05 * (temperature - 10.0)
        client.send(THERMOSTAT, b"%f" % temperature)
        rounds += 1
    return f"{temperature:.1f} degrees after {rounds} rounds"


def thermostat(client, batches):
    """Set the power by the difference from the desired temperature, and by its sum over time."""
    missing = 0.0
    for message in batches.messages():
        error = WANTED - float(message.payload)
        if abs(error) < 0.05:
            client.send(ROOM, WARM)
            break
        missing += error
        client.send(ROOM, b"%f" % (0.4 * error + 0.1 * missing))
    return "switched off"


PARTS = {ROOM: room, THERMOSTAT: thermostat}


def play(address):
    """Return the function that each PySpark task runs: the part that its row names."""

    def run(frames):
        for frame in frames:
            task = int(frame["id"].iloc[0])
            with tuplewire.Client(address, source=task) as client, client.recv([task], timeout=60) as batches:
                yield frame.assign(said=PARTS[task](client, batches))

    return run


if __name__ == "__main__":
    spark = SparkSession.builder.master("local[4]").getOrCreate()
    with tuplewire.local(tasks="1,2") as worker:
        parts = spark.range(1, 3, 1, numPartitions=2)  # one row for each part, in a separate partition
        # barrier: both run at the same time, or the job fails because it has too few cores
        ran = parts.mapInPandas(play(worker.address), "id long, said string", barrier=True)
        for row in ran.collect():  # without a shuffle, so Spark does not retry parts that have failed
            print(f"task {row.id}: {row.said}")
