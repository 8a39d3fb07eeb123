"""Rows that name adapters: the program's own form, the OpenAI batch format, plans and resuming."""

import json
import os
import shutil
import unittest

from program import TESTS, ProgramTest, lines

GOLDEN = TESTS / "golden"
ADAPTERS = GOLDEN / "adapters"
BASE = "llama_bias_f32"
CPU = ["--backend", "cpu", "--compute-type", "f32", "--kv-memory", "16MiB", "--model", GOLDEN / BASE]
TEXT = ["--backend", "cpu", "--compute-type", "f32", "--kv-memory", "16MiB", "--model", os.environ.get("BATCHLLM_TEXT_MODEL", "build/tests/text_model")]
SAID = {made["name"]: made["rows"] for made in json.loads((ADAPTERS / "adapters.json").read_text())["adapters"]}
ROWS = json.loads((GOLDEN / BASE / "golden.json").read_text())["rows"]
NAMES = ("llama_qv_r4", "llama_all_r64_rs", "llama_one_layer")


def prompt(i):
    return {"tokens": ROWS[i]["prompt"], "max_tokens": 24}


def wanted(name, i):
    return SAID[name][i]["tokens"] if name else ROWS[i]["tokens"]


class Adapters(ProgramTest):
    def path(self, name):
        return self.directory / name

    def write(self, rows):
        self.input.write_bytes(lines(rows))
        return self.input

    def run_ok(self, *arguments):
        done = self.run_program(*arguments, "--progress", "none") if arguments[0] == "run" else self.run_program(*arguments)
        self.assertEqual(done.returncode, 0, done.stderr.decode())

    def assert_said(self, name, i, tokens):
        """Up to the first token that rounding may have decided."""
        margins = (SAID[name][i] if name else ROWS[i])["margins"]
        end = next((t for t, margin in enumerate(margins) if margin < 1e-3), len(margins))
        self.assertEqual(tokens[:end], wanted(name, i)[:end], (name, i))

    def test_rows_name_adapters(self):
        rows = [{"id": f"{name} {i}", "adapter": name, **prompt(i)} for i in range(3) for name in (*NAMES, "")]
        rows.append({"id": " 3", **prompt(3)})
        found = self.run_rows(rows, "--adapters", ADAPTERS, "--stats", self.path("stats.json"), backend=CPU)
        for row in found:
            name, i = row["id"].split(" ")
            self.assert_said(name, int(i), row["tokens"])
        self.assertEqual(len(found), len(rows))
        used = json.loads(self.path("stats.json").read_text())["adapters"]
        self.assertEqual((used["used"], used["loads"]), (3, 3))
        self.assertGreater(used["peak_bytes"], 0)

    def test_scored_rows_have_adapters(self):
        made = json.loads((ADAPTERS / "adapters.json").read_text())["adapters"]
        rows, scores = [], {}
        for one in made:
            if one["name"] not in NAMES:
                continue
            scores[one["name"]] = one["score"]["logprobs"]
            rows.append({"id": one["name"], "adapter": one["name"], "tokens": ROWS[one["score"]["prompt"]]["prompt"],
                         "score": one["score"]["continuations"]})
        for row in self.run_rows(rows, "--adapters", ADAPTERS, backend=CPU):
            for got, logprobs in zip(row["scores"], scores[row["id"]], strict=True):
                self.assertAlmostEqual(got, sum(logprobs), delta=2e-3)

    def test_the_adapter_of_rows_that_name_none(self):
        rows = [{"id": 0, **prompt(0)}, {"id": 1, "adapter": "", **prompt(0)}, {"id": 2, "adapter": "other", **prompt(0)}]
        options = ["--adapter", f"one={ADAPTERS / NAMES[0]}", "--adapter", f"other={ADAPTERS / NAMES[2]}", "--use-adapter", "one"]
        found = {row["id"]: row["tokens"] for row in self.run_rows(rows, *options, backend=CPU)}
        for i, name in enumerate((NAMES[0], "", NAMES[2])):
            self.assert_said(name, 0, found[i])

    def test_a_model_of_the_openai_format_may_be_an_adapter(self):
        rows = [{"custom_id": str(i), "method": "POST", "url": "/v1/completions",
                 "body": {"model": model, "prompt": ROWS[0]["prompt"], "max_tokens": 24, "logprobs": 0}}
                for i, model in enumerate((NAMES[0], "llama", "meta-llama/../" + NAMES[0]))]
        plain = self.run_rows([{"id": 0, "adapter": NAMES[0], "logprobs": 0, **prompt(0)}, {"id": 1, "logprobs": 0, **prompt(0)}],
                              "--adapters", ADAPTERS, backend=CPU)
        usual = {row["id"]: row["logprobs"] for row in plain}
        for row in self.run_rows(rows, "--adapters", ADAPTERS, "--force", backend=CPU):
            got = row["response"]["body"]["choices"][0]["logprobs"]["token_logprobs"]
            self.assertEqual(got, usual[0 if row["custom_id"] == "0" else 1])

    def test_models_that_are_no_adapters_are_named_at_the_end(self):
        def request(i, model):
            return {"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": {"model": model, "prompt": ROWS[0]["prompt"], "max_tokens": 1}}

        rows = [request(i, model) for i, model in enumerate((NAMES[0], "base", NAMES[0] + "x", "base"))]
        def said(given, *adapters):
            done = self.run_program("run", *CPU, "-i", self.write(given), "-o", self.output, "--force", *adapters)
            self.assertEqual(done.returncode, 0, done.stderr)
            return [line for line in done.stderr.decode().splitlines() if line.startswith("Rows whose")]

        told = 'Rows whose "model" is no adapter\'s name: '
        self.assertEqual(said(rows, "--adapters", ADAPTERS), [told + f'2 with "base", 1 with "{NAMES[0]}x"'])
        many = said([request(i, f"m{i % 11}") for i in range(30)], "--adapters", ADAPTERS)
        self.assertEqual(many, [told + ", ".join(f'3 with "m{i}"' for i in range(8)) + ", 6 with others"])
        self.assertEqual(said(rows), [])
        self.assertEqual(said(rows[:1], "--adapters", ADAPTERS), [])
        self.path("empty").mkdir()
        self.assertEqual(said(rows[:2], "--adapters", self.path("empty")), [told + f'1 with "{NAMES[0]}", 1 with "base"'])

    def test_a_column_of_a_table_names_adapters(self):
        names = (NAMES[0], NAMES[1], "", None, "none", 5)
        rows = [{"id": f"{name} {i}", "language": name, "question": f"Is {i} even?"} for name in names for i in range(3)]
        adapters = ["--adapters", ADAPTERS, "--use-adapter", NAMES[2], "--max-tokens", "8"]
        plain = [{"id": row["id"], "adapter": row["language"], "prompt": row["question"] + " Answer:"} for row in rows]
        wanted = {row["id"]: row for row in self.run_rows(plain, *adapters, backend=TEXT, expect=3)}
        self.assertEqual(len({tuple(wanted[f"{name} 0"]["tokens"]) for name in names[:4]}), 4)
        table = ["--template", "{question} Answer:", "--adapter-column", "language"]
        for row in self.run_rows(rows, *adapters, *table, "--force", backend=TEXT, expect=3):
            self.assertEqual(row["tokens"], wanted[row["id"]]["tokens"])
            if "error" in row:
                self.assertEqual(row["error"]["code"], {"none": "ROW_ADAPTER", "5": "ROW_FORMAT"}[row["id"].split()[0]])
        self.run_rows(rows, *adapters, *table, "--resume", backend=TEXT, expect=3)
        done = self.run_program("run", *TEXT, "-i", self.input, "-o", self.output, *adapters, *table[:2], "--resume")
        self.assertIn(b"adapter-column", done.stderr)

    def test_adapters_that_no_line_of_a_table_can_name_are_refused(self):
        self.write([{"id": 0, "language": NAMES[0], "question": "x"}])
        table = ["--template", "{question}"]
        for arguments, words in ((["--adapters", ADAPTERS, *table], "--adapter-column says"), (["--adapter-column", "language"], "need a --template"),
                                 (["--adapters", ADAPTERS, *table, "--adapter-column", "langage"], 'no column "langage"; the columns are "id", "language", "question"')):
            done = self.run_program("run", *TEXT, "-i", self.input, "-o", self.output, *arguments)
            self.assertEqual(done.returncode, 1, arguments)
            self.assertIn(words, done.stderr.decode())
            self.assertFalse(self.output.exists())

    def test_a_directory_that_is_no_adapter_is_named(self):
        shutil.copytree(ADAPTERS / NAMES[0], self.path("adapters") / "trained" / "checkpoint-500")
        rows = [{"id": i, "adapter": name, **prompt(0)} for i, name in enumerate(("trained", "trained/checkpoint-500", "../adapters", "lost"))]
        found = self.run_rows(rows, "--adapters", self.path("adapters"), backend=CPU, expect=3)
        for i, row in enumerate(sorted(found, key=lambda row: row["id"])):
            self.assertEqual(row["error"]["message"].endswith(": no " + str(self.path("adapters") / "trained/adapter_config.json")), i == 0, row)
        itself = self.path("adapters") / "trained" / "checkpoint-500"
        done = self.run_program("run", *CPU, "-i", self.input, "-o", self.output, "--force", "--adapters", itself)
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"--adapter NAME={itself}", done.stderr.decode())

    def test_unknown_adapters_are_errors_of_their_rows(self):
        (self.path("adapters") / "bad").mkdir(parents=True)
        (self.path("adapters") / "bad" / "adapter_config.json").write_text("{}")
        shutil.copytree(ADAPTERS / NAMES[0], self.path("outside"))
        shutil.copytree(self.path("adapters") / "bad", self.path("adapters") / "pipe")
        os.mkfifo(self.path("adapters") / "pipe" / "adapter_model.safetensors")
        names = ["none", "pipe", "../outside", "/etc", ".", "..", "bad", "a\u0000b", "x" * 300]
        rows = [{"id": i, "adapter": name, **prompt(0)} for i, name in enumerate(names)] + [{"id": "good", **prompt(0)}]
        found = self.run_rows(rows, "--adapters", self.path("adapters"), backend=CPU, expect=3)
        for row in found:
            if row["id"] == "good":
                self.assert_said("", 0, row["tokens"])
            else:
                self.assertEqual(row["error"]["code"], "ROW_ADAPTER", row)
        rows = [{"id": 0, "adapter": 5, **prompt(0)}]
        [row] = self.run_rows(rows, "--force", backend=CPU, expect=3)
        self.assertEqual(row["error"]["code"], "ROW_FORMAT")

    def test_a_rows_adapter_is_checked_before_its_constraint(self):
        for name in ("bad", "short"):
            shutil.copytree(ADAPTERS / NAMES[0], self.path("adapters") / name)
        shutil.copytree(ADAPTERS / NAMES[0], self.path("adapters") / "good")
        (self.path("adapters") / "bad" / "adapter_config.json").write_text("{}")
        weights = self.path("adapters") / "short" / "adapter_model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1])
        rows = [{"id": "a", "adapter": "good", **prompt(0)}, {"id": "b", "adapter": "short", "regex": "(", **prompt(0)},
                {"id": "c", "adapter": "good", "regex": "(", **prompt(0)}, {"id": "d", "adapter": "none", "regex": "(", **prompt(0)},
                {"id": "e", "adapter": "bad", "max_tokens": "x", "tokens": [5]}, {"id": "f", "adapter": "bad", **prompt(0)},
                {"id": "g", "adapter": "short", **prompt(1)}]
        found = self.run_rows(rows, "--adapters", self.path("adapters"), backend=CPU, expect=3)
        failed = [(row["id"], row["error"]["code"]) for row in found if "error" in row]
        self.assertEqual(failed, [("b", "ROW_ADAPTER"), ("c", "ROW_CONSTRAINT"), ("d", "ROW_ADAPTER"), ("e", "ROW_FORMAT"),
                                  ("f", "ROW_ADAPTER"), ("g", "ROW_ADAPTER")])
        said = {row["id"]: row["error"]["message"] for row in found if "error" in row}
        self.assertEqual(said["b"], said["g"])
        self.assertIn("cut short", said["b"])

    def test_a_bad_adapter_of_the_command_line_ends_the_run(self):
        good = f"a={ADAPTERS / NAMES[0]}"
        for options in ([f"a={self.path('none')}"], ["a"], ["=b"], [good, good]):
            done = self.run_program("run", *CPU, "--input", self.write([{"id": 0, **prompt(0)}]), "--output", self.path("out"),
                                    *(argument for option in options for argument in ("--adapter", option)))
            self.assertEqual(done.returncode, 1, options)
            self.assertFalse(self.path("out").exists())

    def test_a_plan_knows_adapters(self):
        rows = [{"id": i, "adapter": NAMES[i % 2], "tokens": [*range(5, 60), i]} for i in range(8)]
        source = self.write(rows)
        options = ["--adapters", ADAPTERS]
        self.run_ok("plan", "--input", source, "--output", self.path("p.plan"), *options, "--stats", self.path("plan.json"))
        self.assertEqual(json.loads(self.path("plan.json").read_text())["groups"], 2)
        self.run_ok("run", *CPU, "--input", source, "--output", self.path("out"), "--plan", self.path("p.plan"), *options,
                    "--max-tokens", "2", "--stats", self.path("stats.json"))
        stats = json.loads(self.path("stats.json").read_text())
        self.assertEqual((stats["groups"], stats["rows_planned_before"]), (2, 8))

    def test_a_prediction_knows_adapters(self):
        rows = [{"id": i, "adapter": [*NAMES, ""][i % 4], "tokens": [*range(5, 60), i]} for i in range(8)]
        predicted = {}
        for adapters in (["--adapters", ADAPTERS], []):
            given = rows if adapters else [{**row, "adapter": ""} for row in rows]
            self.run_ok("plan", "--model", GOLDEN / BASE, "--input", self.write(given), "--output", self.path("p.plan"), *adapters,
                               "--device", "h100", "--max-tokens", "8", "--stats", self.path("plan.json"))
            predicted[bool(adapters)] = json.loads(self.path("plan.json").read_text())["predicted"]
        self.assertGreater(predicted[True]["seconds"], predicted[False]["seconds"])

    def test_a_job_is_not_resumed_with_another_adapter(self):
        source = self.write([{"id": 0, "adapter": "a", **prompt(0)}])
        for given in (["--adapter", f"a={self.path('adapters') / 'a'}"], ["--adapters", self.path("adapters")]):
            shutil.rmtree(self.path("adapters"), ignore_errors=True)
            shutil.copytree(ADAPTERS / NAMES[0], self.path("adapters") / "a")
            run = ["run", *CPU, "--input", source, "--output", self.path("out"), *given]
            self.run_ok(*run, "--force")
            self.run_ok(*run, "--resume")
            weights = self.path("adapters") / "a" / "adapter_model.safetensors"
            weights.write_bytes(weights.read_bytes()[:-1] + b"!")  # the last byte: the smallest change there is
            done = self.run_program(*run, "--resume")
            self.assertEqual(done.returncode, 1)
            self.assertIn(b"adapter", done.stderr)
            shutil.rmtree(self.path("adapters") / "a")
            shutil.copytree(ADAPTERS / NAMES[2], self.path("adapters") / "a")
            done = self.run_program(*run, "--resume")
            self.assertEqual(done.returncode, 1)
            self.assertIn(b"adapter a (was ", done.stderr)

    def test_adapters_may_come_before_a_job_is_resumed(self):
        folder = self.path("adapters")
        shutil.copytree(ADAPTERS / NAMES[0], folder / "a")
        os.mkdir(folder / "b")
        shutil.copy(ADAPTERS / NAMES[1] / "adapter_config.json", folder / "b")  # and no weights
        rows = [{"id": name, "adapter": name, **prompt(i)} for i, name in enumerate("abc")]
        run = ["run", *CPU, "--input", self.write(rows), "--output", self.output, "--adapters", folder]
        done = self.run_program(*run)
        self.assertEqual(done.returncode, 3, done.stderr)
        shutil.copy(ADAPTERS / NAMES[1] / "adapter_model.safetensors", folder / "b")
        shutil.copytree(ADAPTERS / NAMES[2], folder / "c")
        shutil.copytree(ADAPTERS / NAMES[2], folder / "unused")
        self.run_ok(*run, "--resume", "--retry-failed")
        said = {row["id"]: row["tokens"] for row in self.read_output()}
        for i, name in enumerate("abc"):
            self.assert_said(NAMES[i], i, said[name])
        # From now on they are the job's too.
        self.run_ok(*run, "--resume")
        (folder / "unused" / "adapter_config.json").write_text("{}")
        done = self.run_program(*run, "--resume")
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"adapter unused (was samples ", done.stderr)
        shutil.rmtree(folder / "unused")
        self.assertIn(b"now unset", self.run_program(*run, "--resume").stderr)

    def test_no_adapter_may_come_that_a_model_of_the_batch_format_names(self):
        # Rows with this model ran without it, and others would run with it.
        folder = self.path("adapters")
        shutil.copytree(ADAPTERS / NAMES[0], folder / "a")
        body = {"model": "later", "prompt": ROWS[0]["prompt"], "max_tokens": 2}
        rows = [{"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": body} for i in range(2)]
        run = ["run", *CPU, "--input", self.write(rows), "--output", self.output, "--adapters", folder]
        self.run_ok(*run)
        self.run_ok(*run, "--resume")
        shutil.copytree(ADAPTERS / NAMES[1], folder / "later")
        done = self.run_program(*run, "--resume")
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"not the same job: names of adapters (was 1, ", done.stderr)

    def test_no_output_replaces_an_adapter(self):
        folder = self.path("adapters")
        shutil.copytree(ADAPTERS / NAMES[0], folder / "a")
        weights, config = folder / "a" / "adapter_model.safetensors", folder / "a" / "adapter_config.json"
        before = weights.read_bytes(), config.read_bytes()
        source = self.write([{"id": 0, "adapter": "a", **prompt(0)}])
        self.path("link").symlink_to(weights)
        for given in (["--adapters", folder], ["--adapter", f"a={folder / 'a'}"]):
            for outputs in (["-o", weights], ["-o", self.path("link")], ["-o", self.output, "--stats", config]):
                done = self.run_program("run", *CPU, "-i", source, *given, "--force", *outputs)
                self.assertEqual(done.returncode, 1)
                self.assertIn(b"is a file of an adapter in ", done.stderr)
            done = self.run_program("plan", "--model", GOLDEN / BASE, "-i", source, *given, "-o", weights)
            self.assertIn(b"is a file of an adapter in ", done.stderr)
        self.assertEqual((weights.read_bytes(), config.read_bytes()), before)


if __name__ == "__main__":
    unittest.main()
