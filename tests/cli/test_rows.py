"""Input rows: what is accepted, what is rejected, and that a bad row does not affect others."""

import json
import resource
import shutil
import subprocess
import unittest

from program import PROGRAM, SIM, TESTS, ProgramTest, by_id, lines, token_rows

GOOD = {"id": "good", "tokens": [1, 2, 3]}


class BadRows(ProgramTest):
    # line as bytes, expected code, expected part of the message, expected id
    TABLE = [
        (b'{"id": 1, "tokens": [1,2', "ROW_JSON", "not JSON", None),
        (b'[1, 2]', "ROW_FORMAT", "not an object", None),
        (b'{"id": 2}', "ROW_FORMAT", "missing", 2),
        (b'{"id": 3, "tokens": []}', "ROW_EMPTY", "empty", 3),
        (b'{"id": 301, "prompt": null}', "ROW_NULL", '"prompt" is null', 301),
        (b'{"id": 302, "tokens": null}', "ROW_NULL", '"tokens" is null', 302),
        (b'{"id": 303, "messages": null}', "ROW_NULL", '"messages" is null', 303),
        (b'{"id": 4, "tokens": [1, "x"]}', "ROW_FORMAT", '"tokens"', 4),
        (b'{"id": 5, "tokens": [1, 1000]}', "ROW_UNKNOWN_TOKEN", "1000", 5),
        (b'{"id": 6, "tokens": [1, -1]}', "ROW_UNKNOWN_TOKEN", "-1", 6),
        (b'{"id": 7, "tokens": [99999999999]}', "ROW_UNKNOWN_TOKEN", "vocabulary", 7),
        (b'{"id": 8, "tokens": [1], "max_tokens": 0}', "ROW_INVALID_PARAMETER", "max_tokens", 8),
        (b'{"id": 9, "tokens": [1], "max_tokens": "9"}', "ROW_FORMAT", "max_tokens", 9),
        (b'{"id": 10, "tokens": [1], "temperature": -1}', "ROW_INVALID_PARAMETER", "temperature",
         10),
        (b'{"id": 11, "tokens": [1], "top_p": 1.5}', "ROW_INVALID_PARAMETER", "top_p", 11),
        (b'{"id": 12, "tokens": [1], "stop": [""]}', "ROW_INVALID_PARAMETER", "stop", 12),
        (b'{"id": 13, "tokens": [1], "stop": 5}', "ROW_FORMAT", "stop", 13),
        (b'{"id": 14, "tokens": [1], "logit_bias": {"x": 1}}', "ROW_FORMAT", "logit_bias", 14),
        (b'{"id": 15, "tokens": [1], "tempersture": 1}', "ROW_FORMAT", '"temperature"', 15),
        (b'{"id": 16, "tokens": [1], "max_new_tokens": 1}', "ROW_FORMAT", '"max_tokens"', 16),
        (b'{"id": 17, "tokens": [1], "zebra": 1}', "ROW_FORMAT", '"zebra"', 17),
        (b'{"id": 18, "tokens": [1], "tokens": [2]}', "ROW_FORMAT", "twice", 18),
        (b'{"id": 19, "tokens": [1], "prompt": "x"}', "ROW_FORMAT", "only one", 19),
        (b'{"id": 20, "messages": [{"role": "user", "content": "x"}]}', "ROW_INVALID_PARAMETER",
         "messages", 20),
        (b'{"id": 21, "prompt": "\xff"}', "ROW_INVALID_UTF8", "UTF-8", None),
        (b'{"id": 22, "prompt": "text without a tokenizer"}', "ROW_INVALID_PARAMETER",
         "tokenizer", 22),
        (b'{"id": 23, "tokens": [' + b",".join([b"1"] * 9000) + b']}', "ROW_TOO_LONG", "", 23),
        (b'{"id": {}, "tokens": [1]}', "ROW_FORMAT", '"id"', None),
        (b'{"id": 24, "tokens": [1], "score": []}', "ROW_FORMAT", "score", 24),
        (b'{"id": 25, "tokens": [1], "score": [[]]}', "ROW_EMPTY", "score", 25),
        (b'{"id": 26, "tokens": [1], "n": 0}', "ROW_INVALID_PARAMETER", "", 26),
        (b'{"id": 27, "tokens": [1], "max_tokens": 99999999999}', "ROW_INVALID_PARAMETER",
         "max_tokens", 27),
        (b'not json at all', "ROW_JSON", "not JSON", None),
        (b'\xff\xfe', "ROW_INVALID_UTF8", "UTF-8", None),
        (b'{"id": "\\ud800", "tokens": [1]}', "ROW_JSON", "not JSON", None),
        (b'{"id": 28, "tokens": [100000000000000000000]}', "ROW_UNKNOWN_TOKEN", "vocabulary", 28),
        (b'{"tokens": [1], "metadata": {"x": -1.e999}, "id": "a\\n29"}', "ROW_JSON", "malformed number at byte 34",
         "a\n29"),
        (b'{"id": 100000000000000000000030 , "tokens": [1e999]}', "ROW_FORMAT", '"tokens"',
         100000000000000000000030),
        (b'{"id": {}, "tokens": [1e999]}', "ROW_FORMAT", '"id"', None),
        (b'{"id": 40, "tokens": [1], "max_tokens": 1000000000000000000000}', "ROW_INVALID_PARAMETER",
         "max_tokens 1000000000000000000000 is out of range", 40),
        (b'{"id": 41, "tokens": [1], "temperature": 1e400}', "ROW_INVALID_PARAMETER", "temperature 1e400 is out of range", 41),
        (b'{"id": 42, "tokens": [1], "seed": 18446744073709551616}', "ROW_INVALID_PARAMETER", "seed", 42),
        (b'{"id": 43, "tokens": [1], "logit_bias": {"1": -1e400}}', "ROW_INVALID_PARAMETER", "logit_bias", 43),
        (b'{"id": 44, "tokens": [1], "top_p": .5}', "ROW_JSON", "malformed number", 44),
        (b'{"id": 45, "tokens": [1], "top_k": +1, "custom": 1e}', "ROW_JSON", "malformed number", 45),
        (b'{"id": 46, "tokens": [1], "stop": [{"a": 1, "a": 2}]}', "ROW_FORMAT", '"stop[0].a" is given twice', 46),
        (b'{"id": 32, "tokens": [1], "choices": []}', "ROW_FORMAT", "choices", 32),
        (b'{"id": 33, "tokens": [1], "regex": "a", "choices": ["a"]}', "ROW_FORMAT", "both say", 33),
        (b'{"id": 34, "tokens": [1], "json_schema": 5}', "ROW_FORMAT", "json_schema", 34),
        (b'{"id": 35, "tokens": [1], "grammar": {"ebnf": "x"}}', "ROW_FORMAT", "lark", 35),
        (b'{"id": 36, "tokens": [1], "response_format": {"type": "xml"}}', "ROW_INVALID_PARAMETER", "xml", 36),
        (b'{"id": 37, "tokens": [1], "guided_json": {}}', "ROW_FORMAT", '"json_schema"', 37),
        (b'{"id": 38, "tokens": [1], "regex": "a"}', "ROW_CONSTRAINT", "tokenizer", 38),
        (b'{"id": 39, "tokens": [1], "score": [[1]], "regex": "a"}', "ROW_FORMAT", "a scored row generates nothing", 39),
        (b'{"id": 31, "tokens": [01]}', "ROW_JSON", "malformed", 31),
    ]

    def test_each_bad_row_has_its_own_error_and_the_others_their_results(self):
        rows = []
        for line, *_ in self.TABLE:
            rows += [line, json.dumps({"id": "good %d" % len(rows), "tokens": [1, 2, 3]})]
        results = self.run_rows(rows, expect=3)
        self.assertEqual(len(results), 2 * len(self.TABLE))
        errors = {r["error"]["line"]: r for r in results if r["finish_reason"] == "error"}
        for i, (line, code, part, identity) in enumerate(self.TABLE):
            with self.subTest(line=line[:80]):
                row = errors.pop(2 * i + 1)
                self.assertEqual(row["error"]["code"], code, row["error"]["message"])
                self.assertIn(part, row["error"]["message"])
                self.assertEqual(row["id"], identity)
                self.assertEqual((row["text"], row["tokens"]), ("", []))
        self.assertEqual(errors, {})
        good = [r for r in results if r["finish_reason"] != "error"]
        self.assertEqual(len({r["id"] for r in good}), len(self.TABLE))
        self.assertTrue(all(r["tokens"] for r in good))

    def test_only_bad_rows_end_with_3_and_an_error_each(self):
        results = self.run_rows([b"x", b"y"], expect=3)
        self.assertEqual(sorted(r["error"]["line"] for r in results), [1, 2])

    def test_more_bad_rows_than_a_chunk_holds_are_told_one_by_one(self):
        """With a good row between and after them."""
        rows = [b"bad"] * 17000
        rows[16500] = rows[16999] = {"tokens": [1]}
        out = self.run_rows(rows, expect=3)
        self.assertEqual(len(out), 17000)
        self.assertEqual(sum("error" in row for row in out), 16998)

    def test_the_end_of_a_run_shows_its_first_error(self):
        self.input.write_bytes(lines(token_rows(3) + ['{"id": 1, "tokens": [1], "top_p": 7}', '{"tokens": []}']))
        done = self.run_program("run", *SIM, "-i", self.input, "-o", self.output)
        self.assertEqual(done.returncode, 3)
        shown = [line for line in done.stderr.splitlines() if line.startswith(b"The first error: ")]
        self.assertEqual(len(shown), 1, done.stderr)
        self.assertIn(b"input line 4: ROW_INVALID_PARAMETER: ", shown[0])
        self.assertIn(b"top_p", shown[0])
        self.input.write_bytes(lines(token_rows(3) + [{"id": 4, "tokens": [1] * 9000}]))  # detected by the engine
        done = self.run_program("run", *SIM, "-i", self.input, "-o", self.output, "--force")
        self.assertIn(b"The first error: input line 4: ROW_TOO_LONG: ", done.stderr)
        self.input.write_bytes(lines(token_rows(3)))
        self.assertNotIn(b"The first error", self.run_program("run", *SIM, "-i", self.input, "-o", self.output, "--force").stderr)

    def test_a_key_in_an_error_is_cut_short_and_harmless(self):
        key = "\x1b[31m\n" + "k" * 1000
        [row] = self.run_rows([{"tokens": [1], key: 1}], expect=3)
        message = row["error"]["message"]
        self.assertIn('"?[31m?kkk', message)
        self.assertLess(len(message), 300)

    def test_many_logit_biases_cost_no_more_than_their_number(self):
        used = {}
        for count in (30000, 300000):
            bias = {str(token): 1 for token in range(count)}
            rows = [{"id": 1, "tokens": [1], "logit_bias": {**bias, "05": 1}},
                    {"id": 2, "tokens": [1], "logit_bias": bias}]
            before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
            out = by_id(self.run_rows(rows, "--force", expect=3))
            used[count] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
            self.assertIn("names token 5 twice", out[1]["error"]["message"])
            self.assertEqual(out[2]["error"]["code"], "ROW_INVALID_PARAMETER")  # not in the vocabulary
        self.assertLess(used[300000], 30 * used[30000])  # processor time; quadratic time would be a hundred times as long

    def test_unknown_keys_can_be_passed_over(self):
        rows = [{"id": 1, "tokens": [1], "zebra": 1}]
        results = self.run_rows(rows, "--ignore-unknown-keys")
        self.assertEqual(results[0]["finish_reason"], "stop")

    def test_own_keys_are_never_read(self):
        rows = [{"id": 1, "tokens": [1], "metadata": {"a": [1]}, "_label": 2}]
        self.assertEqual(self.run_rows(rows)[0]["finish_reason"], "stop")

    def test_keys_that_are_named_pass_through(self):
        rows = [{"id": 1, "tokens": [1], "label": {"b": [1.50, None, "\u00e9\n"], "a": 10**30}, "_n": None, "metadata": 5},
                {"id": 2, "tokens": [1], "label": "x"}, {"id": 3, "tokens": [2], "n": 2, "temperature": 1, "_n": 1},
                {"id": 4, "tokens": [], "label": 4}, {"id": 5, "tokens": [1], "other": 5, "label": 5}]
        results = by_id(self.run_rows(rows, "--columns", "label,_n", expect=3))
        self.assertEqual([{key: row[key] for key in ("label", "_n") if key in row} for row in map(results.get, range(1, 6))],
                         [{"label": rows[0]["label"], "_n": None}, {"label": "x"}, {"_n": 1}, {"label": 4}, {"label": 5}])
        self.assertEqual([results[i]["error"]["code"] for i in (4, 5)], ["ROW_EMPTY", "ROW_FORMAT"])
        self.assertIn("name it in --columns", results[5]["error"]["message"])
        self.assertNotIn("metadata", results[1])
        self.assertIn(b'"a":1' + b"0" * 30 + b"}", self.output.read_bytes())
        batch = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "label": [7], "body": {"model": "m", "prompt": [1]}}
        for bad in ({}, {"url": "/v2"}):
            [row] = self.run_rows([{**batch, **bad}], "--force", "--columns", "label", expect=3 if bad else 0)
            self.assertEqual((row["custom_id"], row["label"], row["error"] is None), ("a", [7], not bad))
        done = self.run_program("run", *SIM, "-i", self.input, "-o", self.output, "--resume")
        self.assertIn(b"option columns (was ", done.stderr)
        for given, words in (("text", '"text" is a key of the results'), ("a,,b", '"" names no key'), ("a,b,a", '"a" is named twice')):
            done = self.run_program("run", *SIM, "-i", self.input, "-o", self.output, "--columns", given)
            self.assertEqual(done.returncode, 1)
            self.assertIn(words.encode(), done.stderr)

    def test_columns_free_no_key_of_a_body(self):
        batch = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "tempersture": 1, "body": {"model": "m", "prompt": [1], "tempersture": 1}}
        [row] = self.run_rows([batch], "--columns", "tempersture", expect=3)
        self.assertEqual(row["tempersture"], 1)
        message = row["error"]["message"]
        self.assertIn('unknown key "tempersture" in "body" (did you mean "temperature"?)', message)
        self.assertNotIn("--columns", message)
        del batch["body"]["tempersture"]
        [row] = self.run_rows([batch], "--force", "--columns", "tempersture")
        self.assertEqual((row["tempersture"], row["error"]), (1, None))
        [row] = self.run_rows([{**batch, "body": {**batch["body"], "x": 1}}], "--force", "--columns", "tempersture", "--ignore-unknown-keys")
        self.assertEqual((row["tempersture"], row["error"]), (1, None))

    def test_a_named_column_that_no_row_has_is_told(self):
        rows = [dict(GOOD, id=i, label=i) for i in range(3)]
        told = 'batchllm: warning: --columns: no row has the key "lable" or "x"\n'
        for windows in ("1", "100"):
            self.run_rows(rows, "--columns", "lable,label,x", "--ignore-unknown-keys", "--force", "--window-rows", windows)
            self.assertEqual(self.stderr, told)
        self.run_rows(rows, "--columns", "lable,label,x", "--ignore-unknown-keys", "--force", "--log", "error")
        self.assertEqual(self.stderr, "")
        self.run_rows([dict(GOOD, label=1)] + [dict(GOOD, id=i) for i in range(3)], "--columns", "label", "--force")
        self.assertEqual(self.stderr, "")  # one row is enough
        self.run_rows(b"", "--columns", "label", "--force")
        self.assertEqual(self.stderr, "")
        rows[2]["label"] = {"a": "lable"}
        self.run_rows(rows, "--columns", "lable,label,x", "--ignore-unknown-keys", "--force")
        self.assertEqual(self.stderr, told)
        self.run_rows(rows[:1] + ["{"], "--columns", "label", "--force", expect=3)
        self.assertEqual(self.stderr, "")
        self.input.write_bytes(lines(rows))
        done = self.run_program("plan", "-i", self.input, "-o", self.directory / "plan", "--columns", "lable,label", "--ignore-unknown-keys")
        self.assertEqual(done.returncode, 0)
        self.assertIn(b'batchllm: --columns: no row has the key "lable"\n', done.stderr)

    def test_no_column_has_the_name_of_a_results_key(self):
        rows = [dict(GOOD, id=1, logprobs=1, prompt_logprobs=1), dict(GOOD, id=2, n=2, temperature=1), dict(GOOD, id=3, score=[[1]]),
                dict(GOOD, id=4, tokens=[]), dict(GOOD, id=5, task="embed"),
                {"custom_id": 6, "method": "POST", "url": "/v1/completions", "body": {"model": "m", "prompt": [1]}}]
        keys = {key for row in self.run_rows(rows, expect=3) for key in row}
        self.assertEqual(len(keys), 16)  # all but labels
        for key in keys | {"labels"}:
            done = self.run_program("run", *SIM, "-i", self.input, "-o", self.output, "--columns", key)
            self.assertEqual(done.returncode, 1)
            self.assertIn(f'"{key}" is a key of the results'.encode(), done.stderr)

    def test_a_line_over_the_limit_is_a_row_error(self):
        long = b'{"id": 1, "tokens": [' + b"1," * 3000000 + b"1]}"
        results = self.run_rows([long, GOOD, long + b" "], "--max-line-bytes", "1MiB", expect=3)
        codes = sorted((r.get("error") or {}).get("code", "") for r in results)
        self.assertEqual(codes, ["", "ROW_LINE_TOO_LONG", "ROW_LINE_TOO_LONG"])

    def test_a_line_of_five_megabytes_under_the_limit_is_read(self):
        row = b'{"id": 1, "tokens": [1, 2], "metadata": "' + b"x" * 5000000 + b'"}'
        self.assertEqual(by_id(self.run_rows([row, GOOD]))[1]["usage"]["prompt_tokens"], 2)


class Lines(ProgramTest):
    def test_byte_order_mark_crlf_blank_lines_and_a_last_line_without_end(self):
        data = (b'\xef\xbb\xbf{"id": "a", "tokens": [1]}\r\n\r\n   \n{"tokens": [2]}\r\n\n'
                b'{"id": "c", "tokens": [3]}')
        results = by_id(self.run_rows(data))
        self.assertEqual(set(results), {"a", 4, "c"})  # a missing id is replaced by the line's number

    def test_ids_come_back_as_they_were(self):
        ids = ["text", "\u00e9\u4e2d\U0001f600\"\\\n\u0000", 5, -7, 2.5, 18446744073709551615, ""]
        results = self.run_rows([{"id": i, "tokens": [1]} for i in ids])
        self.assertEqual(sorted(map(repr, (r["id"] for r in results))), sorted(map(repr, ids)))

    def test_what_nobody_asks_for_may_be_any_json(self):
        values = [b"1e999", b"-1" + b"0" * 500, b"0.1e-9999", b"-0", b'{"a": 1, "a": [2, {"b": 1e400, "b": 2}]}']
        rows = [b'{"id": %d, "tokens": [1, 2], "metadata": %s, "_own": %s}' % (i, v, v) for i, v in enumerate(values)]
        rows.append(b'{"id": 5, "tokens": [1.0, 2e0], "max_tokens": 3.0, "seed": 1e2}')  # whole numbers
        self.assertEqual(set(by_id(self.run_rows(rows))), set(range(6)))

    def test_ids_that_no_type_can_hold_come_back_as_they_were_written(self):
        ids = [b"88888888888888888888888888888888", b"-18446744073709551616", b"1e400", b"-1.50e+999"]
        bad = [b', "tokens": []}', b', "tokens": [1], "max_tokens": 1e999}', b', "tokens": [01]}',
               b', "tokens": [1], "top_k": "x"}', b', "tokens": [1], "no such key": {"a": [true, null, -0.5e1, "b"]}}']
        rows = [b'{"id": %s, "tokens": [1, 2]}' % i for i in ids]
        rows += [b'{"id" : %s' % i + b for i in ids for b in bad]
        batch = b'{"custom_id": %s, "method": "POST", "url": "/v1/completions", "body": {"model": "m", "prompt": [1%s]}}'
        rows += [batch % (i, b) for i in ids for b in (b"", b", {}")]
        self.run_rows(rows, expect=3)
        out = self.output.read_bytes().splitlines()
        self.assertEqual(len(out), len(rows))
        for i in ids:
            of_id = [line for line in out if b'"id":%s,' % i in line or b'"custom_id":%s,' % i in line]
            self.assertEqual(len(of_id), 1 + len(bad) + 2, of_id)
            self.assertEqual(sum(b'"code":"ROW_' in line for line in of_id), len(bad) + 1, of_id)

    def test_ids_that_are_numbers_are_written_in_the_shortest_way(self):
        self.run_rows([b'{"id": %s, "tokens": [1]}' % i for i in (b"-0", b"1.0", b"1", b"1.50", b"1e2")])
        found = sorted(line.split(b",")[0] for line in self.output.read_bytes().splitlines())
        self.assertEqual(found, sorted(b'{"id":' + i for i in (b"0", b"1", b"1", b"1.5", b"100")))

    def test_equal_ids_are_different_rows(self):
        rows = [{"id": "same", "tokens": [1, 2]}, {"id": "same", "tokens": [3, 4, 5]}]
        results = self.run_rows(rows)
        self.assertEqual(sorted(r["usage"]["prompt_tokens"] for r in results), [2, 3])

    def test_an_empty_input_gives_an_empty_output(self):
        self.assertEqual(self.run_rows(b""), [])
        self.assertEqual(self.run_rows(b"\n\n", "--force"), [])

    def test_a_pipe_in_and_a_pipe_out(self):
        done = self.run_program("run", *SIM, "-i", "-", "-o", "-", stdin=lines(token_rows(50)))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(by_id(map(json.loads, done.stdout.splitlines()))), 50)

    def test_the_name_of_an_open_descriptor_means_that_descriptor(self):
        self.input.write_bytes(lines(token_rows(50)))
        redirected, link = self.directory / "redirected", self.directory / "link"

        def run(file, name, *arguments):
            link.unlink(missing_ok=True)
            link.symlink_to(name.format(file.fileno()))
            done = subprocess.run([PROGRAM, "run", *SIM, "-i", self.input, *arguments], stdout=file,
                                  pass_fds=[file.fileno()], stderr=subprocess.PIPE)
            self.assertTrue(link.is_symlink())
            return done

        for name in ("/dev/stdout", "/dev/fd/{}", "/proc/self/fd/{}"):
            with open(redirected, "wb", buffering=0) as file:
                file.write(b"before\n")
                done = run(file, name, "-o", link)
                self.assertEqual(done.returncode, 0, done.stderr)
                file.write(b"after\n")
            written = redirected.read_bytes().splitlines()
            self.assertEqual((written[0], written[-1]), (b"before", b"after"))
            self.assertEqual(len(by_id(map(json.loads, written[1:-1]))), 50)
            with open(redirected, "wb") as file:
                done = run(file, name, "-o", self.output, "--force", "--stats", link)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(json.loads(redirected.read_bytes())["rows_done"], 50)
            with open(redirected, "wb", buffering=0) as file:
                file.write(b"before\n")
                done = run(file, name, "-o", self.output, "--force", "--timeline", link)
                self.assertEqual(done.returncode, 0, done.stderr)
                file.write(b"after\n")
            written = redirected.read_bytes().splitlines()
            self.assertEqual((written[0], written[1][:5], written[-1]), (b"before", b"step,", b"after"))
            with open(redirected, "wb") as file:
                done = run(file, name, "-o", link, "--resume")
                self.assertEqual(done.returncode, 1)
                self.assertIn(b"--resume needs an output file", done.stderr)
                for output in (link, "-"):
                    done = run(file, name, "-o", output, "--stats", link)
                    self.assertEqual(done.returncode, 1)
                    self.assertIn(b"is the file of --output too", done.stderr)
        self.assertEqual([path.name for path in self.directory.glob("*.state")], ["out.jsonl.state"])

    def test_an_input_that_stdin_is_redirected_from_is_not_overwritten(self):
        rows = lines(token_rows(50))
        self.input.write_bytes(rows)
        for arguments in (["-i", "-", "-o", self.input, "--force"], ["-i", "-", "-o", "-"], ["-i", self.input, "-o", "-"],
                          ["-i", "-", "-o", self.output, "--stats", self.input]):
            with open(self.input, "rb") as stdin, open(self.input, "ab") as stdout:
                done = subprocess.run([PROGRAM, "run", *SIM, *arguments], stdin=stdin, stdout=stdout,
                                      stderr=subprocess.PIPE)
            self.assertEqual(done.returncode, 1, arguments)
            self.assertIn(b"is the input", done.stderr)
        self.assertEqual(self.input.read_bytes(), rows)

    def test_only_descriptors_that_the_program_was_started_with_are_written_to(self):
        self.input.write_bytes(lines(token_rows(50)))
        # Without the check, some of these descriptors would be the input, the output and its state.
        for number in range(3, 10):
            for arguments in (["-o", f"/dev/fd/{number}"], ["-o", self.output, "--stats", f"/dev/fd/{number}"]):
                done = self.run_program("run", *SIM, "-i", self.input, *arguments)
                self.assertEqual(done.returncode, 1)
                self.assertIn(f"/dev/fd/{number}: the program was started without this descriptor".encode(), done.stderr)
                self.assertFalse(self.output.exists())

    def test_a_pipe_or_a_file_as_stdin_and_a_file_out(self):
        self.input.write_bytes(lines(token_rows(50)))
        with open(self.input, "rb") as file:
            done = subprocess.run([PROGRAM, "run", *SIM, "-i", "-", "-o", self.output],
                                  stdin=file, stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(by_id(self.read_output())), 50)
        done = self.run_program("run", *SIM, "-i", "-", "-o", self.output, "--force",
                                stdin=lines(token_rows(20)))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(by_id(self.read_output())), 20)


class Parameters(ProgramTest):
    def test_rows_override_the_command_line(self):
        rows = [{"id": 1, "tokens": [1], "ignore_eos": True},
                {"id": 2, "tokens": [1], "ignore_eos": True, "max_tokens": 5},
                {"id": 3, "tokens": [1], "ignore_eos": True, "max_tokens": None}]
        results = by_id(self.run_rows(rows, "--max-tokens", "3"))
        self.assertEqual([len(results[i]["tokens"]) for i in (1, 2, 3)], [3, 5, 3])
        self.assertEqual(results[2]["finish_reason"], "length")

    def test_stop_tokens_end_a_row(self):
        rows = [{"id": 1, "tokens": [1], "ignore_eos": True, "max_tokens": 10}]
        free = self.run_rows(rows)[0]["tokens"]
        for key in ("stop_tokens", "stop_token_ids"):
            row = dict(rows[0], **{key: [free[4]]})
            stopped = self.run_rows([row], "--force")[0]
            self.assertEqual(stopped["tokens"], free[:free.index(free[4]) + 1])
            self.assertEqual(stopped["finish_reason"], "stop")

    def test_samples_come_on_one_line(self):
        rows = [{"id": 1, "tokens": [1, 2], "n": 3, "temperature": 1}, GOOD]
        results = by_id(self.run_rows(rows))
        samples = results[1]["samples"]
        self.assertEqual(len(samples), 3)
        self.assertEqual(results[1]["usage"]["completion_tokens"],
                         sum(len(s["tokens"]) for s in samples))
        self.assertGreater(len({tuple(s["tokens"]) for s in samples}), 1)
        self.assertNotIn("samples", results["good"])

    def test_a_row_has_failed_if_one_of_its_samples_has(self):
        # After token 7 the logits are not finite; after token 8 they are.
        model = self.directory / "model"
        shutil.copytree(TESTS / "golden/llama_bias_f32", model)
        weights = bytearray((model / "model.safetensors").read_bytes())
        size = int.from_bytes(weights[:8], "little")
        embedding = json.loads(weights[8:8 + size])["model.embed_tokens.weight"]
        row = 4 * embedding["shape"][1]
        begin = 8 + size + embedding["data_offsets"][0] + 7 * row
        weights[begin:begin + row] = b"\xff" * row
        (model / "model.safetensors").write_bytes(weights)
        backend = ["--backend", "cpu", "--compute-type", "f32", "--kv-memory", "16MiB", "--model", model]
        plain = {"tokens": [5, 6], "temperature": 1, "logit_bias": {"7": 100, "8": 100}, "max_tokens": 2}
        body = {"model": "m", "prompt": [6, 5], "n": 16} | {key: plain[key] for key in ("temperature", "logit_bias", "max_tokens")}
        rows = [dict(plain, id=1, n=16), {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body},
                {"id": 2, "tokens": [5, 6], "max_tokens": 2}]
        stats = self.directory / "stats.json"
        options = ["--stats", stats]
        for again in ([], ["--resume"], ["--resume", "--retry-failed"]):
            found = self.run_rows(rows, *options, *again, "--log", "error", backend=backend, expect=3)
            samples = next(row["samples"] for row in found if row.get("id") == 1)
            failed = [sample for sample in samples if "error" in sample]
            self.assertTrue(0 < len(failed) < 16, samples)
            self.assertTrue(all(sample["text"] is None and sample["error"]["code"] == "ROW_NOT_A_NUMBER" for sample in failed))
            [answer] = [row for row in found if "custom_id" in row]
            reasons = [choice["finish_reason"] for choice in answer["response"]["body"]["choices"]]
            self.assertEqual((answer["error"], set(reasons)), (None, {"length", "error"}))
            counts = json.loads(stats.read_text())
            self.assertEqual([counts[name] for name in ("rows", "rows_done", "rows_failed", "rows_resumed")],
                             [3, 3, 2, 0 if not again else 3 if len(again) == 1 else 1])

    def test_prompt_logprobs_of_a_prompt_of_one_token_are_an_empty_list(self):
        one = dict(GOOD, tokens=[5])
        rows = [dict(one, id=1, prompt_logprobs=0), dict(one, id=2, prompt_logprobs=2), dict(one, id=3),
                dict(one, id=4, prompt_logprobs=1, n=2, temperature=1), dict(one, id=5, tokens=[5, 6], prompt_logprobs=1)]
        results = by_id(self.run_rows(rows))
        self.assertEqual(results[1]["prompt_logprobs"], [])
        self.assertNotIn("prompt_top_logprobs", results[1])
        self.assertEqual((results[2]["prompt_logprobs"], results[2]["prompt_top_logprobs"]), ([], []))
        self.assertNotIn("prompt_logprobs", results[3])
        first, second = results[4]["samples"]
        self.assertEqual((first["prompt_logprobs"], first["prompt_top_logprobs"]), ([], []))
        self.assertNotIn("prompt_logprobs", second)
        self.assertEqual([len(results[5][name]) for name in ("prompt_logprobs", "prompt_top_logprobs")], [1, 1])

    def test_logprobs_of_the_chosen_and_the_likeliest(self):
        rows = [dict(GOOD, id=1, logprobs=2), dict(GOOD, id=2, logprobs=0), dict(GOOD, id=3),
                dict(GOOD, id=4, logprobs=True)]
        results = by_id(self.run_rows(rows))
        self.assertEqual(len(results[1]["logprobs"]), len(results[1]["tokens"]))
        self.assertTrue(all(len(top) == 2 for top in results[1]["top_logprobs"]))
        self.assertEqual(set(results[1]["top_logprobs"][0][0]), {"token", "logprob"})
        self.assertNotIn("top_logprobs", results[2])
        self.assertNotIn("logprobs", results[3])
        self.assertIn("logprobs", results[4])
        results = by_id(self.run_rows(rows, "--force", "--logprobs"))
        self.assertIn("logprobs", results[3])

    def test_scored_rows_have_a_score_for_each_continuation(self):
        rows = [{"id": 1, "tokens": [1, 2], "score": [[3], [4, 5], [6]]}, GOOD]
        results = by_id(self.run_rows(rows))
        row = results[1]
        self.assertEqual(row["finish_reason"], "scored")
        self.assertEqual([len(x) for x in row["score_logprobs"]], [1, 2, 1])
        for score, logprobs in zip(row["scores"], row["score_logprobs"]):
            self.assertAlmostEqual(score, sum(logprobs), places=4)

    def test_parameters_out_of_range_on_the_command_line_are_usage_errors(self):
        self.input.write_bytes(lines([GOOD]))
        for bad in (["--temperature", "-1"], ["--top-p", "0"], ["--max-tokens", "0"],
                    ["--kv-memory", "much"], ["--top-p", "nan"], ["--logprobs", "21"]):
            done = self.run_program("run", "--backend", "sim", "-i", self.input, "-o", self.output,
                                    *bad)
            self.assertEqual(done.returncode, 1, bad)
            self.assertFalse(self.output.exists())


class OpenAiBatch(ProgramTest):
    @staticmethod
    def request(custom_id, **body):
        return {"custom_id": custom_id, "method": "POST", "url": "/v1/completions",
                "body": {"model": "m", **body}}

    def test_completions_are_answered_in_kind(self):
        rows = [self.request("a", prompt=[1, 2, 3], max_tokens=4, user="u"),
                self.request("b", prompt=[[1, 2]], n=2, temperature=1, logprobs=1),
                GOOD]
        results = self.run_rows(rows)
        answers = {r["custom_id"]: r for r in results if "custom_id" in r}
        self.assertEqual(len(answers), 2)
        answer = answers["a"]
        self.assertEqual(set(answer), {"id", "custom_id", "response", "error"})
        self.assertIsNone(answer["error"])
        self.assertEqual(answer["response"]["status_code"], 200)
        self.assertTrue(answer["response"]["request_id"])
        body = answer["response"]["body"]
        self.assertEqual((body["object"], body["model"]), ("text_completion", "m"))
        self.assertEqual(body["usage"]["prompt_tokens"], 3)
        self.assertEqual(body["usage"]["total_tokens"], 3 + body["usage"]["completion_tokens"])
        self.assertIn(body["choices"][0]["finish_reason"], ("stop", "length"))
        choices = answers["b"]["response"]["body"]["choices"]
        self.assertEqual([c["index"] for c in choices], [0, 1])
        logprobs = choices[0]["logprobs"]
        self.assertEqual(len(logprobs["tokens"]), len(logprobs["token_logprobs"]))
        self.assertEqual(len(logprobs["tokens"]), len(logprobs["top_logprobs"]))

    def test_errors_are_answered_in_kind(self):
        chat = dict(self.request("chat"), url="/v1/chat/completions")
        chat["body"]["messages"] = [{"role": "user", "content": "hello"}]
        rows = [chat, self.request("two", prompt=[[1], [2]]),
                self.request("echo", prompt=[1], echo=True),
                self.request("typo", prompt=[1], temprature=1),
                self.request("token", prompt=[5000]),
                dict(self.request("url", prompt=[1]), url="/v1/embeddings"),
                self.request("none"), self.request("number", prompt=[1], seed=10 ** 30)]
        results = self.run_rows(rows, expect=3)
        self.assertEqual({r["custom_id"] for r in results},
                         {"chat", "two", "echo", "typo", "token", "url", "none", "number"})
        for row in results:
            self.assertEqual(row["response"]["status_code"], 400)
            self.assertEqual(row["response"]["body"]["error"]["code"], row["error"]["code"])
        codes = {r["custom_id"]: r["error"]["code"] for r in results}
        self.assertEqual(codes["chat"], "ROW_INVALID_PARAMETER")  # sim has no tokenizer
        self.assertEqual(codes["token"], "ROW_UNKNOWN_TOKEN")
        self.assertEqual(codes["number"], "ROW_INVALID_PARAMETER")


if __name__ == "__main__":
    unittest.main()
