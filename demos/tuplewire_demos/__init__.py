"""Complete example topologies. Their tasks exchange messages over Tuplewire.

`flights` computes delays by carrier on Spark; its parts are flight_*. `words` is Storm's word count, which
also runs without Spark. They share these parts:

file_spout  spouts that read a text file in parts, and the lines that they skip
spark_run   a topology with Spark and the workers
report      progress and the final account
"""
