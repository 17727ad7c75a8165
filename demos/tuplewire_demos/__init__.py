"""Complete pipelines that run on Spark with Tuplewire between their tasks; read them as examples.

`flights` is one hop (spouts -> bolts) of two Spark jobs, with parts of its own. `words` is Storm's classic, a
topology that runs anywhere. Their parts:

attachment  which worker each task talks to
stream      sending and receiving inside a task, with an end that proves that nothing is missing
jobs        spouts and bolts as two Spark jobs that run at the same time
text        a file's lines as a DataFrame, and what is done about bad ones
report      progress and the final account
"""
