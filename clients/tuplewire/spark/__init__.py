"""Tuplewire inside Spark. Nothing here imports pyspark before it is used."""
