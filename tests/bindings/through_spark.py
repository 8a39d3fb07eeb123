#!/usr/bin/env python3
"""The job of make_job.py through Spark, from Python. For spark-submit; MODEL_DIRECTORY INPUT.jsonl OUTPUT"""

import sys

from batchllm import spark
from pyspark.sql import SparkSession

model, job, output = sys.argv[1:]
session = SparkSession.builder.getOrCreate()
rows = session.read.json(job, "id long, prompt string, max_tokens int, temperature double, seed long, json_schema string")
answers = spark.transform(rows, model=model, key_column="id", max_tokens_column="max_tokens",
                          temperature_column="temperature", seed_column="seed", json_schema_column="json_schema", partitions=3)
with open(output, "w", encoding="utf-8") as out:
    for answer in answers.persist().orderBy("id").select("tokens").collect():
        out.write(" ".join(map(str, answer.tokens)) + "\n")
session.stop()
