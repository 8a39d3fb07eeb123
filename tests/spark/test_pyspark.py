#!/usr/bin/env python3
"""batchllm.spark in a session with its JARs. For spark-submit; argument: a model directory with a tokenizer."""

import json
import os
import pathlib
import sys
import tempfile

from batchllm import spark
from pyspark.sql import SparkSession

model = sys.argv[1]
session = SparkSession.builder.getOrCreate()


def raises(kind, text, call):
    try:
        call()
    except kind as error:
        assert text in str(error), f"{text!r} is not in {error}"
        return
    raise AssertionError(f"no failure: {text}")


def test_text_rows_are_answered_in_columns():
    rows = session.createDataFrame([(i, f"The same beginning of all rows, and then {i}", {"a": i}) for i in range(40)],
                                   ["id", "question", "other"])  # fmt: skip
    metrics = spark.Metrics(session)
    answers = spark.transform(rows, model=pathlib.Path(model), backend="cpu", threads=1, prompt_column="question", max_tokens=4,
                              kv_memory_bytes=64 << 20, logprobs=True, metrics=metrics)  # fmt: skip
    assert answers.columns == ["id", "question", "other", "batchllm_key", "text", "tokens", "logprobs", "finish_reason",
                               "error", "prompt_tokens", "shared_tokens", "completion_tokens"], answers.columns
    found = answers.persist().orderBy("batchllm_key").collect()
    assert [row.id for row in found] == list(range(40))
    for row in found:
        assert row.error is None and row.other == {"a": row.id} and row.question.endswith(f" {row.id}")
        assert len(row.tokens) == len(row.logprobs) == row.completion_tokens > 0
    assert metrics.rows == 40 and metrics.errors == 0 and metrics.completion_tokens == sum(len(row.tokens) for row in found)
    assert 0.3 < metrics.saving_ratio < 1 and metrics.processed_prompt_tokens < metrics.prompt_tokens, metrics
    assert "40 rows" in repr(metrics)


def test_prompts_are_made_of_a_template():
    rows = session.createDataFrame([(i, f"number {i}", "what every row of this table says in so many words") for i in range(40)],
                                   ["id", "own", "all"])  # fmt: skip
    cpu = dict(model=model, backend="cpu", key_column="id", kv_memory_bytes=64 << 20, max_tokens=2)
    saved, warned = [], []
    for fields in ("given", "reorder"):
        metrics = spark.Metrics(session)
        answers = spark.transform(rows, template="Tell.\n{own}\n{all}\nAnswer:", fields=fields, metrics=metrics, **cpu)
        assert answers.columns[:4] == ["id", "own", "all", "text"], answers.columns
        assert all(row.error is None for row in answers.collect()) and metrics.rows == 40
        saved.append(metrics.saving_ratio)
        warned.append(metrics.warnings)
    assert saved[0] < 0.3 < 0.5 < saved[1], saved
    assert len(warned[0]) == 1 and "Put what rows have in common first" in warned[0][0], warned
    raises(Exception, "no column title", lambda: spark.transform(rows, template="{title}", **cpu))


def test_token_rows_draw_by_seed_and_key():
    rows = session.createDataFrame([(i, list(range(1, 20)) + [i]) for i in range(200)], "id long, prompt array<int>")
    sim = dict(backend="sim", backend_options="vocabulary=1000,eos_token=2,mean_length=9", key_column="id", temperature=1)

    def tokens(**options):
        return {row.id: row.tokens for row in spark.transform(rows, **sim, **options).collect()}

    once = tokens(seed=5, partitions=1)
    assert len(once) == 200 and once == tokens(seed=5, partitions=4, window_rows=10, devices=None)
    assert once != tokens(seed=6)
    ordered = spark.transform(rows.orderBy("prompt", ascending=False), **sim, seed=5, ordered=True, partitions=3).collect()
    assert [(row.id, row.tokens) for row in ordered] == sorted(once.items())
    stopped = tokens(seed=5, stop_tokens=(once[0][0],))
    assert len(stopped[0]) == 1


def test_batches_of_a_stream_are_transformed():
    with tempfile.TemporaryDirectory() as folder:
        prompts = session.range(12).selectExpr("id", "concat('Row ', id) prompt").repartition(2)
        prompts.write.json(f"{folder}/in")
        stream = session.readStream.schema(prompts.schema).option("maxFilesPerTrigger", 1).json(f"{folder}/in")
        cpu = dict(model=model, backend="cpu", key_column="id", max_tokens=2, kv_memory_bytes=64 << 20)
        raises(Exception, "the rows are a stream", lambda: spark.transform(stream, **cpu))
        write = stream.writeStream.option("checkpointLocation", f"{folder}/state").trigger(availableNow=True)
        write.foreachBatch(lambda rows, number: spark.transform(rows, **cpu).write.mode("append").parquet(f"{folder}/out")).start().awaitTermination()
        found = session.read.parquet(f"{folder}/out").collect()
        assert sorted(row.id for row in found) == list(range(12)) and all(row.error is None for row in found), found


def test_rows_are_scored():
    rows = session.createDataFrame([(i, f"Row {i}", [" yes", " no"]) for i in range(9)], ["id", "prompt", "choices"])
    for row in spark.transform(rows, model=model, backend="cpu", continuations_column="choices").collect():
        assert len(row.scores) == 2 and all(score < 0 for score in row.scores) and row.finish_reason == "scored", row


def test_text_keeps_to_a_schema_or_to_its_rows_own_expression():
    rows = session.createDataFrame([(i, f"Row {i}", f"[{i}]{{2}}" if i else None) for i in range(6)], ["id", "prompt", "must"])
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    cpu = dict(model=model, backend="cpu", key_column="id", kv_memory_bytes=64 << 20)
    for row in spark.transform(rows, json_schema=schema, **cpu).collect():
        assert row.text in ('{"a":1}', '{"a":2}') and row.finish_reason == "stop", row
    for row in spark.transform(rows, choices=("p", "q"), regex_column="must", **cpu).collect():
        assert row.text == str(row.id) * 2 if row.id else row.text in ("p", "q"), row
    raises(Exception, "#/uniqueItems", lambda: spark.transform(
        rows, json_schema={"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, **cpu).collect())  # fmt: skip


def test_rows_name_adapters():
    golden = pathlib.Path(__file__).resolve().parents[1] / "golden"
    names = ["llama_qv_r4", "llama_one_layer"]
    prompts = [row["prompt"] for row in json.loads((golden / "llama_bias_f32" / "golden.json").read_text())["rows"][:4]]
    said = {one["name"]: one["rows"] for one in json.loads((golden / "adapters" / "adapters.json").read_text())["adapters"]}
    asked = [(name, at) for name in (*names, None, "", "other") for at in range(len(prompts))]
    rows = session.createDataFrame([(i, prompts[at], name) for i, (name, at) in enumerate(asked)],
                                   "id long, prompt array<int>, who string")  # fmt: skip
    cpu = dict(model=golden / "llama_bias_f32", backend="cpu", compute_type="f32", threads=1, kv_memory_bytes=16 << 20, max_tokens=8,
               key_column="id", adapters={name: golden / "adapters" / name for name in names}, adapter_column="who")  # fmt: skip
    found = {row.id: row for row in spark.transform(rows, use_adapter=names[0], ignore_eos=True, **cpu).collect()}
    for i, (name, at) in enumerate(asked):
        if name == "other":
            assert found[i].error == 'ROW_ADAPTER: there is no adapter "other"', found[i]
        elif name == "":
            assert found[i].error is None
        else:
            wanted = said[name or names[0]][at]
            end = next((t for t, margin in enumerate(wanted["margins"]) if margin < 1e-3), len(wanted["margins"]))
            assert end > 0 and list(found[i].tokens)[:end] == wanted["tokens"][:8][:end], (name, found[i])
    plain = [found[i].tokens for i, (name, _) in enumerate(asked) if name == ""]
    assert plain != [found[i].tokens for i, (name, _) in enumerate(asked) if name is None]
    raises(Exception, "useAdapter: there is no adapter nobody", lambda: spark.transform(rows, use_adapter="nobody", **cpu).collect())
    # Relative to this process's directory, which neither the JVM nor executors know.
    here = os.getcwd()
    os.chdir(golden)
    directory = spark.transform(rows, use_adapter=names[0], ignore_eos=True, **{**cpu, "adapters": "adapters"})
    os.chdir(here)
    assert {row.id: (row.tokens, row.error) for row in directory.collect()} == {id: (row.tokens, row.error) for id, row in found.items()}
    raises(Exception, "no row can name one", lambda: spark.transform(rows, **{**cpu, "adapter_column": None}))


def test_rows_have_pictures():
    folder = pathlib.Path(__file__).resolve().parent.parent / "golden" / "qwen3_vl_pictures"
    made = json.loads((folder / "pictures.json").read_text())
    names = [picture["file"] for picture in made["pictures"]]
    files = [bytearray((folder / name).read_bytes()) for name in names]
    chosen = [i for _ in range(6) for i in (0, 1)]  # the same question about pictures 0 and 3
    numbers = [made["rows"][i]["pictures"][0] for i in chosen]
    common = dict(model=folder, backend="cpu", compute_type="f32", kv_memory_bytes=16 << 20, key_column="id", add_special=False,
                  max_tokens=made["new_tokens"], image_column="page", image_folders=[folder])  # fmt: skip
    text = made["rows"][0]["text"].replace("What is this?", "{question}")
    for kind, pages in {"binary": files, "string": names, "array<binary>": [[one] for one in files],
                        "array<string>": [[one] for one in names]}.items():  # fmt: skip
        values = [(n, "What is this?", pages[numbers[n]]) for n in range(12)]
        rows = session.createDataFrame(values + [(12, "x", None)], f"id long, question string, page {kind}")
        for more in ({"template": "{question}", "chat": True}, {"template": text}):
            metrics = spark.Metrics(session)
            answers = spark.transform(rows, metrics=metrics, partitions=2, **common, **more)
            found = {row.id: row for row in answers.collect()}
            assert len(found) == 13 and (found[12].error is None) == ("chat" in more), (kind, found[12])
            for n, i in enumerate(chosen):
                expected = made["rows"][i]
                end = next((t for t, margin in enumerate(expected["margins"]) if margin < 1e-3), len(expected["tokens"]))
                assert found[n].error is None and found[n].tokens[:end] == expected["tokens"][:end], (kind, more, n, found[n].error)
                assert found[n].page == pages[numbers[n]]
            assert metrics.saving_ratio > 0.5, metrics
    values = [(n, "What is this?", files[numbers[n]], ["yes", "no"]) for n in range(4)]
    rows = session.createDataFrame(values, "id long, question string, page binary, ends array<string>")
    found = []
    for more in ({"template": "{question}", "chat": True}, {"template": text}):
        answers = spark.transform(rows, continuations_column="ends", partitions=1, **{**common, "max_tokens": 16}, **more).collect()
        found.append([[round(x, 3) for x in row.scores] for row in sorted(answers, key=lambda row: row.id)])
    assert found[0] == found[1] and len(found[0][0]) == 2 and found[0][0] != found[0][1], found
    raises(Exception, "no column none", lambda: spark.transform(rows, template="{question}", **{**common, "image_column": "none"}))
    raises(Exception, "has no pictures", lambda: spark.transform(rows, template="{question}", **{**common, "image_column": "id"}))


def test_rows_are_embedded():
    rows = session.createDataFrame([(i, f"Row {i}") for i in range(6)], ["id", "prompt"])
    for row in spark.transform(rows, task="embed", pooling="mean", normalize=True, dimensions=8, model=model, backend="cpu",
                               kv_memory_bytes=64 << 20).collect():  # fmt: skip
        assert len(row.embedding) == 8 and abs(sum(x * x for x in row.embedding) - 1) < 1e-5, row
        assert row.finish_reason == "embedded"


def test_what_cannot_work_says_why():
    rows = session.createDataFrame([(1, "a")], ["id", "prompt"])
    raises(TypeError, "no option 'prompt_colum'; did you mean prompt_column", lambda: spark.transform(rows, prompt_colum="a"))
    raises(TypeError, "no option 'tokens'; did you mean min_tokens or max_tokens or", lambda: spark.transform(rows, tokens=3))
    raises(TypeError, "no option 'xyzzy'; there are adapter_column, ", lambda: spark.transform(rows, xyzzy=3))
    for name, value in {"max_tokens": "3", "top_k": 2**40, "model": 5, "stop_strings": 5}.items():
        raises(TypeError, f"option {name}: {value!r} is of the wrong type", lambda: spark.transform(rows, **{name: value}))
    raises(Exception, "no column question", lambda: spark.transform(rows, prompt_column="question", backend="sim"))


for name, test in list(globals().items()):
    if name.startswith("test_"):
        test()
        print(name)
session.stop()
