"""Tables: frames of every kind to prompts, and their results in the order of the rows."""

import array
import importlib.util
import re
import unittest
import unittest.mock

import batchllm
from batchllm import SamplingParams
from support import MODEL, chat_model

FRAME = {
    "own": [f"number {i}" for i in range(50)],
    "kind": [f"one of kind {i % 4} with a long name" for i in range(50)],
    "all": ["what every row of this table says"] * 50,
}
TEMPLATE = "Tell.\n{own}\nKind: {kind}\n{all}\nAnswer:"


def have(*names):
    return all(importlib.util.find_spec(name) for name in names)


class Prompts(unittest.TestCase):
    def test_given_and_reordered(self):
        table = batchllm.Table(FRAME, TEMPLATE)
        self.assertEqual(len(table), 50)
        self.assertEqual(table[3], "Tell.\nnumber 3\nKind: one of kind 3 with a long name\nwhat every row of this table says\nAnswer:")
        self.assertEqual(table.field_order(3), ["own", "kind", "all"])
        moved = batchllm.Table(FRAME, TEMPLATE, fields="reorder")
        self.assertEqual(moved[-47], "Tell.\nall: what every row of this table says\nKind: one of kind 3 with a long name\nown: number 3\nAnswer:")
        self.assertEqual(moved.field_order(3), ["all", "kind", "own"])
        self.assertEqual(sorted(moved.row_order), list(range(50)))
        self.assertGreater(moved.hit_rate, 0.6)
        self.assertEqual(moved.given_hit_rate, 0)
        with self.assertRaises(IndexError):
            table[50]

    def test_a_table_is_added_a_slice_at_a_time(self):
        frames = {"dict": FRAME}
        if have("pandas"):
            frames["pandas"] = importlib.import_module("pandas").DataFrame(FRAME)
        if have("polars"):
            frames["polars"] = importlib.import_module("polars").DataFrame(FRAME)
        if have("pyarrow"):
            frames["pyarrow"] = importlib.import_module("pyarrow").table(FRAME)
        made = []

        class Counted(batchllm.Table):
            def __init__(self, frame, *given, **named):
                super().__init__(frame, *given, **named)
                made.append(len(self))

        with batchllm.Engine(MODEL) as engine:
            whole = engine.generate([batchllm.Table(FRAME, TEMPLATE)[i] for i in range(50)], SamplingParams(max_tokens=3))
            with unittest.mock.patch("batchllm.table.Table", Counted), unittest.mock.patch("batchllm.table.TableSlices.rows_each", 16):
                for name, frame in frames.items():
                    made.clear()
                    params = [SamplingParams(max_tokens=3)] * 50 if name == "dict" else SamplingParams(max_tokens=3)
                    found = engine.generate_table(frame, TEMPLATE, params)
                    self.assertEqual((made, found.texts), ([16, 16, 16, 2], whole.texts), name)
                with self.assertRaisesRegex(batchllm.InvalidArgumentError, "titel"):
                    engine.generate_table(FRAME, "{titel}")
                with self.assertRaisesRegex(ValueError, "0 rows"):
                    engine.generate_table({"a": ["x"] * 40, "b": []}, "{a}{b}")

    def test_chat(self):
        table = batchllm.Table({"q": ['say "hi"']}, "{q}", chat=True, system="Be kind.")
        self.assertEqual(table[0], '[{"role":"system","content":"Be kind."},{"role":"user","content":"say \\"hi\\""}]')

    def test_cells_of_all_kinds_and_nulls(self):
        table = batchllm.Table({"a": ["x", None, "z"], "b": [1, 2.5, True]}, "{a}{b}")
        self.assertEqual([table[i] for i in range(3)], ["x1", None, "ztrue"])

    def test_what_is_wrong_is_said(self):
        for frame, template, error, words in (
            (FRAME, "{titel}", batchllm.InvalidArgumentError, "titel"),
            (FRAME, "{own", batchllm.InvalidArgumentError, "without its }"),
            (FRAME, "none", batchllm.InvalidArgumentError, "no field"),
            ({"a": ["x"], "b": []}, "{a}{b}", ValueError, "0 rows"),
            ({"a": "x"}, "{a}", TypeError, "one str"),
            (["x"], "{a}", TypeError, "one list"),
        ):
            with self.assertRaisesRegex(error, words):
                batchllm.Table(frame, template)
        with self.assertRaisesRegex(ValueError, "fields is 'any'"):
            batchllm.Table(FRAME, TEMPLATE, fields="any")
        with self.assertRaisesRegex(batchllm.InvalidArgumentError, "system: a zero byte"):
            batchllm.Table(FRAME, "{own}", chat=True, system="a\0b")
        with self.assertRaisesRegex(batchllm.InvalidArgumentError, "a zero byte in its name"):
            batchllm.Table({"a\0b": ["x"]}, "{a\0b}")
        frame = batchllm.native.batchllm_frame_create(1)
        with self.assertRaisesRegex(batchllm.InvalidArgumentError, "row 0 fall, or end behind"):
            batchllm.native.batchllm_frame_extend(frame, 0, b"abc", array.array("q", [0, 1 << 40, 3]), b"\1\1")
        with self.assertRaisesRegex(batchllm.InvalidArgumentError, "in one line"):
            batchllm.Table(FRAME, "{own} {kind}", fields="reorder")


class Frames(unittest.TestCase):
    @unittest.skipUnless(have("pyarrow"), "needs pyarrow")
    def test_arrow_tables_of_every_type_in_chunks(self):
        import pyarrow as pa

        texts = ["Pérù", None, "", "x" * 40, "tail"]
        cells = {
            "u": pa.array(texts),
            "U": pa.array(texts, pa.large_utf8()),
            "v": pa.array(texts, pa.string_view()),
            "d": pa.array(texts).dictionary_encode(),
            "i": pa.array([1, None, -3, 4, 5], pa.int16()),
            "L": pa.array([2**63, None, 3, 4, 5], pa.uint64()),
            "g": pa.array([0.1, None, 1e300, 4, 5]),
            "f": pa.array([0.1, None, 3, 4, 5], pa.float32()),
            "b": pa.array([True, None, False, True, False]),
        }
        frame = pa.table(cells)
        frame = pa.concat_tables([frame.slice(0, 2), frame.slice(2, 2), frame.slice(4)])
        as_text = {name: [None if cell is None else str(cell).lower() if name == "b" else str(cell) for cell in column]
                   for name, column in frame.to_pydict().items()}
        as_text["f"] = ["0.1", None, "3.0", "4.0", "5.0"]
        for name in cells:
            table = batchllm.Table(frame, "<{" + name + "}>")
            wanted = [None if cell is None else f"<{cell}>" for cell in as_text[name]]
            self.assertEqual([table[i] for i in range(5)], wanted, name)
        with self.assertRaisesRegex(TypeError, "column 't' has times of the zone 'Europe/Berlin': convert them to 'UTC'"):
            batchllm.Table(pa.table({"t": pa.nulls(1, pa.timestamp("s", "Europe/Berlin"))}), "{t}")
        for kind, name in ((pa.duration("ms"), "duration[ms]"),
                           (pa.time32("s"), "time32[s]"), (pa.list_(pa.int8()), "list")):
            with self.assertRaisesRegex(TypeError, re.escape(f"column 't' is of Arrow type {name}: cast it to text")):
                batchllm.Table(pa.table({"t": pa.nulls(1, kind)}), "{t}")
        with self.assertRaisesRegex(batchllm.InvalidArgumentError, "no column 'z'"):
            batchllm.Table(frame, "{z}")
        twice = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], ["t", "t"])
        with self.assertRaisesRegex(ValueError, "two columns 't'"):
            batchllm.Table(twice, "{t}")

    @unittest.skipUnless(have("pandas"), "needs pandas")
    def test_columns_of_pandas_may_be_numbered(self):
        import pandas as pd

        table = batchllm.Table(pd.DataFrame([["x", 1], ["y", 2]]), "{0}: {1}")
        self.assertEqual([table[0], table[1]], ["x: 1", "y: 2"])
        with self.assertRaisesRegex(batchllm.InvalidArgumentError, "no column '2'; it has '0', '1'"):
            batchllm.Table(pd.DataFrame([["x", 1]]), "{2}")
        with self.assertRaisesRegex(ValueError, "two columns '0'"):
            batchllm.Table(pd.DataFrame([["x", 1]], columns=[0, "0"]), "{0}")

    @unittest.skipUnless(have("pandas"), "needs pandas")
    def test_pandas(self):
        import pandas as pd

        frame = pd.DataFrame({**FRAME, "n": range(50), "odd": [object()] * 50})
        frame.loc[2, "own"] = None
        table = batchllm.Table(frame, "{own} {n}")
        self.assertEqual(table[4], "number 4 4")
        self.assertIsNone(table[2])
        with self.assertRaisesRegex(batchllm.InvalidArgumentError, "titel"):
            batchllm.Table(frame, "{titel}")
        frame.columns = ["own", "own", *frame.columns[2:]]
        self.assertIsNotNone(batchllm.Table(frame, "{n}")[0])
        with self.assertRaisesRegex(ValueError, "two columns 'own'"):
            batchllm.Table(frame, "{own}")

    @unittest.skipUnless(have("polars"), "needs Polars")
    def test_polars(self):
        import polars as pl

        self.assertEqual(batchllm.Table(pl.DataFrame(FRAME), "{own}")[4], "number 4")

    @unittest.skipUnless(have("pandas") and have("pyarrow") and have("polars"), "needs pandas, pyarrow and polars")
    def test_numbers_are_written_alike_wherever_they_come_from(self):
        import numpy
        import pandas as pd
        import polars as pl
        import pyarrow as pa

        given = [0.1, 19.99, 1e5, 16777216, 1234567.9, 1e16, 3.4028235e38, 1e-45, -0.0, 2.0**-44, float("inf")]
        single = numpy.array(given, dtype=numpy.float32)
        written = ["0.1", "19.99", "100000.0", "16777216.0", "1234567.9", "1e+16", "3.4028235e+38", "1e-45", "-0.0"]
        frames = {
            "arrow": pa.table({"p": single}), "polars": pl.DataFrame({"p": single}), "pandas": pd.DataFrame({"p": single}),
            "nullable": pd.DataFrame({"p": pd.array(single, dtype="Float32")}),
            "backed": pa.table({"p": single}).to_pandas(types_mapper=pd.ArrowDtype),
            "array": {"p": single}, "list": {"p": list(single)}, "series": {"p": pl.Series(single)}, "column": {"p": pd.Series(single)},
            "arrow column": {"p": pa.array(single)}, "chunks": {"p": pa.chunked_array([single[:3], single[3:]])},
            "categories": {"p": pd.Series(single).astype("category")}, "buffer": {"p": array.array("f", given)}, "view": {"p": memoryview(single)},
            "other bytes": {"p": single.astype(">f4")},
        }
        for name, frame in frames.items():
            table = batchllm.Table(frame, "{p}")
            found = [table[i] for i in range(len(given))]
            self.assertEqual(found[:9] + found[10:], written + ["inf"], name)
            self.assertEqual(numpy.float32(found[9]), single[9], name)
        self.assertIsNone(batchllm.Table({"p": pa.chunked_array([[None, "a"]])}, "{p}")[0])
        self.assertEqual(batchllm.Table({"p": single[:2].reshape(1, 2)}, "{p}")[0], str(single[:2].tolist()))
        random = numpy.random.default_rng(5).integers(0, 2**31, 2000, dtype=numpy.int32).view(numpy.float32)
        random = random[numpy.isfinite(random)]
        by_arrow, by_pandas = (batchllm.Table(kind({"p": random}), "{p}") for kind in (pa.table, pd.DataFrame))
        self.assertEqual([by_arrow[i] for i in range(len(random))], [by_pandas[i] for i in range(len(random))])
        with self.assertRaisesRegex(TypeError, "LazyFrame of Polars: collect"):
            batchllm.Table(pl.LazyFrame({"p": [1]}), "{p}")

    def test_dates_are_written_alike_wherever_they_come_from(self):
        import datetime

        days = [datetime.date(1969, 2, 28), datetime.date(2024, 2, 29), None]
        times = [datetime.datetime(1969, 12, 31, 23, 59, 58), datetime.datetime(2024, 2, 29, 1, 2, 3, 40), None]
        utc = [one and one.replace(tzinfo=datetime.timezone.utc) for one in times]
        frames = []
        if have("pandas"):
            import pandas

            frames.append(pandas.DataFrame({"day": days, "time": pandas.Series(times, dtype="datetime64[us]"), "utc": pandas.Series(utc)}))
        if have("pyarrow"):
            import pyarrow

            for unit in ("us", "ns"):
                kinds = {"day": pyarrow.date32(), "time": pyarrow.timestamp(unit), "utc": pyarrow.timestamp(unit, "UTC")}
                frames.append(pyarrow.table({name: pyarrow.array(cells, kinds[name])
                                             for name, cells in (("day", days), ("time", times), ("utc", utc))}))
        if have("polars"):
            import polars

            frames.append(polars.DataFrame({"day": days, "time": times, "utc": utc}))
        for frame in [{"day": days, "time": times, "utc": utc}, *frames]:
            with self.subTest(frame=type(frame)):
                table = batchllm.Table(frame, "{day}|{time}|{utc}")
                self.assertEqual(table[0], "1969-02-28|1969-12-31 23:59:58|1969-12-31 23:59:58+00:00")
                self.assertEqual(table[1], "2024-02-29|2024-02-29 01:02:03.000040|2024-02-29 01:02:03.000040+00:00")
                self.assertIsNone(table[2])

    def test_a_format_in_a_template_is_said_not_to_be_one(self):
        frames = [{"price": [1.5]}]
        if have("pandas"):
            import pandas

            frames.append(pandas.DataFrame(frames[0]))
        if have("pyarrow"):
            import pyarrow

            frames.append(pyarrow.table(frames[0]))
        for frame in frames:
            with self.assertRaisesRegex(batchllm.InvalidArgumentError, "{price:.2f} asks for a format, which templates do not have"):
                batchllm.Table(frame, "{price:.2f}")
            with self.assertRaisesRegex(batchllm.InvalidArgumentError, "has no column 'prise:.2f'; it has 'price'"):
                batchllm.Table(frame, "{prise:.2f}")

    @unittest.skipUnless(have("duckdb"), "needs DuckDB")
    def test_duckdb(self):
        import duckdb

        relation = duckdb.sql("select 'number ' || i as own from range(50) t(i)")
        self.assertEqual(batchllm.Table(relation, "{own}")[4], "number 4")


class Results(unittest.TestCase):
    def test_results_come_in_the_order_of_the_rows(self):
        frame = {**FRAME, "own": [None if i == 7 else cell for i, cell in enumerate(FRAME["own"])]}
        params = SamplingParams(max_tokens=3)
        with batchllm.Engine(MODEL, backend="cpu", kv_memory_bytes=1 << 24) as engine:
            results = engine.generate_table(frame, TEMPLATE, params, fields="reorder")
            self.assertEqual(list(results.tags), list(range(50)))
            self.assertEqual(results[7].status, batchllm.native.BATCHLLM_ERROR_ROW_NULL)
            self.assertIn('"own" is null', results[7].error)
            table = batchllm.Table(frame, TEMPLATE, fields="reorder")
            same = engine.generate([table[i] or "x" for i in range(50)], params)
            for i in range(50):
                if i != 7:
                    self.assertEqual(list(results[i].tokens), list(same[i].tokens), i)
            again = engine.generate_table(table, params=params)
            self.assertEqual(again.texts, results.texts)
            self.assertGreater(engine.stats().saving_ratio, 0.3)
            with self.assertRaisesRegex(batchllm.RowError, "row 7"):
                engine.generate_table(frame, TEMPLATE, params, on_error="raise")
            with self.assertRaisesRegex(TypeError, "a Table has its own"):
                engine.generate_table(table, TEMPLATE)

    def test_chat_templates_go_around(self):
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            chat_model(folder, "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}")
            with batchllm.Engine(folder, backend="cpu", kv_memory_bytes=1 << 24) as engine:
                params = SamplingParams(max_tokens=2)
                table = engine.generate_table({"q": ["hi"]}, "Q: {q}", params, chat=True, system="S")
                text = engine.generate(["[system:S][user:Q: hi]"], SamplingParams(max_tokens=2, add_special=False))
                self.assertEqual(list(table[0].tokens), list(text[0].tokens))
                self.assertEqual(table[0].prompt_tokens, text[0].prompt_tokens)


if __name__ == "__main__":
    unittest.main()
