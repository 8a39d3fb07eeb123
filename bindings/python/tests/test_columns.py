"""Rows of every kind in, columns out, and who owns their memory."""

import ctypes
import gc
import importlib.util
import re
import struct
import unittest
import weakref
from array import array

import batchllm
from batchllm import SamplingParams, Texts, Tokens
from batchllm.columns import Sparse, columns
from support import MODEL, sim

try:
    import numpy
    import pandas
    import pyarrow
except ImportError:
    numpy = None

TEXTS = ["The capital of", "Pérù 中", "x"]
IDS = [[1, 2, 3], [4], [5, 6]]


def as_lists(rows):
    found = []
    for column in columns(rows):
        if isinstance(column, Sparse):
            part = as_lists(column.given) if len(column.given) else []
            for place in column.nulls:
                part.insert(place, None)
            found += part
            continue
        data = column.data if isinstance(column, Texts) else column.tokens
        for start, end in zip(column.offsets, column.offsets[1:]):
            part = memoryview(data)[start:end]
            found.append(str(part, "utf-8") if isinstance(column, Texts) else part.tolist())
    return found


class Plain(unittest.TestCase):
    def test_lists_tuples_and_generators(self):
        self.assertEqual(as_lists(TEXTS), TEXTS)
        self.assertEqual(as_lists(tuple(TEXTS)), TEXTS)
        self.assertEqual(as_lists(text for text in TEXTS), TEXTS)
        self.assertEqual(as_lists([text.encode() for text in TEXTS]), TEXTS)
        self.assertEqual(as_lists(["ascii", "", "only"]), ["ascii", "", "only"])
        self.assertEqual(as_lists(IDS), IDS)
        self.assertEqual(as_lists([array("i", row) for row in IDS]), IDS)
        self.assertEqual(as_lists([[], [], [7]]), [[], [], [7]])
        self.assertEqual(as_lists([[], []]), [[], []])
        self.assertEqual(as_lists([]), [])

    def test_what_are_no_rows_is_refused_by_name(self):
        for rows, text in (
            ("text", "one str"), (3, "one int: a list of prompts"), ([[1], "a"], "row 1"),
            (["a", [1]], "row 1"), ([1, 2], "row 0 is one int"), ([[1], [2**31]], "row 1"), ([[1], ["a"]], "row 1"),
            ([None, 1.5], "row 1 is one float"), ([None, ("query", "document")], "row 1 is a list of texts"), ([[1], None, "a"], "row 2"), (["a", None, [1]], "row 2 is a list of token ids and row 0 is a text: the rows of a call are of one kind"),
            ([{"prompt": "a"}, {"prompt_token_ids": [1]}], "row 1 is a list of token ids and row 0 is a text"),
            ([{"prompt_token_ids": [1]}, {"prompt": "a"}], "row 1 is a text and row 0 is a list of token ids"),
            ([[{"role": "user", "content": "a"}], [], [1]], "row 2 is a list of token ids and row 0 is a conversation"),
            ([[1], [{"role": "user", "content": "a"}]], "row 1 is a conversation and row 0 is a list of token ids"),
            ([{"text": "a"}], "row 0 is a dict without 'messages' or 'prompt'"),
            ([{"prompt": "a", "multi_modal_data": {}}], "row 0: 'multi_modal_data' beside 'prompt' is not understood"),
            ([{"role": "user", "content": "a"}], "one conversation"),
            ([{"messages": []}, {"prompt": "a"}], "row 1 is a text and row 0 is a conversation"),
            ([{"prompt": "a"}, {"messages": []}], "row 1 is a conversation and row 0 is a text"),
            ([{"prompt": "a"}, {"prompt": 1.5}], "row 1 is one float"),
            ({"a", "b"}, "one set, which has no order"),
        ):
            with self.subTest(rows=rows), self.assertRaisesRegex((TypeError, ValueError), text):
                as_lists(rows)

    @unittest.skipIf(importlib.util.find_spec("pyarrow") is None, "needs pyarrow")
    def test_types_of_arrow_are_named_as_people_write_them(self):
        import pyarrow

        for kind, name in ((pyarrow.date32(), "date32[day]"), (pyarrow.timestamp("us"), "timestamp[us]"), (pyarrow.float64(), "double"),
                           (pyarrow.decimal128(5), "decimal"), (pyarrow.list_(pyarrow.int32(), 2), "fixed_size_list")):
            with self.assertRaisesRegex(TypeError, re.escape(f"an Arrow column of type {name}: rows are texts")):
                as_lists(pyarrow.nulls(1, kind))

    def test_prompts_in_dicts_are_taken_out(self):
        self.assertEqual(as_lists([{"prompt": text} for text in TEXTS]), TEXTS)
        self.assertEqual(as_lists([{"prompt": "a"}, "b", {"prompt": "c", "prompt_token_ids": None}]), ["a", "b", "c"])
        self.assertEqual(as_lists([{"prompt_token_ids": ids, "prompt": "as text"} for ids in IDS]), IDS)
        self.assertEqual(as_lists([{"prompt": "a"}, {"prompt": None}, {"prompt": float("nan")}]), ["a", None, None])
        self.assertEqual(as_lists([{"prompt": "a", "prompt_token_ids": float("nan")}]), ["a"])
        self.assertEqual(as_lists([{"prompt_token_ids": None, "prompt": None}, {"prompt_token_ids": [1]}]), [None, [1]])

    @unittest.skipIf(numpy is None, "needs numpy, pandas and pyarrow")
    def test_numbers_that_are_none_are_nulls(self):
        self.assertEqual(as_lists(["a", numpy.float32("nan"), numpy.float16("nan"), numpy.nan]), ["a", None, None, None])
        for kind in ("float64", "float32", "Float64", "double[pyarrow]"):  # such as an empty column of a CSV file
            self.assertEqual(as_lists(pandas.Series([None, None], dtype=kind)), [None, None])
        self.assertEqual(as_lists(pandas.Series([], dtype="float64")), [])
        with self.assertRaisesRegex(TypeError, "row 1 is one float"):
            as_lists(pandas.Series([None, 1.5]))

    def test_a_list_of_token_ids_with_a_null_is_a_null_row(self):
        params = SamplingParams(max_tokens=2)
        for rows, failed in (
            ([[1, 2, 3], [4, None]], [1]),
            ([[None, 4], [1, 2, 3], None, [float("nan")]], [0, 2, 3]),
            ([{"prompt_token_ids": [1, 2]}, {"prompt_token_ids": [1, None]}], [1]),
            ([(None,)], [0]),
        ):
            with sim() as engine:
                results = engine.generate(rows, params)
                self.assertEqual(results.failed, failed)
                for i in failed:
                    self.assertRegex(results[i].error, '^ROW_NULL: .*"prompt" is null')
                self.assertEqual(as_lists(rows), [None if i in failed else [*(row["prompt_token_ids"] if isinstance(row, dict) else row)] for i, row in enumerate(rows)])
        for rows, what in (([[1, None], ["a", None]], "row 1 is a list of texts"), ([[1.5, None]], "row 0: 'float'"), ([[1, None], "a", [2]], "row 2 is a list")):
            with self.assertRaisesRegex(TypeError, what):
                as_lists(rows)

    def test_a_null_is_its_row_s_error(self):
        params = SamplingParams(max_tokens=2)
        with batchllm.Engine(MODEL) as engine:
            whole = engine.generate(["a", "b", "c"], params)
            for rows in (["a", None, "c"], [{"prompt": "a"}, None, {"prompt": "c"}], [None, "b", float("nan")], [None] * 3):
                results = engine.generate(rows, params)
                self.assertEqual(results.tags.tolist(), [0, 1, 2])
                for i, row in enumerate(rows):
                    if isinstance(row, (str, dict)):
                        self.assertEqual(results[i].tokens.tolist(), whole[i].tokens.tolist())
                    else:
                        self.assertEqual(results[i].status, batchllm.native.BATCHLLM_ERROR_ROW_NULL)
                        self.assertIn('"prompt" is null', results[i].error)
            # Each row has its own parameters, and its own number of results.
            each = [SamplingParams(max_tokens=n, samples=n, temperature=1.0) for n in (1, 2, 3)]
            results = engine.generate(["a", None, "c"], each)
            self.assertEqual(results.tags.tolist(), [0, 1, 1, 2, 2, 2])
            self.assertEqual(results.failed, [1, 2])
            self.assertEqual([len(one.tokens) for one in results], [1, 0, 0, 3, 3, 3])
            with self.assertRaisesRegex(batchllm.RowError, "row 1: .*ROW_NULL"):
                engine.generate(["a", None], params, on_error="raise")
            engine.add([None, "b"], params, tags=[7, 9])
            engine.run()
            self.assertEqual(sorted((one.tag, one.ok) for one in engine.poll()), [(7, False), (9, True)])
            scored = engine.score(["a", None, "c"], [[" x"], [" y", " z"], [" u", " v"]])
            self.assertEqual([len(one.scores) for one in scored], [1, 0, 2])
            self.assertEqual(scored.failed, [1])
            self.assertEqual([len(one.scores) for one in engine.score([None, None], [[" x"], [" y"]])], [0, 0])
            with self.assertRaisesRegex(ValueError, "continuations of 3 rows for 2 rows"):
                engine.score(["a", None], [[" x"], [" y"], [" z"]])
        with sim() as engine:  # which has no tokenizer
            results = engine.generate([[1, 2], None, [3]], SamplingParams(max_tokens=2))
            self.assertEqual(results.failed, [1])
        for call in (lambda: batchllm.Plan.build([[1], None]), lambda: batchllm.Tokenizer(MODEL).encode(["a", None])):
            with self.assertRaisesRegex(ValueError, "row 1 is null: leave it out"):
                call()

    def test_none_for_a_handle_is_an_error_at_every_call_of_the_generated_layer(self):
        native = batchllm.native
        with sim() as engine:
            for name in [name for name in dir(native) if "_column_" in name and "create" not in name and "_add_" not in name]:
                with self.subTest(name=name), self.assertRaises((TypeError, batchllm.Error)):
                    getattr(native, name)(None)
            for call in (
                lambda: native.batchllm_advance(engine._native, 0.0, None), lambda: native.batchllm_advance(None, 0.0, None),
                lambda: native.batchllm_results_of_rows(None, 0, 1, 1), lambda: native.batchllm_results_take(None, 0, 1),
                lambda: native.batchllm_results_join(native.batchllm_results_none(), None),
                lambda: native.batchllm_results_rows(None), lambda: native.batchllm_arrow_write(None, 0),
                lambda: native.batchllm_params_set_integers(None, "max_tokens", array("q", [1])),
                lambda: native.batchllm_params_set_integers(native.batchllm_params_column_create(1), None, array("q", [1])),
                lambda: native.batchllm_plan_groups_of(None), lambda: native.batchllm_plan_save(None, "x"),
                lambda: native.batchllm_set_log(None, 1), lambda: native.batchllm_plan_load_from(None), lambda: native.batchllm_tokenizer_create_from(None),
            ):
                with self.assertRaises((TypeError, batchllm.Error)):
                    call()

    def test_rows_that_are_arrays_of_another_type_are_iterated(self):
        self.assertEqual(as_lists([array("q", row) for row in IDS]), IDS)

    def test_buffers_of_the_wrong_type_or_length_are_refused(self):
        good = array("i", [1, 2, 3]), array("q", [0, 3])
        with sim() as engine:
            self.assertEqual(len(engine.generate(Tokens(*good))), 1)
            for tokens, offsets in (
                (array("q", [1, 2, 3]), good[1]),
                (array("f", [1, 2, 3]), good[1]),
                (good[0], array("i", [0, 3])),
                (good[0], array("q", [0, 4])),
                (good[0], array("q", [2, 1, 3])),
                (good[0], array("q", [-1, 3])),
                (memoryview(good[0])[::2], array("q", [0, 2])),
                (good[0], array("q")),
                ([1, 2, 3], good[1]),
            ):
                with self.subTest(tokens=tokens), self.assertRaises((TypeError, ValueError, BufferError)):
                    engine.generate(Tokens(tokens, offsets))
            self.assertEqual(len(engine.generate(Tokens(*good))), 1)


class ArrowSchema(ctypes.Structure):
    pass


class ArrowArray(ctypes.Structure):
    pass


RELEASE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
ArrowSchema._fields_ = [("format", ctypes.c_char_p), ("name", ctypes.c_char_p), ("metadata", ctypes.c_char_p),
                        ("flags", ctypes.c_int64), ("n_children", ctypes.c_int64),
                        ("children", ctypes.POINTER(ctypes.POINTER(ArrowSchema))), ("dictionary", ctypes.c_void_p),
                        ("release", RELEASE), ("private_data", ctypes.c_void_p)]
ArrowArray._fields_ = [(name, ctypes.c_int64) for name in ("length", "null_count", "offset", "n_buffers", "n_children")] + [
    ("buffers", ctypes.POINTER(ctypes.c_void_p)), ("children", ctypes.POINTER(ctypes.POINTER(ArrowArray))),
    ("dictionary", ctypes.c_void_p), ("release", RELEASE), ("private_data", ctypes.c_void_p)]


class FromC:
    """An Arrow column from a producer in C, with mistakes made by a test."""

    def __init__(self, lists=False, **wrong):
        self.released = 0

        def release(_):
            self.released += 1
        self.kept = [release_array := RELEASE(release), release_schema := RELEASE(lambda _: None)]
        self.offsets = (ctypes.c_int32 * 3)(*wrong.pop("offsets", (0, 2, 3)))
        self.data = ctypes.create_string_buffer(struct.pack("=3i", 1, 2, 3) if lists else b"abc")
        pointers = [None, wrong.pop("offsets_pointer", ctypes.addressof(self.offsets))]
        data = wrong.pop("data_pointer", ctypes.addressof(self.data))
        self.buffers = (ctypes.c_void_p * 3)(*pointers, data)
        self.schema = ArrowSchema(format=b"+l" if lists else b"u", release=release_schema)
        self.array = ArrowArray(length=2, n_buffers=2 if lists else 3, buffers=self.buffers, release=release_array)
        if lists:
            self.child_buffers = (ctypes.c_void_p * 2)(None, data)
            self.child = ArrowArray(length=wrong.pop("child_length", 3), n_buffers=2, buffers=self.child_buffers)
            self.child_schema = ArrowSchema(format=wrong.pop("child_format", b"i"))
            self.array.n_children = self.schema.n_children = 1
            self.array.children = (ctypes.POINTER(ArrowArray) * 1)(ctypes.pointer(self.child))
            self.schema.children = (ctypes.POINTER(ArrowSchema) * 1)(ctypes.pointer(self.child_schema))
        for name, value in wrong.items():
            setattr(self.schema if name == "format" else self.array, name, value)

    def __arrow_c_array__(self, requested_schema=None):
        def capsule(thing, name):
            self.kept.append(name)
            return new(ctypes.addressof(thing), name, None)
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return capsule(self.schema, b"arrow_schema"), capsule(self.array, b"arrow_array")


class ArrowFromC(unittest.TestCase):
    def test_a_sound_column_is_read(self):
        self.assertEqual(as_lists(FromC()), ["ab", "c"])
        self.assertEqual(as_lists(FromC(lists=True)), [[1, 2], [3]])
        self.assertEqual(as_lists(FromC(length=0, offsets_pointer=None, data_pointer=None)), [])

    def test_what_would_be_read_past_is_refused_and_given_back(self):
        for wrong in ({"length": -1}, {"offset": -1}, {"length": 1 << 62}, {"n_buffers": 1}, {"n_buffers": 0}, {"buffers": None},
                      {"offsets_pointer": None}, {"data_pointer": None}, {"offsets": (0, 3, 2)}, {"offsets": (-1, 2, 3)},
                      {"format": None},
                      {"lists": True, "n_children": 0}, {"lists": True, "children": None}, {"lists": True, "length": -5},
                      {"lists": True, "offsets_pointer": None}, {"lists": True, "data_pointer": None},
                      {"lists": True, "child_length": 2}, {"lists": True, "child_length": -1}, {"lists": True, "child_format": None}):
            with self.subTest(wrong=wrong):
                column = FromC(**wrong)
                with self.assertRaises(ValueError):
                    as_lists(column)
                gc.collect()
                self.assertEqual(column.released, 1)


@unittest.skipIf(numpy is None, "needs numpy, pandas and pyarrow")
class Libraries(unittest.TestCase):
    def test_masked_items_are_refused_by_name(self):
        def masked(values, *places, type=numpy.int32):
            array = numpy.ma.array(values, type)
            for place in places:
                array[place] = numpy.ma.masked
            return array

        tokens, offsets = numpy.array([1, 2, 3, 4], numpy.int32), numpy.array([0, 2, 4])
        text = numpy.frombuffer(b"abcd", numpy.uint8)
        for rows, message in (
            (Tokens(masked([1, 2, 3, 4], 2, 3), offsets), "tokens: item 2 is masked"),
            (Tokens(tokens, masked([0, 2, 4], 1, type=numpy.int64)), "offsets: item 1 is masked"),
            (Texts(masked(text, 0, type=numpy.uint8), offsets), "data: item 0 is masked"),
            (Texts(text, masked(offsets, 2, type=numpy.int64)), "offsets: item 2 is masked"),
            (masked([[1, 2], [3, 4]], (1, 0)), r"rows: item \(1, 0\) is masked"),
        ):
            with sim() as engine:
                with self.assertRaisesRegex(ValueError, message):
                    engine.generate(rows)
                self.assertEqual(engine.stats().rows, 0)
        with self.assertRaisesRegex(ValueError, "tokens: item 0"):
            batchllm.Plan.build(Tokens(masked([1, 2, 3, 4], 0), offsets))
        with self.assertRaisesRegex(ValueError, "data: item 3"):
            batchllm.Tokenizer(MODEL).encode(Texts(masked(text, 3, type=numpy.uint8), offsets))
        # A mask without masked items has no effect.
        self.assertEqual(as_lists(Tokens(masked([1, 2, 3, 4]), offsets)), [[1, 2], [3, 4]])
        self.assertEqual(as_lists(numpy.ma.array([[1, 2], [3, 4]], numpy.int32, mask=False)), [[1, 2], [3, 4]])
        self.assertEqual(as_lists(numpy.ma.array([[1, 2]], numpy.int32, mask=[[False, False]])), [[1, 2]])

    def test_numpy(self):
        tokens, offsets = numpy.array([1, 2, 3, 4, 5, 6], numpy.int32), numpy.array([0, 3, 4, 6])
        self.assertEqual(as_lists(Tokens(tokens, offsets)), IDS)
        self.assertEqual(as_lists(numpy.array([[1, 2], [3, 4]], numpy.int32)), [[1, 2], [3, 4]])
        self.assertEqual(as_lists(numpy.array(TEXTS)), TEXTS)
        self.assertEqual(as_lists(numpy.array(TEXTS, object)), TEXTS)
        with sim() as engine:
            for other in (numpy.int64, ">i4"):
                with self.assertRaisesRegex(TypeError, r"token ids are int32; use rows.astype\('int32'\)"):
                    engine.generate(numpy.array([[1, 2]], other))
            with self.assertRaisesRegex(TypeError, "2 dimensions of float64: rows are texts, or token ids of int32"):
                engine.generate(numpy.ones((2, 2)))
            # Two-dimensional offsets have as many numbers as rows would need, but are not offsets.
            for offsets in (numpy.array([[0, 3, 6]]), numpy.array([[0, 3], [4, 6]]), numpy.array([], numpy.int64)):
                with self.assertRaisesRegex(ValueError, "offsets have one dimension"):
                    engine.generate(Tokens(tokens, offsets))
        square = numpy.array([[1, 2, 3, 4], [5, 6, 7, 8]], numpy.int32)
        self.assertEqual(as_lists(square[:, ::2]), [[1, 3], [5, 7]])
        self.assertEqual(as_lists(square.T), [[1, 5], [2, 6], [3, 7], [4, 8]])
        (column,) = columns(square)
        self.assertEqual(column.tokens.ctypes.data, square.ctypes.data)
        with self.assertRaisesRegex(TypeError, "batchllm.Tokens"):
            as_lists(numpy.array([1, 2], numpy.int32))

    def test_pandas(self):
        self.assertEqual(as_lists(pandas.Series(TEXTS)), TEXTS)
        self.assertEqual(as_lists(pandas.Series(TEXTS, dtype=object)), TEXTS)
        self.assertEqual(as_lists(pandas.Series(TEXTS, dtype="string")), TEXTS)
        self.assertEqual(as_lists(pandas.Series(TEXTS, dtype="category").astype(str)[1:]), TEXTS[1:])
        self.assertEqual(as_lists(pandas.Series(IDS)), IDS)
        self.assertEqual(as_lists(pandas.Series(pyarrow.array(IDS, pyarrow.list_(pyarrow.int32())),
                                                dtype=pandas.ArrowDtype(pyarrow.list_(pyarrow.int32())))), IDS)
        for dtype in (None, object, "string"):
            self.assertEqual(as_lists(pandas.Series(["a", None], dtype=dtype)), ["a", None])

    def test_arrow_without_copies(self):
        for kind in (pyarrow.string(), pyarrow.large_string()):
            whole = pyarrow.array(["cut", *TEXTS], kind)
            self.assertEqual(as_lists(whole[1:]), TEXTS)
            self.assertEqual(as_lists(pyarrow.chunked_array([TEXTS[:1], [], TEXTS[1:]], kind)), TEXTS)
            self.assertEqual(as_lists(whole[:0]), [])
            (column,) = columns(whole)
            data = whole.buffers()[2]
            self.assertEqual(numpy.frombuffer(column.data, numpy.uint8).ctypes.data, data.address)
        for kind in (pyarrow.list_(pyarrow.int32()), pyarrow.large_list(pyarrow.int32())):
            whole = pyarrow.array([[9, 9], *IDS, []], kind)
            self.assertEqual(as_lists(whole[1:4]), IDS)
            (column,) = columns(whole)
            self.assertEqual(numpy.asarray(column.tokens).ctypes.data, whole.values.buffers()[1].address)
        # A null outside of the slice.
        self.assertEqual(as_lists(pyarrow.array([[None], [1], [2]], pyarrow.list_(pyarrow.int32()))[1:]), [[1], [2]])
        self.assertEqual(as_lists(pyarrow.array([[1], [2], [None]], pyarrow.list_(pyarrow.int32()))[:2]), [[1], [2]])
        # A child array with its own offset.
        values = pyarrow.array([0, 0, 1, 2, 3, 4, 5, 6], pyarrow.int32())[2:]
        self.assertEqual(as_lists(pyarrow.ListArray.from_arrays([0, 3, 4, 6], values)), IDS)

    def test_arrow_arrays_are_held_as_long_as_their_columns_and_no_longer(self):
        before = pyarrow.total_allocated_bytes()
        array_ = pyarrow.array(TEXTS * 1000)
        (column,) = columns(array_)
        del array_
        gc.collect()
        self.assertEqual(bytes(column.data[:14]).decode(), TEXTS[0])
        self.assertGreater(pyarrow.total_allocated_bytes(), before)
        del column
        self.assertEqual(pyarrow.total_allocated_bytes(), before)

    def test_arrow_texts_of_every_type(self):
        texts = ["Pérù", "", "twelve bytes", "thirteen bytes", None, "x" * 100, "tail", None]
        for array_ in (
            pyarrow.array(texts),
            pyarrow.array(texts, pyarrow.large_utf8()),
            pyarrow.array(texts, pyarrow.string_view()),
            pyarrow.array([text and text.encode() for text in texts], pyarrow.binary_view()),
            pyarrow.array(texts).dictionary_encode(),
            pyarrow.DictionaryArray.from_arrays(pyarrow.array([0, 1, 2, 3, 4, 5, 6, None], pyarrow.uint8()), texts[:7]),
            pyarrow.array(texts, pyarrow.dictionary(pyarrow.int64(), pyarrow.large_utf8())),
        ):
            with self.subTest(type=array_.type):
                self.assertEqual(as_lists(array_), texts)
                self.assertEqual(as_lists(array_[1:6]), texts[1:6])
                self.assertEqual(as_lists(array_[:4]), texts[:4])
                self.assertEqual(as_lists(pyarrow.chunked_array([array_[:5], array_[5:5], array_[5:]])), texts)
                # A table of one column, sliced. The same for a struct array, which has its own nulls.
                self.assertEqual(as_lists(pyarrow.table({"any": array_})[2:]), texts[2:])
                whole = pyarrow.StructArray.from_arrays([array_], ["any"])
                self.assertEqual(as_lists(whole[1:]), texts[1:])
        nulls = pyarrow.array([False, True, False])
        table = pyarrow.StructArray.from_arrays([pyarrow.array(["a", "b", "c"])], ["any"], mask=nulls)
        self.assertEqual(as_lists(table), ["a", None, "c"])
        self.assertEqual(as_lists(pyarrow.nulls(2)), [None, None])

    def test_views_and_indices_that_lead_nowhere_are_refused(self):
        def views(*words, block=b"thirteen bytes"):
            buffers = [None, pyarrow.py_buffer(struct.pack("=iiii", *words)), pyarrow.py_buffer(block)]
            return pyarrow.Array.from_buffers(pyarrow.string_view(), 1, buffers)

        self.assertEqual(as_lists(views(14, 0, 0, 0)), ["thirteen bytes"])
        for wrong in ((-1, 0, 0, 0), (14, 0, 1, 0), (14, 0, -1, 0), (14, 0, 0, -1), (14, 0, 0, 1), (2**31 - 1, 0, 0, 2**31 - 1)):
            with self.subTest(wrong=wrong), self.assertRaisesRegex(ValueError, "wrong offsets"):
                as_lists(views(*wrong))
            with self.subTest(wrong=wrong), self.assertRaisesRegex(ValueError, "wrong offsets"):
                batchllm.Table(pyarrow.table({"a": views(*wrong)}), "{a}")
        for index in (-1, 1, 100):
            indices = pyarrow.array([index], pyarrow.int8())
            with self.assertRaisesRegex(ValueError, "an index outside its dictionary"):
                as_lists(pyarrow.DictionaryArray.from_arrays(indices, ["a"], safe=False))

    def test_arrow_lists_with_nulls_and_of_other_integers(self):
        for type_ in (pyarrow.int64(), pyarrow.uint32(), pyarrow.int16(), pyarrow.int32(), pyarrow.uint64()):
            rows = [[1, 2], None, [], [3], [4, None], [5]]
            for array_ in (pyarrow.array(rows, pyarrow.list_(type_)), pyarrow.array(rows, pyarrow.large_list(type_))):
                with self.subTest(type=array_.type):
                    self.assertEqual(as_lists(array_), [[1, 2], None, [], [3], None, [5]])
                    self.assertEqual(as_lists(array_[1:4]), [None, [], [3]])
                    self.assertEqual(as_lists(array_[2:4]), [[], [3]])
        for value in (2**31, -(2**31) - 1):
            with self.assertRaisesRegex(ValueError, "row 2: a token id is beyond 32 bits"):
                as_lists(pyarrow.chunked_array([[[1], [2]], [[value]]]))
        with self.assertRaisesRegex(ValueError, "row 0: a token id is beyond 32 bits"):
            as_lists(pyarrow.array([[2**64 - 1]], pyarrow.list_(pyarrow.uint64())))

    def test_arrow_types_that_are_no_rows_are_refused_by_name(self):
        for rows, text in (
            (pyarrow.array([1]), "int64"),
            (pyarrow.array([1]).dictionary_encode(), "dictionary of int64"),
            (pyarrow.array([[1.5]]), "list of double"),
            (pyarrow.table({"a": ["x"], "b": ["y"]}), "2 columns: pass the one with the prompts, or use generate_table"),
            (pyarrow.table({"a": [1]}), "int64"),
            (pandas.DataFrame({"a": ["x"], "b": ["y"]}), "2 columns: pass the one"),
            (pyarrow.array([[1]], pyarrow.list_view(pyarrow.int32())), "list_view"),
            (pyarrow.array([[{"a": 1}]]), "list of struct"),
        ):
            with self.subTest(text=text), self.assertRaisesRegex(TypeError, text):
                as_lists(rows)

    def test_pandas_columns_of_every_type(self):
        for type_ in ("object", "str", "category", "string", pandas.ArrowDtype(pyarrow.string())):
            with self.subTest(type=type_):
                self.assertEqual(as_lists(pandas.Series(["a", None, "b", "a"], dtype=type_)), ["a", None, "b", "a"])
                self.assertEqual(as_lists(pandas.DataFrame({"q": pandas.Series(["a", "b"], dtype=type_)})), ["a", "b"])

    @unittest.skipIf(importlib.util.find_spec("polars") is None, "needs Polars")
    def test_polars_columns_of_every_type(self):
        import polars

        texts = ["a", None, "more than twelve bytes", "a", "Pérù"]
        for type_ in (polars.String, polars.Categorical, polars.Enum(["a", "more than twelve bytes", "Pérù"])):
            series = polars.Series(texts, dtype=type_)
            with self.subTest(type=type_):
                self.assertEqual(as_lists(series), texts)
                self.assertEqual(as_lists(series[2:]), texts[2:])
                self.assertEqual(as_lists(polars.DataFrame({"q": series})), texts)
        self.assertEqual(as_lists(polars.Series([[1, 2], None, [3]])), [[1, 2], None, [3]])
        self.assertEqual(as_lists(polars.Series([None, None])), [None, None])

    @unittest.skipIf(importlib.util.find_spec("duckdb") is None, "needs DuckDB")
    def test_duckdb_relations(self):
        import duckdb

        relation = duckdb.sql("select case when i = 2 then null else 'row number ' || i end as q from range(5000) t(i)")
        expected = [None if i == 2 else f"row number {i}" for i in range(5000)]
        self.assertEqual(as_lists(relation), expected)
        with self.assertRaisesRegex(TypeError, "2 columns"):
            as_lists(duckdb.sql("select 'a' as a, 'b' as b"))

    def test_every_kind_of_rows_gives_the_same_results(self):
        with batchllm.Engine(MODEL) as engine:
            expected = engine.generate(TEXTS, SamplingParams(max_tokens=4)).tokens.tolist()
            for rows in (pandas.Series(TEXTS), pyarrow.array(TEXTS), pyarrow.chunked_array([TEXTS[:2], TEXTS[2:]]),
                         numpy.array(TEXTS), engine_texts()):
                self.assertEqual(engine.generate(rows, SamplingParams(max_tokens=4)).tokens.tolist(), expected)
            # Parameters for each row, across chunks.
            params = [SamplingParams(max_tokens=n) for n in (1, 2, 3)]
            results = engine.generate(pyarrow.chunked_array([TEXTS[:2], TEXTS[2:]]), params)
            self.assertEqual([len(result.tokens) for result in results], [1, 2, 3])

    def test_results_go_to_numpy_and_arrow_without_copies(self):
        with batchllm.Engine(MODEL) as engine:
            results = engine.generate(TEXTS, SamplingParams(max_tokens=4, logprobs=0))
            scored = engine.score(TEXTS, [" a", " b"])
        batch = results.to_arrow()
        batch.validate(full=True)
        self.assertEqual(batch.column("tokens").to_pylist(), [result.tokens.tolist() for result in results])
        self.assertEqual(batch.column("logprobs").to_pylist(), [result.logprobs.tolist() for result in results])
        self.assertEqual(batch.column("tag").to_pylist(), [0, 1, 2])
        self.assertEqual(batch.column("tokens").values.buffers()[1].address,
                         numpy.asarray(results.tokens).ctypes.data)
        self.assertEqual(scored.to_arrow().column("scores").to_pylist(), [one.scores.tolist() for one in scored])
        self.assertEqual(pyarrow.record_batch(results).schema, batch.schema)
        self.assertEqual(len(engine_none().to_arrow()), 0)
        tokens = numpy.asarray(results.tokens)
        with self.assertRaises(ValueError):
            tokens[0] = 1
        expected, alive = tokens.copy(), weakref.ref(results)
        del results, batch
        gc.collect()
        self.assertIsNone(alive())
        self.assertEqual(tokens.tolist(), expected.tolist())


def engine_texts():
    encoded = [text.encode() for text in TEXTS]
    offsets = numpy.cumsum([0, *map(len, encoded)])
    return Texts(numpy.frombuffer(b"".join(encoded), numpy.uint8), offsets)


def engine_none():
    with sim() as engine:
        return engine.generate([])


if __name__ == "__main__":
    unittest.main()
