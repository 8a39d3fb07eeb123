#!/usr/bin/env python3
"""The job of docs/spark.md, smaller: the examples' answers must be right. Usage: test_examples.py BATCHLLM.jar,SPARK.jar"""

import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MODEL = ROOT / "examples/catalogue/model"
jars = sys.argv[1]


def python(*arguments):
    subprocess.run([sys.executable, *map(str, arguments)], check=True)


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    rows, expected = folder / "rows.jsonl", folder / "expected.jsonl"
    python(ROOT / "examples/catalogue/generate.py", "--seed", "7", "--rows", "80", "--output", rows, "--expected", expected)
    spark = importlib.util.find_spec("pyspark").submodule_search_locations[0]
    subprocess.run(["javac", "-cp", jars.replace(",", ":") + f":{spark}/jars/*", "-d", folder / "classes",
                    ROOT / "examples/spark/Catalogue.java"], check=True)  # fmt: skip
    subprocess.run(["jar", "cf", folder / "catalogue.jar", "-C", folder / "classes", "."], check=True)
    for test, given in (("Catalogue", f"{jars},{folder}/catalogue.jar"), (ROOT / "examples/spark/catalogue.py", jars)):
        output = folder / pathlib.Path(test).name
        python(HERE / "run.py", "--jars", given, test, MODEL, rows, output)
        answers = [line for part in sorted(output.glob("part-*")) for line in part.read_text().splitlines()]
        assert sorted(json.loads(line)["id"] for line in answers) == sorted(json.loads(line)["id"] for line in rows.open())
        (folder / "answers.jsonl").write_text("\n".join(answers) + "\n")
        python(ROOT / "examples/catalogue/evaluate.py", "score", "--expected", expected, "--output", folder / "answers.jsonl",
               "--at-least-extraction", "90", "--at-least-ranking", "90")  # fmt: skip
