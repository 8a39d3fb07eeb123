"""Plans and the tokenizer by themselves."""

import errno
import os
import pathlib
import pickle
import tempfile
import unittest
import unittest.mock
from concurrent.futures import ThreadPoolExecutor

import batchllm
from batchllm.errors import error_for
from support import MODEL, columns, rows, sim


class Plans(unittest.TestCase):
    def test_groups_are_the_rows_that_share(self):
        made = rows(6) + [[990] * 40 + [i] for i in range(4)] + [[5]]
        plan = batchllm.Plan.build(made)
        found = {(group.prefix_tokens, tuple(sorted(group.rows))) for group in plan.groups()}
        self.assertEqual(found, {(30, (0, 1, 2, 3, 4, 5)), (40, (6, 7, 8, 9)), (0, (10,))})
        stats = plan.stats()
        self.assertEqual((stats.rows, stats.groups, stats.grouped_rows, stats.largest_group), (11, 2, 10, 6))
        self.assertAlmostEqual(stats.saving_ratio, 1 - stats.processed_tokens / stats.logical_tokens)
        groups = plan.groups()
        self.assertEqual(len(groups), 3)
        self.assertEqual(groups[-1].rows.tolist(), list(groups)[2].rows.tolist())
        self.assertEqual(len(groups[:2]), 2)
        with self.assertRaises(IndexError):
            groups[3]
        # The columns outlive plan and groups.
        members = groups.rows
        self.assertEqual(repr(plan), "Plan(11 rows, 10 of them in 2 groups)")
        del plan, groups
        self.assertEqual(sorted(members), list(range(11)))

    def test_what_a_plan_will_take_is_predicted_without_a_device(self):
        made = rows(40)
        plan = batchllm.Plan.build(made)
        predicted = plan.predict(MODEL, made, device="h200", max_tokens=20)
        self.assertEqual((predicted.device, predicted.devices, predicted.rows), ("NVIDIA H200", 1, 40))
        self.assertEqual((predicted.completion_tokens, predicted.processed_prompt_tokens), (800, plan.stats().processed_tokens))
        self.assertGreater(predicted.seconds, 0)
        kept = batchllm.Plan.build(made, self_contained=True)
        self.assertEqual(kept.predict(MODEL, device="h200", max_tokens=20), predicted)
        self.assertLess(kept.predict(MODEL, device="h200", max_tokens=10).seconds, predicted.seconds)
        report = plan.report()
        report.add_prediction(predicted)
        self.assertIn("For NVIDIA H200, before anything ran", report.to_html())
        with self.assertRaises(batchllm.StateError):
            plan.predict(MODEL, device="h200")
        with self.assertRaisesRegex(batchllm.InvalidArgumentError, "the plan has 40 rows"):
            plan.predict(MODEL, made[:3], device="h200")
        with self.assertRaisesRegex(batchllm.InvalidArgumentError, "there are h200.* for a prediction also .here., this machine$"):
            plan.predict(MODEL, made, device="h2000")
        with unittest.mock.patch("batchllm.native.batchllm_plan_predict_rows") as given:
            plan.predict(MODEL, made, device="here")
        self.assertEqual(given.call_args.args[7], "here")

    def test_heads_are_chosen_by_what_they_cost(self):
        rows = [[1] * 40 + [2 + row // 4] * 60 + [100 + row] * 10 for row in range(32)]
        computed = [
            batchllm.Plan.build(rows, levels=levels, decode_lengths=[tokens] * 32, common_prefix_cost=cost).stats().processed_tokens
            for levels, tokens, cost in ((1, 1, 0.2), (2, 500, 0.2), ("auto", 1, 0.2), ("auto", 500, 0.2), ("auto", 1, 0))
        ]
        self.assertEqual(computed, [8 * 100 + 320, 40 + 8 * 60 + 320, 40 + 8 * 60 + 320, 8 * 100 + 320, 8 * 100 + 320])
        self.assertEqual(batchllm.Plan.build(rows, levels="auto").stats().levels, 0)

    def test_saved_and_loaded_a_plan_is_the_same_and_is_carried_over(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "Pläne.plan"
            plan = batchllm.Plan.build(columns(100), self_contained=True, levels=2, enlarge="paper",
                                       decode_lengths=[5] * 100, min_prefix_tokens=8)
            plan.save(path)
            loaded = batchllm.Plan.load(path)
            self.assertEqual(loaded.groups().rows.tolist(), plan.groups().rows.tolist())
            self.assertEqual(loaded.stats().self_contained, 1)
            path.write_bytes(path.read_bytes()[:-9])
            with self.assertRaises(batchllm.PlanFormatError):
                batchllm.Plan.load(path)
            # Any file name that the system allows, and no other: a zero byte does not truncate it.
            for name in (os.path.join(folder, "\udcff.plan"), os.fsencode(folder) + b"/bytes.plan"):
                plan.save(name)
                self.assertEqual(batchllm.Plan.load(name).stats().rows, 100)
            with self.assertRaises(ValueError):
                plan.save(os.path.join(folder, "zero\0.plan"))
            self.assertFalse(os.path.exists(os.path.join(folder, "zero")))
        self.assertEqual(batchllm.Plan.build(columns(120), previous=loaded, levels=2, enlarge="paper",
                                             min_prefix_tokens=8).stats().reused_rows, 100)
        with self.assertRaisesRegex(ValueError, "3 decode_lengths for 100 rows"):
            batchllm.Plan.build(columns(100), decode_lengths=[1] * 3)
        with self.assertRaisesRegex(TypeError, "token ids are expected"):
            batchllm.Plan.build(["text"])

    def test_a_file_error_is_the_os_error_that_it_was(self):
        with tempfile.TemporaryDirectory() as folder:
            plan = batchllm.Plan.build(columns(3))
            os.mkdir(os.path.join(folder, "empty"))
            absent = os.path.join(folder, "no: cannot open: file")
            config = os.path.join(folder, "empty", "config.json")
            beside = os.path.join(folder, "no", "folder")
            calls = [
                (lambda: batchllm.Plan.load(absent), errno.ENOENT, absent),
                (lambda: batchllm.Tokenizer(absent), errno.ENOENT, absent),
                (lambda: batchllm.Engine(os.path.join(folder, "empty")), errno.ENOENT, config),
                (lambda: sim(timeline=beside), errno.ENOENT, beside),
                (lambda: plan.save(beside), errno.ENOENT, beside),
                (lambda: plan.save(folder), errno.EISDIR, folder),
                (lambda: plan.save("/dev/full"), errno.ENOSPC, "/dev/full"),
                (lambda: batchllm.Plan.load(folder), None, None),  # no system call has failed
            ]
            if os.geteuid() != 0:
                secret = os.path.join(folder, "secret")
                plan.save(secret)
                os.chmod(secret, 0)
                calls.append((lambda: batchllm.Plan.load(secret), errno.EACCES, secret))
            for call, number, path in calls:
                with self.subTest(number=number, path=path):
                    kind = {errno.ENOENT: FileNotFoundError, errno.EACCES: PermissionError}.get(number, OSError)
                    with self.assertRaises(kind) as caught:
                        call()
                    for error in (caught.exception, pickle.loads(pickle.dumps(caught.exception))):
                        self.assertIsInstance(error, batchllm.FileError)
                        self.assertEqual((error.errno, error.filename, error.status), (number, path, 3))
                        self.assertEqual(error.strerror, number and os.strerror(number))
                        self.assertIn(path or "not a regular file", str(error))
                        self.assertNotIn("Errno", str(error))

    def test_every_reason_that_the_system_gives_is_known(self):
        for number in errno.errorcode:
            error = error_for(3, f"a/b: cannot read: {os.strerror(number)}")
            self.assertEqual((error.strerror, error.filename), (os.strerror(number), "a/b"))
            self.assertIs(type(OSError(number, "")) is PermissionError, isinstance(error, PermissionError))
        self.assertEqual(error_for(3, "\ufffd: cannot open: " + os.strerror(errno.ENOENT)).filename, None)
        self.assertEqual(error_for(3, "a/b: cannot open: for no reason").errno, None)

    def test_a_plan_of_another_tokenizer_is_refused(self):
        with batchllm.Engine(MODEL) as engine:
            with self.assertRaises(batchllm.PlanMismatchError):
                engine.use_plan(batchllm.Plan.build(rows(2), tokenizer_fingerprint=1))
            mine = batchllm.Tokenizer(MODEL).fingerprint
            engine.use_plan(batchllm.Plan.build(rows(2), tokenizer_fingerprint=mine))


class Tokenizers(unittest.TestCase):
    def test_there_and_back(self):
        tokenizer = batchllm.Tokenizer(MODEL)
        texts = ["abc", "Pérù 中", "", "<tool>x"]
        encoded = tokenizer.encode(texts)
        self.assertEqual(encoded.to_pylist()[0], [256, 97, 98, 99])
        self.assertEqual(tokenizer.decode(encoded).to_pylist(), texts)
        self.assertEqual([list(encoded), list(tokenizer.decode(encoded))], [encoded.to_pylist(), texts])
        self.assertEqual(tokenizer.decode(encoded, skip_special=False).to_pylist()[0], "<s>abc")
        self.assertEqual(tokenizer.encode_one("abc", add_special=False), [97, 98, 99])
        self.assertEqual(tokenizer.encode_one("<tool>", add_special=False), [258])
        self.assertEqual(len(tokenizer.encode_one("<s>", add_special=False, parse_special=False)), 3)
        self.assertEqual(tokenizer.decode_one([97, 98]), "ab")
        self.assertGreater(tokenizer.vocabulary, 256)
        self.assertEqual(tokenizer.encode([]).to_pylist(), [])
        self.assertEqual(tokenizer.decode([]).to_pylist(), [])

    def test_a_bad_row_is_a_status(self):
        tokenizer = batchllm.Tokenizer(MODEL)
        encoded = tokenizer.encode(["a", "\ud800", "b"])
        self.assertEqual([status != 0 for status in encoded.statuses], [False, True, False])
        self.assertIn("ROW_INVALID_UTF8", encoded.errors[1])
        with self.assertRaisesRegex(ValueError, "ROW_INVALID_UTF8"):
            tokenizer.encode_one("\ud800")
        self.assertIn("ROW_UNKNOWN_TOKEN", tokenizer.decode([[1], [10**6]]).errors[1])
        with self.assertRaisesRegex(ValueError, "ROW_UNKNOWN_TOKEN"):
            tokenizer.decode_one([10**6])

    def test_many_threads_share_one(self):
        tokenizer = batchllm.Tokenizer(MODEL)
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda i: tokenizer.encode_one(f"row {i}"), range(200)))
        self.assertEqual(found, [tokenizer.encode_one(f"row {i}") for i in range(200)])

    def test_columns_go_from_the_tokenizer_to_the_engine_as_they_are(self):
        texts = [f"row {i}" for i in range(10)]
        params = batchllm.SamplingParams(max_tokens=4)
        with batchllm.Engine(MODEL) as engine:
            by_tokens = engine.generate(batchllm.Tokenizer(MODEL).encode(texts), params)
            self.assertEqual(by_tokens.tokens.tolist(), engine.generate(texts, params).tokens.tolist())

    def test_what_is_no_tokenizer_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "tokenizer.json"
            path.write_text("{")
            with self.assertRaisesRegex(batchllm.TokenizerFormatError, "tokenizer.json"):
                batchllm.Tokenizer(path)


if __name__ == "__main__":
    unittest.main()
