"""Rows with pictures, in every form that Python has for one."""

import asyncio
import importlib
import json
import os
import pathlib
import shutil
import tempfile
import unittest

import batchllm
from batchllm.pictures import picture_column

GOLDEN = pathlib.Path(__file__).resolve().parents[3] / "tests" / "golden"
MODEL = GOLDEN / "qwen3_vl_pictures"
MADE = json.loads((MODEL / "pictures.json").read_text())
ROWS, FILES = MADE["rows"], [picture["file"] for picture in MADE["pictures"]]
BYTES = [(MODEL / name).read_bytes() for name in FILES]
PARAMS = batchllm.SamplingParams(max_tokens=MADE["new_tokens"], add_special=False)


def optional(name):
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def engine(**options):
    return batchllm.Engine(MODEL, backend="cpu", compute_type="f32", kv_memory_bytes=16 << 20, threads=2, **options)


def tensors_of(path):
    """The header of a safetensors file and its data: name -> {"dtype", "shape", "data_offsets"}, bytes."""
    file = path.read_bytes()
    size = 8 + int.from_bytes(file[:8], "little")
    return json.loads(file[8:size]), file[size:]


def write_tensors(path, tensors):
    """tensors: name -> (dtype, shape, bytes)"""
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def matrix_of(numpy, tensors, data, name):
    """A matrix of bf16, as float32."""
    about = tensors[name]
    bits = numpy.frombuffer(data[slice(*about["data_offsets"])], "<u2").astype("<u4") << 16
    return bits.view("<f4").reshape(about["shape"])


def messages_of(row, part_of):
    made = json.loads(json.dumps(row["messages"]))
    for message in made:
        if isinstance(message["content"], list):
            message["content"] = [part_of(p["image"]) if p["type"] == "image" else p for p in message["content"]]
    return made


class Pictures(unittest.TestCase):
    def assert_said(self, results, rows=ROWS):
        self.assertEqual(len(results), len(rows))
        for result, row in zip(results, rows):
            self.assertIsNone(result.error)
            end = next((t for t, margin in enumerate(row["margins"]) if margin < 1e-3), len(row["tokens"]))
            self.assertEqual(list(result.tokens)[:end], row["tokens"][:end])
            self.assertEqual(result.prompt_tokens, len(row["prompt"]))

    def test_bytes_and_paths(self):
        texts = [row["text"] for row in ROWS]
        with engine(image_folders=[MODEL]) as made:
            self.assertGreater(made.info().picture_slots, 0)
            self.assert_said(made.generate(texts, PARAMS, images=[[BYTES[n] for n in row["pictures"]] for row in ROWS]))
            self.assert_said(made.generate(texts, PARAMS, images=[[FILES[n] for n in row["pictures"]] for row in ROWS]))
            named = [messages_of(row, lambda n: {"type": "image", "image": FILES[n]}) for row in ROWS]
            self.assert_said(made.chat(named, PARAMS))
            places = [messages_of(row, lambda n: {"type": "image"}) for row in ROWS]
            found = made.chat(places, PARAMS, images=[[pathlib.Path(FILES[n]) for n in row["pictures"]] for row in ROWS])
            self.assert_said(found)
            stats = made.stats()
            self.assertGreater(stats.row_pictures, stats.picture_loads)

    def assert_near(self, found, wanted):
        """The last bits may differ with the rows of a step (docs/reproducible.md)."""
        self.assertEqual(len(found), len(wanted))
        for one, two in zip(found, wanted):
            self.assertAlmostEqual(one, two, delta=1e-4 * max(1, abs(two)))

    def test_every_task_takes_pictures(self):
        row, other = ROWS[0], ROWS[1]  # the same question about two pictures
        texts, images = [row["text"], other["text"], None], [BYTES[row["pictures"][0]], BYTES[other["pictures"][0]], None]
        chats = [messages_of(row, lambda n: {"type": "image"}), messages_of(other, lambda n: {"type": "image"}), None]
        named = [messages_of(one, lambda n: {"type": "image", "image": FILES[n]}) for one in (row, other)] + [None]
        ends = ["yes", "no"]
        with engine(image_folders=[MODEL]) as made:
            tokens = {result.tag: list(result.tokens) for result in made.stream(texts, PARAMS, images=images)}
            self.assert_said(made.generate(texts[:2], PARAMS, images=images[:2]), ROWS[:2])
            self.assertEqual(tokens[0], list(made.generate(texts[:1], PARAMS, images=images[:1])[0].tokens))

            async def collect():
                return {one.tag: list(one.tokens) async for one in made.astream(chats, PARAMS, images=images)}

            self.assertEqual(asyncio.run(collect()), tokens)
            vectors = made.embed(texts, images=images, add_special=False, on_error="return").tolist()
            for one, two in zip(made.embed(chats, images=images, on_error="return").tolist()[:2], vectors[:2]):
                self.assert_near(one, two)
            self.assertNotEqual(vectors[0], vectors[1])
            scored = made.score(texts, ends, add_special=False, images=images)
            self.assertEqual([result.ok for result in scored], [True, True, False])
            for rows, pictures in ((chats, images), (named, None)):
                found = made.score(rows, ends, images=pictures)
                self.assert_near(found.scores.tolist(), scored.scores.tolist())
            generated = made.generate(texts[:2], batchllm.SamplingParams(max_tokens=2, add_special=False, logprobs=0), images=images[:2])
            again = made.score(texts[:2], [[one.text] for one in generated], add_special=False, images=images[:2])
            for one, two in zip(generated, again):
                if len(two.score_logprobs[0]) == len(one.tokens):  # else its text is cut otherwise
                    self.assertAlmostEqual(sum(one.logprobs), two.scores[0], places=3)
            ranks = made.rerank(texts[:2], *ends, add_special=False, images=images[:2])
            self.assert_near(ranks, made.rerank(chats[:2], *ends, images=images[:2]))
            for few in (images[:2], images + [None]):
                with self.assertRaisesRegex(ValueError, "images of"):
                    made.score(texts, ends, images=few)
            for call in (made.generate, made.embed, lambda rows, images: made.score(rows, ends, images=images)):
                for rows in ([texts[0], None, texts[1]], texts[:2] + [None]):
                    with self.assertRaisesRegex(ValueError, "images of 2 rows for 3 rows"):
                        call(rows, images=images[:2])
            with self.assertRaisesRegex(TypeError, "texts or conversations"):
                made.score([[1, 2]], [[3]], images=[None])

    def test_vectors_of_rows_with_pictures_are_what_the_head_reads(self):
        numpy = optional("numpy")
        if numpy is None:
            self.skipTest("NumPy is not installed")
        head = matrix_of(numpy, *tensors_of(MODEL / "model.safetensors"), "lm_head.weight")
        with engine() as made:
            images = [[BYTES[n] for n in row["pictures"]] for row in ROWS]
            vectors = made.embed([row["text"] for row in ROWS], images=images, add_special=False, normalize=False)
        for row, vector in zip(ROWS, vectors):
            logits = head.astype("f8") @ vector.astype("f8")
            largest = logits.max()
            logprob = logits[row["tokens"][0]] - largest - numpy.log(numpy.exp(logits - largest).sum())
            self.assertAlmostEqual(logprob, row["logprobs"][0], places=3)

    def test_adapters_change_the_text_of_rows_with_pictures(self):
        numpy = optional("numpy")
        if numpy is None:
            self.skipTest("NumPy is not installed")
        folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder)
        tensors, data = tensors_of(MODEL / "model.safetensors")
        random = numpy.random.default_rng(1)
        merged = {name: (about["dtype"], about["shape"], data[slice(*about["data_offsets"])])
                  for name, about in tensors.items() if name != "__metadata__"}  # fmt: skip
        changes = {}
        for layer in range(3):
            for part in ("self_attn.q_proj", "mlp.down_proj"):
                name = f"language_model.layers.{layer}.{part}"
                stored = next(key for key in merged if key.endswith(f"{name}.weight"))
                weight = matrix_of(numpy, tensors, data, stored)
                a, b = (random.normal(0, 0.2, shape).astype("<f4") for shape in ((4, weight.shape[1]), (weight.shape[0], 4)))
                changes[f"base_model.model.model.{name}.lora_A.weight"] = "F32", a.shape, a.tobytes()
                changes[f"base_model.model.model.{name}.lora_B.weight"] = "F32", b.shape, b.tobytes()
                merged[stored] = "F32", weight.shape, (weight + 2 * b @ a).astype("<f4").tobytes()
        shutil.copytree(MODEL, folder / "merged")
        write_tensors(folder / "merged" / "model.safetensors", merged)
        (folder / "adapter").mkdir()
        write_tensors(folder / "adapter" / "adapter_model.safetensors", changes)
        config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"]}
        (folder / "adapter" / "adapter_config.json").write_text(json.dumps(config))
        texts, images = [row["text"] for row in ROWS], [[BYTES[n] for n in row["pictures"]] for row in ROWS]
        params = batchllm.SamplingParams(max_tokens=6, add_special=False, logprobs=0, ignore_eos=True)
        options = {"backend": "cpu", "compute_type": "f32", "kv_memory_bytes": 16 << 20, "threads": 2}
        with batchllm.Engine(folder / "merged", **options) as made:
            expected = made.generate(texts, params, images=images)
        with engine(adapters={"a": folder / "adapter"}) as made:
            plain = made.generate(texts, params, images=images)
            named = batchllm.SamplingParams(max_tokens=6, add_special=False, logprobs=0, ignore_eos=True, adapter="a")
            found = made.generate(texts, named, images=images)
        changed = sum(list(one.tokens) != list(two.tokens) for one, two in zip(expected, plain))
        self.assertGreater(changed, len(ROWS) // 2)
        for one, two in zip(expected, found):
            self.assertAlmostEqual(one.logprobs[0], two.logprobs[0], places=3)
        same = sum(list(one.tokens) == list(two.tokens) for one, two in zip(expected, found))
        self.assertGreaterEqual(same, len(ROWS) - 1)  # two tokens may be about equally likely

    def test_files_of_rows_with_pictures_are_scored(self):
        if optional("pyarrow") is None:
            self.skipTest("pyarrow is not installed")
        import pyarrow
        import pyarrow.parquet

        folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder)
        rows = ROWS[:2]
        columns = {
            "prompt": [row["text"] for row in rows] + [rows[0]["text"]],
            "question": ["What is this?"] * 3,
            "page": [BYTES[row["pictures"][0]] for row in rows] + [b"no picture"],
            "ends": [["yes", "no"]] * 3,
        }
        pyarrow.parquet.write_table(pyarrow.table(columns), folder / "in.parquet")
        with engine() as made:
            expected = made.score(columns["prompt"][:2], ["yes", "no"], add_special=False, images=columns["page"][:2])
            for more in ({}, {"chat": True, "prompt_column": "question"}, {"chat": True, "template": "{question}"}):
                out = folder / f"{len(more)}{sorted(more)[-1:]}.parquet"
                done = batchllm.run_files(made, folder / "in.parquet", out, image_column="page", continuations_column="ends",
                                          params=batchllm.SamplingParams(add_special=False), columns=[], **more)  # fmt: skip
                self.assertEqual((done.rows, done.failed), (3, 1))
                table = pyarrow.parquet.read_table(out)
                for found, result in zip(table.column("scores").to_pylist(), expected):
                    for one, two in zip(found, result.scores):
                        self.assertAlmostEqual(one, two, places=4)
                self.assertIn("ROW_PICTURE", table.column("error").to_pylist()[2])

    def test_one_picture_or_none_for_a_row(self):
        row = next(row for row in ROWS if len(row["pictures"]) == 1)
        text = next((row for row in ROWS if not row["pictures"]), None)
        rows = [row] + ([text] if text else [])
        with engine() as made:
            images = [BYTES[row["pictures"][0]], None][: len(rows)]
            self.assert_said(made.generate([row["text"] for row in rows], PARAMS, images=images), rows)

    def test_arrays_and_images_of_pil(self):
        numpy, image = optional("numpy"), optional("PIL.Image")
        if numpy is None or image is None:
            self.skipTest("NumPy and PIL are not installed")
        rows = [row for row in ROWS if len(row["pictures"]) == 1]
        texts = [row["text"] for row in rows]
        opened = [image.open(MODEL / FILES[row["pictures"][0]]).convert("RGB") for row in rows]
        with engine() as made:
            self.assert_said(made.generate(texts, PARAMS, images=opened), rows)
            self.assert_said(made.generate(texts, PARAMS, images=[numpy.asarray(one) for one in opened]), rows)

    def test_images_of_pil_that_png_cannot_hold_are_converted(self):
        image = optional("PIL.Image")
        if not image:
            self.skipTest("PIL is not installed")
        grey = {"CMYK": (0, 0, 0, 55), "YCbCr": (200, 128, 128), "HSV": (0, 0, 200), "RGBX": (200, 200, 200, 0)}
        with engine() as made:
            chat = [[{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "a"}]}]]
            pictures = [image.new(mode, (64, 64), colour) for mode, colour in grey.items()]
            pictures += [image.new("RGBA", (64, 64), (9, 99, 199, 255)).convert("RGBa"), image.new("PA", (64, 64))]
            for picture in pictures:
                mode, same = picture.mode, picture.convert("RGBA" if picture.mode in ("RGBa", "PA") else "RGB")
                pair = made.chat(chat * 2, batchllm.SamplingParams(max_tokens=4), images=[picture, same])
                self.assertEqual([result.error for result in pair], [None, None], mode)
                self.assertEqual(pair[0].text, pair[1].text, mode)
            self.assertIsNone(made.chat(chat, PARAMS, images=[image.new("I", (64, 64), 40000)])[0].error)
            dark = [image.frombytes(mode, (64, 64), (8000).to_bytes(2, order) * 4096) for mode, order in (("I;16", "little"), ("I;16B", "big"), ("I;16L", "little"))]
            same = made.chat(chat * 3, batchllm.SamplingParams(max_tokens=4, logprobs=1), images=dark)
            self.assertEqual({(result.error, result.text) for result in same}, {(None, same[0].text)})
            with self.assertRaisesRegex(TypeError, "in mode F: its numbers have no range"):
                made.chat(chat, PARAMS, images=[image.new("F", (64, 64), 0.5)])

    def test_columns(self):
        rows = [row for row in ROWS if len(row["pictures"]) == 1]
        for name, column in (("pyarrow", "array"), ("pandas", "Series"), ("polars", "Series")):
            module = optional(name)
            if module is None:
                continue
            images = getattr(module, column)([BYTES[row["pictures"][0]] for row in rows])
            with engine() as made:
                self.assert_said(made.generate([row["text"] for row in rows], PARAMS, images=images), rows)

    def test_tables_have_pictures(self):
        rows = [row for row in ROWS[:2]]  # a picture, then the question
        images = [BYTES[row["pictures"][0]] for row in rows]
        frame = {"question": ["What is this?", "What is this?"], "page": images}
        with engine(image_folders=[MODEL]) as made:
            self.assert_said(made.generate_table(frame, "{question}", PARAMS, chat=True, images="page"), rows)
            names = [[FILES[row["pictures"][0]]] for row in rows]
            self.assert_said(made.generate_table(frame, "{question}", PARAMS, chat=True, images=names), rows)
            text = rows[0]["text"].replace("What is this?", "{question}")
            self.assert_said(made.generate_table(frame, text, PARAMS, images=images), rows)
            table = batchllm.Table(frame, "{question}", chat=True, fields="reorder", pictures=[1, 1])
            self.assertIn('{"type":"image"}', table[0])
            self.assertEqual([result.ok for result in made.generate_table(table, params=PARAMS, images=images)], [True, True])
            missing = made.generate_table({"q": [None, "x"]}, "{q}", PARAMS, chat=True, images=[BYTES[0], None])
            self.assertEqual([result.ok for result in missing], [False, True])
            with self.assertRaises(batchllm.InvalidArgumentError):
                batchllm.Table(frame, "{question}", chat=True, pictures=[1])
            with self.assertRaisesRegex(batchllm.InvalidArgumentError, "no field"):
                batchllm.Table(frame, "question", chat=True, pictures=[1, 1])

    def test_files_have_columns_of_pictures(self):
        if optional("pyarrow") is None:
            self.skipTest("pyarrow is not installed")
        import pyarrow
        import pyarrow.parquet

        rows = [row for row in ROWS if len(row["pictures"]) <= 2]
        numbers = [row["pictures"] for row in rows]
        folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder)
        for name in FILES:
            shutil.copy(MODEL / name, folder / name)
        of_datasets = pyarrow.list_(pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())]))
        structs = [[{"bytes": BYTES[n], "path": None} for n in own] for own in numbers]
        columns = {
            "bytes": [[BYTES[n] for n in own] for own in numbers],
            "paths": [[FILES[n] for n in own] for own in numbers],
            "structs": pyarrow.array(structs, of_datasets),
        }
        given = folder / "in.parquet"
        pyarrow.parquet.write_table(pyarrow.table({"prompt": [row["text"] for row in rows], **columns}), given)
        options = {"backend": "cpu", "compute_type": "f32", "kv_memory_bytes": 16 << 20, "threads": 2}
        first = None
        for name in columns:
            out = folder / f"{name}.parquet"
            done = batchllm.run_files(
                MODEL, given, out, image_column=name, params=PARAMS, columns=["prompt"], chunk_rows=3, engine_options=options
            )
            self.assertEqual((done.rows, done.failed), (len(rows), 0))
            table = pyarrow.parquet.read_table(out)
            first = first or table
            self.assertEqual(table.column("text").to_pylist(), first.column("text").to_pylist())
            self.assertEqual(table.column("prompt_tokens").to_pylist(), [len(row["prompt"]) for row in rows])
            self.assertEqual((folder / f"{name}.parquet.pictures").exists(), name == "paths")
        with self.assertRaisesRegex(batchllm.InvalidArgumentError, "image_column"):
            batchllm.run_files(MODEL, given, folder / "no.parquet", image_column="none", engine_options=options)

    def test_files_of_messages_and_of_fields_have_pictures(self):
        if optional("pyarrow") is None:
            self.skipTest("pyarrow is not installed")
        import pyarrow
        import pyarrow.csv

        folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder)
        rows = ROWS[:2]
        for row in rows:
            shutil.copy(MODEL / FILES[row["pictures"][0]], folder)
        paths = [FILES[row["pictures"][0]] for row in rows]
        table = pyarrow.table({"question": ["What is this?"] * 2, "page": paths})
        pyarrow.csv.write_csv(table, folder / "in.csv")
        with engine(image_folders=[folder]) as made:
            for more in ({"prompt_column": "question"}, {"template": "What is this?\n-{question}", "fields": "reorder"}):
                out = folder / f"{len(more)}.csv"
                done = batchllm.run_files(
                    made, folder / "in.csv", out, chat=True, image_column="page", params=PARAMS, chunk_rows=1, **more
                )
                self.assertEqual(done.failed, 0)
                tokens = pyarrow.csv.read_csv(out).column("prompt_tokens").to_pylist()
                shorter = 0 if "template" not in more else min(tokens[0], 40) - len(rows[0]["prompt"])
                self.assertEqual(tokens, [len(row["prompt"]) + shorter for row in rows])

    def test_a_bad_picture_ends_only_its_row(self):
        if optional("pyarrow") is None:
            self.skipTest("pyarrow is not installed")
        import pyarrow
        import pyarrow.parquet

        folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder)
        shutil.copy(MODEL / FILES[0], folder / "a.png")
        of_datasets = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
        structs = [{"bytes": BYTES[0], "path": "b.png"}, {"bytes": None, "path": "a.png"}, {"bytes": None, "path": None},
                   {"bytes": b"", "path": "a.png"}]  # fmt: skip
        columns = {"one": pyarrow.array(structs, of_datasets)}
        columns["lists"] = pyarrow.array([[None, one, None] for one in structs], pyarrow.list_(of_datasets))
        given = folder / "in.parquet"
        prompts = {"prompt": [ROWS[0]["text"]] * 4, "question": ["What is this?"] * 4}
        pyarrow.parquet.write_table(pyarrow.table({**prompts, **columns}), given)
        with engine(image_folders=[folder]) as made:
            for name in columns:
                for more in ({}, {"chat": True, "prompt_column": "question"}):
                    out = folder / f"{name}{len(more)}.parquet"
                    batchllm.run_files(made, given, out, image_column=name, params=PARAMS, **more)
                    table = pyarrow.parquet.read_table(out)
                    self.assertEqual(table.column(name).type, columns[name].type)
                    self.assertEqual(table.column(name).to_pylist(), columns[name].to_pylist())
                    errors = table.column("error").to_pylist()
                    self.assertEqual(errors[:2], [None, None])
                    self.assertEqual([error.split(":")[0] for error in errors[2:]], ["ROW_PICTURE"] * 2)
            self.assert_said(made.generate([ROWS[0]["text"]], PARAMS, images=[[structs[1], None]]), ROWS[:1])
            flat = pyarrow.fixed_shape_tensor(pyarrow.uint8(), (2, 2))
            pages = pyarrow.ExtensionArray.from_storage(flat, pyarrow.array([[1, 2, 3, 4]], flat.storage_type))
            pyarrow.parquet.write_table(pyarrow.table({"prompt": ["x"], "page": pages}), given)
            with self.assertRaisesRegex(batchllm.InvalidArgumentError, "image_column: .*tensor"):
                batchllm.run_files(made, given, folder / "no.parquet", image_column="page")

    def test_a_column_of_pictures_has_wide_offsets(self):
        if optional("pyarrow") is None:
            self.skipTest("pyarrow is not installed")
        import pyarrow
        import pyarrow.parquet

        from batchllm.file_formats import open_reader

        folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder)
        one = pyarrow.struct([pyarrow.field("bytes", pyarrow.binary(), nullable=False), ("path", pyarrow.string())])
        wide = pyarrow.struct([pyarrow.field("bytes", pyarrow.large_binary(), nullable=False), ("path", pyarrow.large_string())])
        value = {"bytes": b"x", "path": "p"}
        given = pyarrow.table({"one": pyarrow.array([value], one), "lists": pyarrow.array([[value]], pyarrow.list_(one)),
                               "large": pyarrow.array([[b"x"]], pyarrow.large_list(pyarrow.binary()))})  # fmt: skip
        pyarrow.parquet.write_table(given, folder / "in.parquet")
        reader = open_reader(str(folder / "in.parquet"), "parquet", None)
        self.addCleanup(reader.close)
        [(_, table)] = reader.pieces(lambda *_: True)
        self.assertEqual(table.schema.types, [wide, pyarrow.list_(wide), pyarrow.large_list(pyarrow.large_binary())])
        self.assertEqual(table.to_pylist(), given.to_pylist())

    def test_pictures_are_counted_as_they_are_added(self):
        if optional("pyarrow") is None:
            self.skipTest("pyarrow is not installed")
        import pyarrow

        from batchllm.file_rows import Prompts, _picture_counts

        for kind in (pyarrow.list_(pyarrow.binary()), pyarrow.large_list(pyarrow.large_binary())):
            lists = pyarrow.array([[b"no"], [b"a", None], None, [], [None], [b"b", b"c"]], kind)
            for column in (pyarrow.chunked_array([lists[1:], lists[1:3]]), pyarrow.chunked_array([], kind)):
                prompts = Prompts("x", None, "given", False, None, "page")
                made = prompts.images_of(pyarrow.table({"page": column}))
                self.assertEqual(list(_picture_counts(column)), list(map(len, made)))
        self.assertEqual(list(_picture_counts(pyarrow.chunked_array([[b"a", None]]))), [1, 0])

    def test_a_file_is_not_resumed_with_other_pictures(self):
        if optional("pyarrow") is None:
            self.skipTest("pyarrow is not installed")
        import pyarrow
        import pyarrow.csv

        folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder)
        shutil.copy(MODEL / FILES[0], folder / "a.png")
        pyarrow.csv.write_csv(pyarrow.table({"prompt": [ROWS[0]["text"]], "page": ["a.png"]}), folder / "in.csv")

        def run(made, **more):
            return batchllm.run_files(made, folder / "in.csv", folder / "out.csv", image_column="page", params=PARAMS, **more)

        (folder / "other").mkdir()
        with engine(image_folders=[folder]) as made:
            run(made)
            with engine(image_folders=[folder / "other"]) as other:
                with self.assertRaisesRegex(batchllm.JournalMismatchError, "image_folders"):
                    run(other, resume=True)
            shutil.copy(MODEL / FILES[1], folder / "a.png")
            with self.assertRaisesRegex(batchllm.JournalMismatchError, "a.png"):
                run(made, resume=True)
            self.assertEqual(run(made, force=True).failed, 0)
            with batchllm.Journal(folder / "own") as journal:
                journal.use_pictures(made)
        with engine() as made, batchllm.Journal(folder / "own") as journal, self.assertRaises(ValueError):
            journal.use_pictures(made)

    def test_a_file_of_messages_is_not_resumed_with_other_pictures(self):
        if optional("pyarrow") is None:
            self.skipTest("pyarrow is not installed")
        import pyarrow
        import pyarrow.parquet

        folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder)
        shutil.copy(MODEL / FILES[0], folder / "a.png")
        messages = [{"role": "user", "content": [{"type": "image", "image": "a.png"}]}]
        pyarrow.parquet.write_table(pyarrow.table({"prompt": [messages]}), folder / "in.parquet")
        with engine(image_folders=[folder]) as made:
            done = batchllm.run_files(made, folder / "in.parquet", folder / "out.parquet", params=PARAMS)
            self.assertEqual(done.failed, 0)
            shutil.copy(MODEL / FILES[1], folder / "a.png")
            with self.assertRaisesRegex(batchllm.JournalMismatchError, "a.png"):
                batchllm.run_files(made, folder / "in.parquet", folder / "out.parquet", params=PARAMS, resume=True)

    def test_what_is_wrong_is_said(self):
        text = ROWS[0]["text"]
        with engine() as made:
            results = made.generate([text] * 4, PARAMS, images=[b"", "a.png", [], "http://host/a.png"])
            for result, says in zip(results, ("picture 1", "names no folder", "places for pictures", "never fetched")):
                self.assertIn(says, result.error)
                self.assertEqual(result.status, batchllm.native.BATCHLLM_ERROR_ROW_PICTURE)
            with self.assertRaises(ValueError):
                made.generate([text], PARAMS, images=[BYTES[0]] * 2)
            with self.assertRaises(TypeError):
                made.generate([text], PARAMS, images=BYTES[0])
            with self.assertRaises(TypeError):
                made.generate([text], PARAMS, images=[1.5])
            with self.assertRaises(TypeError):
                made.generate([[1, 2]], PARAMS, images=[BYTES[0]])
            made.run()

    def test_a_column_has_what_was_given(self):
        column = picture_column([None, BYTES[0], [BYTES[1], os.fspath("b.png")], float("nan")])
        self.assertEqual(list(column.rows), [0, 0, 1, 3, 3])
        self.assertEqual(column.kinds, bytes([0, 0, 1]))
        self.assertEqual(column.data, BYTES[0] + BYTES[1] + b"b.png")


if __name__ == "__main__":
    unittest.main()
