"""Rows of a JSONL file, {"id": .., "prompt": .., "max_tokens": ..}, through a model. docs/spark.md has the commands.

    spark-submit --jars batchllm.jar,batchllm-spark.jar catalogue.py MODEL ROWS OUTPUT
"""

import sys

from batchllm import spark
from pyspark.sql import SparkSession

model, rows_path, output = sys.argv[1:]
session = SparkSession.builder.appName("catalogue").getOrCreate()
rows = session.read.json(rows_path)

metrics = spark.Metrics(session)
answers = spark.transform(rows, model=model, max_tokens_column="max_tokens", metrics=metrics)

# Written as they are: whatever needs them twice (an order, a count) reads them back.
answers.drop("prompt").write.json(output)
print(metrics)
session.read.json(output).orderBy("batchllm_key").select("id", "text").show(5, 60)
session.stop()
