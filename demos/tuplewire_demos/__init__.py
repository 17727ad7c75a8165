"""Complete examples. Their tasks exchange messages over Tuplewire.

`kmeans` groups flights on Spark with a Team, and compares its speed with three other ways. `flights` computes
delays by carrier on Spark, with the topology in flight_topology. `word_topology` is Storm's word count, which
also runs without Spark. They share these parts:

file_spout  spouts that read a text file in parts, and the lines that they skip
spark_run   Spark and the workers, and a topology on them
report      the progress, and the summary at the end
"""
