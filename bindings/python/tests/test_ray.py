"""batchllm.ray on PyPI's Ray, one node. `test_ray.py --must-show` is the job of docs/ray.md: 20,000 rows, an actor killed."""

import contextlib
import importlib.util
import io
import json
import os
import pathlib
import random
import re
import signal
import sys
import tempfile
import threading
import time
import types
import unittest

import batchllm
from batchllm import SamplingParams
from batchllm.prefix_ranges import Item, PrefixRanges, PromptSample, common, windows
from batchllm.ray_engine import RowEngine
from support import MODEL, chat_model

HAVE_RAY = importlib.util.find_spec("ray") is not None
if HAVE_RAY:
    import numpy
    import pyarrow
    import ray

    import batchllm.ray

SIM = {"backend": "sim", "backend_options": {"vocabulary": 32000, "eos_token": 2, "mean_length": 20}}
CPU = {"backend": "cpu", "threads": 1, "kv_memory_bytes": 64 << 20}
RANDOM = SamplingParams(max_tokens=64, temperature=1, seed=7)


GOLDEN = pathlib.Path(__file__).resolve().parents[3] / "tests" / "golden"
GUIDE = pathlib.Path(__file__).resolve().parents[3] / "docs" / "ray.md"


def begin_ray():
    # Uses no existing cluster and no usage statistics; workers find the same packages as this process.
    os.environ.update(RAY_ADDRESS="", RAY_USAGE_STATS_ENABLED="0", RAY_DEDUP_LOGS="0",
                      RAY_worker_niceness="0")
    os.environ.setdefault("PYTHONPATH", os.pathsep.join(sys.path))
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, configure_logging=False,
             object_store_memory=256 << 20)  # fmt: skip
    ray.data.DataContext.get_current().enable_progress_bars = False


def skewed(count):
    """Prompts of 500 prefixes, one of which has 30 % of the rows: each determined by its number."""
    prefixes = [numpy.random.default_rng(i).integers(3, 32000, 150 + i * 37 % 150).tolist() for i in range(500)]
    prompts = []
    for i in range(count):
        own = random.Random(1_000_003 * i + 17)
        prefix = prefixes[0 if own.random() < 0.3 else own.randrange(1, 500)]
        prompts.append(prefix + [own.randrange(3, 32000) for _ in range(20 + own.randrange(60))])
    return prompts


def best_saving(prompts):
    """The saving ratio of one plan over all prompts."""
    tokens = numpy.concatenate([numpy.asarray(prompt, numpy.int32) for prompt in prompts])
    offsets = numpy.cumsum([0] + [len(prompt) for prompt in prompts])
    return batchllm.Plan.build(batchllm.Tokens(tokens, offsets)).stats().saving_ratio


def dataset(columns, blocks):
    table = pyarrow.table(columns)
    size = -(-table.num_rows // blocks)
    return ray.data.from_arrow([table.slice(i * size, size) for i in range(blocks)])


def by_key(answers, key="id"):
    return {row[key]: row for row in answers.take_all()}


class Ranges(unittest.TestCase):
    """Without Ray."""

    def test_common_is_what_two_have_at_their_heads(self):
        draw = random.Random(5)
        for _ in range(500):
            a, b = (bytes(draw.choices(b"ab", k=draw.randrange(12))) for _ in range(2))
            self.assertEqual(common(a, b), len(os.path.commonprefix([a, b])))

    def test_groups_are_torn_only_where_they_are_larger_than_a_partition(self):
        draw = random.Random(11)
        groups = [draw.randbytes(400) for _ in range(60)]
        rows = [(draw.choice(groups[1:]) if i % 10 > 2 else groups[0]) + draw.randbytes(40) for i in range(6000)]
        sample = PromptSample(2000, 1024)
        for prompt in rows:
            sample.rows += 1
            sample.add(draw.getrandbits(63), Item(prompt, draw.getrandbits(63), len(prompt)))
        ranges = PrefixRanges.choose(sample, 8, 16)
        found = {}
        sizes = [0] * ranges.partitions
        for prompt in rows:
            part = ranges.partition(prompt, 0)
            found.setdefault(prompt[:400], set()).add(part)
            sizes[part] += 1
        torn = [group for group, parts in found.items() if len(parts) > 1]
        self.assertEqual(ranges.partitions, 8)
        self.assertLessEqual(set(torn), {groups[0]})
        self.assertGreater(len(found[groups[0]]), 1)
        self.assertLess(max(sizes), 1.6 * len(rows) / 8, sizes)

    def test_equal_heads_are_told_apart_by_place(self):
        sample = PromptSample(1000, 16)
        draw = random.Random(3)
        for _ in range(1000):
            sample.rows += 1
            sample.add(draw.getrandbits(63), Item(b"x" * 16, draw.getrandbits(63), 500))
        ranges = PrefixRanges.choose(sample, 4, 1)
        self.assertTrue(ranges.blind)
        sizes = [0] * 4
        for _ in range(1000):
            sizes[ranges.partition(b"x" * 500, draw.getrandbits(63))] += 1
        self.assertGreater(min(sizes), 180, sizes)

    def test_windows_end_where_neighbours_share_least(self):
        prompts = sorted(bytes([i // 30]) * 50 + bytes([i]) for i in range(240))
        parts = list(windows(prompts, 100, 1 << 20))
        self.assertEqual([i for part in parts for i in part], list(range(240)))
        self.assertEqual([part.start for part in parts], [0, 90, 180])
        self.assertEqual([len(part) for part in windows([b"x" * 10] * 9, 100, 40)], [3, 3, 3])
        self.assertEqual([len(part) for part in windows([None, None, b"a"], 1, 9)], [1, 1, 1])


class Refusals(unittest.TestCase):
    """Without Ray: constraints that an engine rejects."""

    def refusal(self, fault):
        def prepare(engine, key):
            raise fault

        engine = RowEngine.__new__(RowEngine)
        engine._refusals = {}
        engine._engine = types.SimpleNamespace(_enter=lambda: None, _constraints=types.SimpleNamespace(prepare=prepare))
        return engine._refusal(SamplingParams(regex="a("))

    def test_a_constraint_that_is_wrong_is_its_rows_result(self):
        for kind in (batchllm.InvalidArgumentError, batchllm.UnsupportedError, ValueError):
            self.assertEqual(self.refusal(kind("why")), "why")

    def test_what_fails_the_process_is_no_rows_result(self):
        for kind in (batchllm.OutOfMemoryError, batchllm.FileError, batchllm.DeviceError, MemoryError):
            with self.assertRaises(kind):
                self.refusal(kind("why"))


@unittest.skipUnless(HAVE_RAY, "needs Ray: scripts/setup --tests installs it")
class Transform(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        begin_ray()

    @classmethod
    def tearDownClass(cls):
        ray.shutdown()

    def test_token_rows_meet_and_are_answered_as_by_one_engine(self):
        prompts = skewed(3000)
        rows = dataset({"id": list(range(3000)), "prompt": prompts, "note": [f"row {i}" for i in range(3000)]}, 5)
        metrics = batchllm.ray.Metrics()
        found = by_key(batchllm.ray.transform(rows, params=RANDOM, key_column="id", partitions=6, engines=2,
                                              window_rows=400, metrics=metrics, **SIM))  # fmt: skip
        with batchllm.Engine(**SIM) as engine:
            alone = engine.generate(prompts, RANDOM)
        self.assertEqual(sorted(found), list(range(3000)))
        for i, result in enumerate(alone):
            self.assertEqual((found[i]["note"], list(found[i]["prompt"])), (f"row {i}", prompts[i]))
            self.assertEqual(list(found[i]["tokens"]), result.tokens.tolist(), i)
            self.assertEqual((found[i]["error"], found[i]["prompt_tokens"]), (None, len(prompts[i])))
            self.assertEqual(found[i]["completion_tokens"], len(found[i]["tokens"]))
        self.assertEqual((metrics.rows, metrics.errors), (3000, 0))
        self.assertEqual(metrics.prompt_tokens, sum(map(len, prompts)))
        self.assertGreater(metrics.saving_ratio, best_saving(prompts) - 0.05)
        self.assertIn("3,000 rows (0 errors)", repr(metrics))

    def test_equal_keys_and_equal_prompts_are_answered_and_shared(self):
        prompts = skewed(400)
        rows = dataset({"id": list(range(400)), "group": [i % 2 for i in range(400)], "prompt": prompts}, 3)
        found = {}
        for partitions in (1, 3):
            metrics = batchllm.ray.Metrics()
            answers = batchllm.ray.transform(rows, params=RANDOM, key_column="group", partitions=partitions, metrics=metrics, **SIM)
            found[partitions] = {i: list(row["tokens"]) for i, row in by_key(answers).items()}
            self.assertGreater(metrics.saving_ratio, best_saving(prompts) - 0.1)
        self.assertEqual(found[1], found[3])
        self.assertEqual(sorted(found[1]), list(range(400)))
        twice = dataset({"id": list(range(200)), "prompt": prompts[:100] * 2}, 2)
        equal = by_key(batchllm.ray.transform(twice, params=RANDOM, **SIM))
        self.assertEqual([list(equal[i]["tokens"]) for i in range(100)], [list(equal[100 + i]["tokens"]) for i in range(100)])
        self.assertEqual(len(equal), 200)

    def test_a_row_that_fails_has_an_error_and_its_columns(self):
        prompts = [[1, 2, 3], None, [], [5, -1], [7, 8], [1 << 40]]
        rows = dataset({"id": list(range(6)), "prompt": pyarrow.array(prompts, pyarrow.list_(pyarrow.int64()))}, 1)
        found = by_key(batchllm.ray.transform(rows, params=RANDOM, key_column="id", result_prefix="r_", **SIM))
        self.assertEqual([i for i in range(6) if found[i]["r_error"] is None], [0, 4])
        self.assertTrue(found[1]["r_error"].startswith("ROW_NULL"), found[1])
        self.assertEqual((found[3]["r_text"], found[3]["r_finish_reason"]), (None, "error"))

    def test_rows_have_pictures(self):
        folder = GOLDEN / "qwen3_vl_pictures"
        made = json.loads((folder / "pictures.json").read_text())
        names = [picture["file"] for picture in made["pictures"]]
        files = [(folder / name).read_bytes() for name in names]
        chosen = [i for _ in range(3) for i in (0, 1)]  # the same question about pictures 0 and 3
        numbers = [made["rows"][i]["pictures"][0] for i in chosen]
        few = {
            "params": SamplingParams(max_tokens=made["new_tokens"], add_special=False), "chat": True, "prompt_column": "question",
            "image_column": "page", "image_folders": [folder], **CPU, "kv_memory_bytes": 16 << 20, "compute_type": "f32",
        }  # fmt: skip
        columns = {
            "bytes": pyarrow.array([files[n] for n in numbers], pyarrow.binary()),
            "names": [names[n] for n in numbers],
            "lists": pyarrow.array([[files[n]] for n in numbers], pyarrow.list_(pyarrow.binary())),
        }
        for kind, pages in columns.items():
            rows = dataset({"id": list(range(6)), "question": ["What is this?"] * 6, "page": pages}, 2)
            metrics = batchllm.ray.Metrics()
            found = by_key(batchllm.ray.transform(rows, folder, partitions=2, metrics=metrics, **few))
            self.assertEqual(metrics.errors, 0, kind)
            for row, i in enumerate(chosen):
                expected = made["rows"][i]
                end = next((t for t, margin in enumerate(expected["margins"]) if margin < 1e-3), len(expected["tokens"]))
                self.assertEqual(list(found[row]["tokens"])[:end], expected["tokens"][:end], (kind, row))
        rows = dataset({"id": list(range(6)), "question": ["What is this?"] * 6, "page": columns["bytes"], "ends": [["yes", "no"]] * 6}, 2)
        scored = {key: value for key, value in few.items() if key != "params"}
        found = by_key(batchllm.ray.transform(rows, folder, continuations_column="ends", **scored))
        with batchllm.Engine(folder, **CPU, compute_type="f32") as engine:
            ask = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is this?"}]}]
            expected = engine.score([ask] * 6, ["yes", "no"], images=[files[n] for n in numbers])
        for row, result in enumerate(expected):
            self.assertEqual([round(x, 3) for x in found[row]["scores"]], [round(x, 3) for x in result.scores])
        arrays = [[[[n * 60, 0, 9]] * 40] * 30 for n in (1, 2)]
        pixels = ray.data.from_items([{"id": i, "question": "What is this?", "page": numpy.array(one, "uint8")} for i, one in enumerate(arrays)])
        found = by_key(batchllm.ray.transform(pixels, folder, **few))
        self.assertEqual([found[i]["error"] for i in range(2)], [None, None])
        with self.assertRaisesRegex(ValueError, "image_column"):
            batchllm.ray.transform(rows, folder, **{**few, "image_column": "none"})
        with self.assertRaisesRegex(TypeError, "pictures are"):
            batchllm.ray.transform(rows, folder, **{**few, "image_column": "id"})

    def test_texts_templates_and_conversations(self):
        few = {"params": SamplingParams(max_tokens=4, logprobs=1), "key_column": "id", **CPU}
        rows = dataset({"id": list(range(24)), "title": [f"number {i}" for i in range(24)], "stars": list(range(24))}, 2)
        found = by_key(batchllm.ray.transform(rows, MODEL, template="All of them begin like this. {title}, {stars}:", **few))
        texts = [f"All of them begin like this. number {i}, {i}:" for i in range(24)]
        with batchllm.Engine(MODEL, **CPU) as engine:
            alone = engine.generate(texts, few["params"])
        self.assertEqual([found[i]["text"] for i in range(24)], alone.texts)
        self.assertEqual([len(found[i]["logprobs"]) for i in range(24)], [len(one.logprobs) for one in alone])
        self.assertEqual(sorted(found[0]), sorted(["id", "title", "stars", "text", "tokens", "logprobs", "top_logprobs",
                         "finish_reason", "error", "prompt_tokens", "shared_tokens", "completion_tokens"]))  # fmt: skip
        text = by_key(batchllm.ray.transform(dataset({"id": list(range(24)), "q": texts}, 3), MODEL, prompt_column="q", **few))
        self.assertEqual([text[i]["text"] for i in range(24)], alone.texts)
        asked = [[{"role": "user", "content": f"hello {i % 3}"}] for i in range(6)]
        talk = by_key(batchllm.ray.transform(dataset({"id": list(range(6)), "prompt": asked}, 2), MODEL, **few))
        with batchllm.Engine(MODEL, **CPU) as engine:
            self.assertEqual([talk[i]["text"] for i in range(6)], engine.generate(asked, few["params"]).texts)

    def test_rows_have_parameters_and_constraints_of_their_own(self):
        rows = dataset({"id": list(range(6)), "prompt": ["Row"] * 6, "most": [1, 2, 3, None, 5, 6],
                        "must": [None, "[1]{3}", "[2]{3}", "[3]{3}", "[", None]}, 1)  # fmt: skip
        given = {"key_column": "id", **CPU}
        found = by_key(batchllm.ray.transform(rows, MODEL, params=SamplingParams(max_tokens=4, ignore_eos=True),
                                              max_tokens_column="most", **given))  # fmt: skip
        self.assertEqual([found[i]["completion_tokens"] for i in range(6)], [1, 2, 3, 4, 5, 6])
        found = by_key(batchllm.ray.transform(rows, MODEL, params=SamplingParams(choices=["p", "q"]), regex_column="must", **given))
        self.assertEqual([found[i]["text"] for i in (1, 2, 3)], ["111", "222", "333"])
        self.assertIn(found[0]["text"], ("p", "q"))
        self.assertTrue(found[4]["error"].startswith("ROW_CONSTRAINT: "), found[4])
        with self.assertRaisesRegex(Exception, "regex: character 1: a . without its"):
            batchllm.ray.transform(rows, MODEL, params=SamplingParams(regex="["), **given).take_all()

    def test_rows_have_adapters_of_their_own(self):
        base, names = GOLDEN / "llama_bias_f32", ["llama_qv_r4", "llama_one_layer", "missing", None, "phi3_fused", ""]
        given = {"adapters": {name: GOLDEN / "adapters" / name for name in names[:2]}, **CPU}
        few = {"max_tokens": 4, "ignore_eos": True}
        rows = dataset({"id": list(range(12)), "prompt": [[3, 4, 5, 6]] * 12, "who": names * 2}, 2)
        # A bad one is an error of its rows.
        adapters = {**given["adapters"], "phi3_fused": GOLDEN / "adapters/phi3_fused"}
        found = by_key(batchllm.ray.transform(rows, base, params=SamplingParams(**few), adapter_column="who", key_column="id", **{**given, "adapters": adapters}))
        with batchllm.Engine(base, **given) as engine:
            asked = [SamplingParams(**few, adapter=name) for name in (*names[:2], None)]
            alone = [list(one.tokens) for one in engine.generate([[3, 4, 5, 6]] * 3, asked)]
        self.assertEqual([list(found[i]["tokens"]) for i in (0, 1, 3, 5, 6, 7, 9, 11)], (alone + alone[2:]) * 2)
        self.assertTrue(found[2]["error"].startswith("ROW_ADAPTER: there is no adapter 'missing'"), found[2])
        self.assertRegex(found[4]["error"], "^ROW_ADAPTER: .*phi3_fused")
        with self.assertRaisesRegex(ValueError, "no row can name one"):
            batchllm.ray.transform(rows, base, params=SamplingParams(**few), **given)
        with self.assertRaisesRegex(Exception, "there is no adapter 'nobody'"):
            batchllm.ray.transform(rows, base, params=SamplingParams(adapter="nobody"), **given).take_all()
        with self.assertRaisesRegex(ValueError, "only for rows that generate"):
            batchllm.ray.transform(rows, base, adapter_column="who", task="embed", **given)

    def test_rows_are_scored_embedded_and_sampled(self):
        rows = dataset({"id": list(range(6)), "prompt": [f"Row {i}" for i in range(6)],
                        "choices": [[" yes", " no"]] * 5 + [None]}, 2)  # fmt: skip
        given = {"key_column": "id", **CPU}
        found = by_key(batchllm.ray.transform(rows, MODEL, continuations_column="choices", **given))
        with batchllm.Engine(MODEL, **CPU) as engine:
            alone = engine.score([f"Row {i}" for i in range(5)], [" yes", " no"])
            vectors = engine.embed([f"Row {i}" for i in range(6)], pooling="mean", normalize=True, dimensions=8)
        for i in range(5):
            self.assertEqual(list(found[i]["scores"]), alone[i].scores.tolist())
        self.assertEqual((found[5]["scores"], found[5]["error"]), (None, "ROW_EMPTY: no continuations"))
        found = by_key(batchllm.ray.transform(rows, MODEL, task="embed", pooling="mean", normalize=True, dimensions=8, **given))
        for i in range(6):
            self.assertTrue(numpy.allclose(found[i]["embedding"], vectors[i]), i)
        params = SamplingParams(max_tokens=3, n=3, temperature=1, seed=1)
        answers = batchllm.ray.transform(rows, MODEL, params=params, **given).take_all()
        self.assertEqual(sorted((row["id"], row["sample"]) for row in answers), [(i, j) for i in range(6) for j in range(3)])

    def test_an_actor_that_is_killed_costs_no_row_and_changes_none(self):
        prompts = skewed(4000)
        rows = dataset({"id": list(range(4000)), "prompt": prompts}, 4)
        given = {"params": RANDOM, "key_column": "id", "partitions": 8, "engines": 2, "window_rows": 100, **SIM}
        found, victim = killed(batchllm.ray.transform(rows, **given))
        self.assertGreater(victim, 0)
        self.assertEqual(sorted(row["id"] for row in found), list(range(4000)))
        with batchllm.Engine(**SIM) as engine:
            alone = engine.generate(prompts, RANDOM)
        for row in found:
            self.assertEqual(list(row["tokens"]), alone[row["id"]].tokens.tolist(), row["id"])

    def test_the_guide_runs_as_printed(self):
        blocks = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.M | re.S)
        self.assertEqual(len(blocks), 2)
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as out:
            chat_model(pathlib.Path(folder) / "path" / "to" / "model", None)
            before = os.getcwd()
            os.chdir(folder)
            try:
                values = {"__name__": "guide"}
                for block in blocks:
                    exec(compile(block, "docs/ray.md", "exec"), values)
                self.assertEqual([row["error"] for row in values["answers"].take_all()], [None, None])
                print(values["metrics"])
            finally:
                os.chdir(before)
        self.assertIn("52 rows (0 errors)", out.getvalue())

    def test_what_cannot_work_says_why(self):
        rows = dataset({"id": [1], "prompt": ["a"]}, 1)

        def refused(kind, text, **options):
            with self.assertRaisesRegex(kind, text):
                batchllm.ray.transform(rows, MODEL, **options)

        refused(TypeError, r"no option 'partition'; did you mean partitions", partition=3)
        refused(TypeError, r"no option 'max_tokens'; it is one of params=batchllm.SamplingParams\(max_tokens=", max_tokens=3)
        refused(ValueError, r"prompt_column: there is no column 'question'; there are 'id', 'prompt'", prompt_column="question")
        refused(TypeError, "column 'id': int64 is neither text", prompt_column="id")
        refused(TypeError, "column 'prompt': string is no integer", key_column="prompt")
        refused(ValueError, "task is 'rank'", task="rank")
        refused(batchllm.InvalidArgumentError, "template: the table has no column 'title'", template="{title}")
        taken = dataset({"text": ["a"], "prompt": ["a"]}, 1)
        with self.assertRaisesRegex(ValueError, "the rows have a column 'text', and so have the results: give a result_prefix"):
            batchllm.ray.transform(taken, MODEL)


def killed(answers):
    """The rows of a dataset, where an actor is killed (kill -9) after the first row; -> rows, its pid."""
    found, victim = [], []

    def strike():
        while not victim:
            time.sleep(0.02)
            for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):
                    if path.read_bytes().startswith(b"ray::MapWorker(MapBatches(RowEngine)") and found:
                        victim.append(int(path.parent.name))
                        os.kill(victim[0], signal.SIGKILL)
                        return

    thread = threading.Thread(target=strike)
    thread.start()
    for row in answers.iter_rows():
        found.append(row)
    seen = bool(victim)
    victim.append(0)
    thread.join()
    return found, victim[0] if seen else 0


def must_show():
    begin_ray()
    prompts = skewed(20_000)
    best = best_saving(prompts)
    rows = dataset({"id": list(range(20_000)), "prompt": prompts}, 8).materialize()
    given = {"params": RANDOM, "key_column": "id", "partitions": 12, "engines": 2, "window_rows": 400, **SIM}
    runs = {}
    for name in ("undisturbed", "an actor killed"):
        metrics = batchllm.ray.Metrics()
        begin = time.monotonic()
        answers = batchllm.ray.transform(rows, metrics=metrics, **given)
        found, victim = (answers.take_all(), 0) if name == "undisturbed" else killed(answers)
        seconds = time.monotonic() - begin
        runs[name] = {row["id"]: list(row["tokens"]) for row in found}
        total = sum(map(len, prompts))
        saving = 1 - metrics.processed_prompt_tokens / total
        print(f"{name}: {len(found)} rows, {len(runs[name])} different, {metrics.errors} errors, saving {saving:.4f}"
              f" (one plan over all {best:.4f}), {seconds:.1f} s" + (f", pid {victim}" if victim else ""))  # fmt: skip
        assert len(found) == len(runs[name]) == 20_000 and metrics.errors == 0
        assert best - 0.02 < saving <= best, saving
        assert victim or name == "undisturbed", "no actor was killed"
    assert runs["undisturbed"] == runs["an actor killed"], "answers differ"
    ray.shutdown()


if __name__ == "__main__":
    if not HAVE_RAY and sys.argv[1:] in (["--must-show"], ["Transform"]):
        print(f"skipped: no ray in {sys.executable} (scripts/setup --tests installs it)")
        sys.exit(77)
    if "--must-show" in sys.argv:
        must_show()
    else:
        unittest.main()
