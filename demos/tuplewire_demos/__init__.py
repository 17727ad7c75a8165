"""Complete example pipelines on Spark, with tasks that exchange messages over Tuplewire.

`flights` is one hop (spouts -> bolts) between two Spark jobs; its parts are flight_*. `words` is Storm's word
count, a topology that also runs without Spark. They share these parts:

attachment  the worker of each task
stream      sending and receiving inside a task, with an end marker that detects missing messages
jobs        spouts and bolts as two Spark jobs that run at the same time
text        the lines of a file as a DataFrame, and a tally of bad lines
report      progress and the final account
"""
