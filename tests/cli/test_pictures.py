"""Rows that name pictures: the program's own form, the OpenAI batch format, plans, and folders."""

import base64
import json
import os
import shutil
import unittest

from program import TESTS, ProgramTest, lines

GOLDEN = TESTS / "golden" / "qwen3_vl_pictures"
CPU = ["--backend", "cpu", "--compute-type", "f32", "--kv-memory", "16MiB", "--model", GOLDEN]
MADE = json.loads((GOLDEN / "pictures.json").read_text())
ROWS, FILES = MADE["rows"], [picture["file"] for picture in MADE["pictures"]]
NEW = MADE["new_tokens"]


def named(row, name):
    """The row's messages with name(number) in each part that is a picture."""
    messages = json.loads(json.dumps(row["messages"]))
    for message in messages:
        for part in message["content"] if isinstance(message["content"], list) else ():
            if part["type"] == "image":
                part["image"] = name(part["image"])
    return messages


def data_url(number):
    return "data:image/png;base64," + base64.b64encode((GOLDEN / FILES[number]).read_bytes()).decode()


class Pictures(ProgramTest):
    def setUp(self):
        super().setUp()
        for name in FILES:
            shutil.copy(GOLDEN / name, self.directory / name)

    def write(self, rows):
        self.input.write_bytes(lines(rows))
        return self.input

    def assert_said(self, i, tokens):
        """Up to the first token that rounding may have decided."""
        row = ROWS[i]
        end = next((t for t, margin in enumerate(row["margins"]) if margin < 1e-3), len(row["tokens"]))
        self.assertEqual(tokens[:end], row["tokens"][:end], i)

    def test_rows_have_pictures_in_every_form(self):
        rows = []
        for i, row in enumerate(ROWS):
            names = [FILES[number] for number in row["pictures"]]
            rows.append({"id": f"list {i}", "prompt": row["text"], "images": names})
            rows.append({"id": f"parts {i}", "messages": named(row, lambda n: FILES[n])})
            rows.append({"id": f"data {i}", "messages": named(row, data_url)})
        stats = self.directory / "stats.json"
        found = self.run_rows(rows, "--max-tokens", str(NEW), "--no-special", "--stats", stats, backend=CPU)
        self.assertEqual(len(found), len(rows))
        for row in found:
            self.assertNotIn("error", row)
            self.assert_said(int(row["id"].split(" ")[1]), row["tokens"])
        used = json.loads(stats.read_text())["pictures"]
        self.assertEqual(used["computed"], len({n for row in ROWS for n in row["pictures"]}))
        self.assertGreaterEqual(used["in_rows"], used["computed"])

    def test_the_batch_format_has_image_urls(self):
        rows = []
        for i, row in enumerate(ROWS):
            messages = named(row, lambda n: FILES[n])
            for message in messages:
                for part in message["content"] if isinstance(message["content"], list) else ():
                    if part["type"] == "image":
                        name = part.pop("image")
                        part |= {"type": "image_url", "image_url": {"url": name}}
            body = {"model": "m", "messages": messages, "max_tokens": NEW}
            rows.append({"custom_id": str(i), "method": "POST", "url": "/v1/chat/completions", "body": body})
        found = self.run_rows(rows, backend=CPU)
        self.assertEqual(len(found), len(rows))
        for row in found:
            self.assertIsNone(row["error"])
            usage = row["response"]["body"]["usage"]
            self.assertEqual(usage["prompt_tokens"], len(ROWS[int(row["custom_id"])]["prompt"]))

    def test_the_batch_format_embeds_conversations_with_pictures(self):
        rows, bodies = [], [{"messages": named(ROWS[i], lambda n: FILES[n])} for i in (0, 1)]
        bodies += [{"messages": bodies[0]["messages"], "input": "x"}, {"messages": None}, {"input": "x", "images": [FILES[0]]}]
        for i, body in enumerate(bodies):
            rows.append({"custom_id": str(i), "method": "POST", "url": "/v1/embeddings", "body": body})
        rows += [{"id": f"own {i}", "task": "embed", "messages": named(ROWS[i], lambda n: FILES[n])} for i in (0, 1)]
        found = {row.get("custom_id", row.get("id")): row for row in self.run_rows(rows, backend=CPU, expect=3)}
        vectors = [found[str(i)]["response"]["body"]["data"][0]["embedding"] for i in (0, 1)]
        self.assertEqual(vectors, [found[f"own {i}"]["embedding"] for i in (0, 1)])
        self.assertNotEqual(*vectors)
        says = [found[str(i)]["error"]["message"] for i in (2, 3, 4)]
        self.assertIn('only one of "input" and "messages"', says[0])
        self.assertIn('"messages" is null', says[1])
        self.assertIn('unknown key "images" in "body";', says[2])  # without itself as what is meant

    def test_bad_pictures_are_errors_of_their_rows(self):
        outside = self.directory.parent / "outside.png"
        text = ROWS[0]["text"]
        (self.directory / "link.png").symlink_to(GOLDEN / FILES[0])
        wrong = {
            "none.png": "none.png",
            "../" + outside.name: "outside" if outside.exists() else "..",
            "link.png": "outside the folders",
            "http://host/a.png": "never fetched",
        }
        rows = [{"id": name, "prompt": text, "images": [name]} for name in wrong]
        rows += [{"id": "good", "prompt": text, "images": [FILES[0]]}, {"id": "number", "prompt": text, "images": []}]
        rows += [{"id": "tokens", "tokens": [1, 2], "images": [FILES[0]]}]
        found = {row["id"]: row for row in self.run_rows(rows, "--max-tokens", "2", backend=CPU, expect=3)}
        self.assertNotIn("error", found["good"])
        for name, says in wrong.items():
            self.assertEqual(found[name]["error"]["code"], "ROW_PICTURE", found[name])
            self.assertIn(says, found[name]["error"]["message"])
        self.assertEqual(found["tokens"]["error"]["code"], "ROW_FORMAT")

    def test_folders_are_named(self):
        elsewhere = self.directory / "elsewhere"
        elsewhere.mkdir()
        shutil.copy(GOLDEN / FILES[0], elsewhere / "only.png")
        rows = [{"prompt": ROWS[0]["text"], "images": ["only.png"]}]
        found = self.run_rows(rows, "--images", elsewhere, "--max-tokens", str(NEW), backend=CPU)
        self.assert_said(0, found[0]["tokens"])

    def test_urls_of_files_are_unescaped(self):
        shutil.copy(GOLDEN / FILES[0], self.directory / "a page%.png")
        whole = (self.directory / "a page%.png").as_uri()
        self.assertIn("a%20page%25.png", whole)
        names = [whole, whole.replace("%25", "%"), whole.replace("file://", "file://localhost"), whole.replace("file://", "file:"), "file://a%20page%25.png"]
        wrong = {whole + "%00": "is not the name", whole.replace("a%20", "%2e%2e/a%20"): "No such file", "a%20page%25.png": "No such file"}
        rows = [{"id": name, "prompt": ROWS[0]["text"], "images": [name]} for name in [*names, *wrong]]
        found = {row["id"]: row for row in self.run_rows(rows, "--max-tokens", str(NEW), "--no-special", backend=CPU, expect=3)}
        for name in names:
            self.assertNotIn("error", found[name])
            self.assert_said(0, found[name]["tokens"])
        for name, says in wrong.items():
            self.assertIn(says, found[name]["error"]["message"])

    def test_after_one_slash_a_file_with_a_percent_sign_in_its_name_comes_first(self):
        shutil.copy(GOLDEN / FILES[0], self.directory / "%41.png")
        (self.directory / "A.png").write_bytes(b"no picture")
        names = [f"file:{self.directory}/%41.png", f"file:{self.directory}/%2541.png", f"file://{self.directory}/%2541.png"]
        wrong = [f"file://{self.directory}/%41.png", f"file:{self.directory}/%41.png\0"]
        rows = [{"id": name, "prompt": ROWS[0]["text"], "images": [name]} for name in [*names, *wrong]]
        found = {row["id"]: row for row in self.run_rows(rows, "--max-tokens", str(NEW), "--no-special", backend=CPU, expect=3)}
        for name in names:
            self.assertNotIn("error", found[name])
        self.assertIn("not a JPEG", found[wrong[0]]["error"]["message"])
        self.assertIn("is not the name", found[wrong[1]]["error"]["message"])

    def test_plans_count_the_tokens_of_pictures(self):
        rows = [{"prompt": row["text"], "images": [FILES[n] for n in row["pictures"]]} for row in ROWS]
        plan, stats = self.directory / "rows.plan", self.directory / "stats.json"
        done = self.run_program("plan", "--model", GOLDEN, "--input", self.write(rows), "--output", plan, "--stats", stats)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        self.assertEqual(json.loads(stats.read_text())["logical_prompt_tokens"], sum(len(row["prompt"]) for row in ROWS))
        found = self.run_rows(rows, "--plan", plan, "--max-tokens", str(NEW), "--no-special", backend=CPU)
        for row in found:
            self.assert_said(int(row["id"]) - 1, row["tokens"])

    def test_rows_as_columns_have_pictures(self):
        chosen = [0, 1]  # the picture, then the question
        rows = [{"id": i, "page": FILES[ROWS[i]["pictures"][0]], "question": "What is this?"} for i in chosen]
        rows += [{"id": 2, "page": [FILES[3], FILES[2]], "question": "x"}, {"id": 3, "page": None, "question": "x"}]
        common = ["--image-column", "page", "--max-tokens", str(NEW), "--no-special"]
        chat = self.run_rows(rows, "--template", "{question}", "--chat", *common, backend=CPU)
        found = {row["id"]: row for row in chat}
        for i in chosen:
            self.assert_said(i, found[i]["tokens"])
        self.assertNotIn("error", found[2])
        self.assertNotIn("error", found[3])
        self.output.unlink()
        text = ROWS[0]["text"].replace("What is this?", "{question}")
        found = {row["id"]: row for row in self.run_rows(rows, "--template", text, *common, backend=CPU, expect=3)}
        for i in chosen:
            self.assert_said(i, found[i]["tokens"])
        self.assertIn("2 pictures, and its prompt 1 place", found[2]["error"]["message"])
        self.output.unlink()
        rows = [{"page": 1, "question": "x"}]
        found = self.run_rows(rows, "--template", text, *common, backend=CPU, expect=3)
        self.assertEqual(found[0]["error"]["code"], "ROW_FORMAT")

    def test_a_column_of_pictures_that_no_line_has_ends_the_run(self):
        self.write([{"page": FILES[0], "question": "x"}])
        for arguments, words in ((["--template", "{question}", "--chat", "--image-column", "pgae"],
                                  'no column "pgae"; the columns are "page", "question"'),
                                 (["--image-column", "page"], "need a --template")):
            done = self.run_program("run", *CPU, "-i", self.input, "-o", self.output, *arguments)
            self.assertEqual(done.returncode, 1, arguments)
            self.assertIn(words, done.stderr.decode())
            self.assertFalse(self.output.exists())

    def test_lines_are_tokenized_with_their_pictures(self):
        items = [{"id": i, "text": row["text"], "images": [FILES[n] for n in row["pictures"]]} for i, row in enumerate(ROWS)]
        items += [{"id": i, "messages": named(row, lambda n: FILES[n])} for i, row in enumerate(ROWS)]
        items += [{"id": -1, "text": ROWS[0]["text"], "images": ["none.png"]}]
        command = ["tokenize", "--model", GOLDEN, "--no-special", "--images", self.directory]
        done = self.run_program(*command, stdin=lines(items))
        self.assertEqual(done.returncode, 3, done.stderr.decode())
        found = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([row["id"] for row in found], [item["id"] for item in items])
        self.assertEqual(found.pop()["error"]["code"], "ROW_PICTURE")
        ids = set()
        for row in found:
            prompt = ROWS[row["id"]]["prompt"]
            self.assertEqual(len(row["tokens"]), len(prompt))
            for token, expected in zip(row["tokens"], prompt):
                if token >= 1 << 30:
                    ids.add(token)
                else:
                    self.assertEqual(token, expected)
        self.assertEqual(len(ids), len(FILES))
        done = self.run_program("tokenize", "--model", GOLDEN / "tokenizer.json", stdin=lines(items[:1]))
        self.assertIn(b"ROW_PICTURE", done.stdout)

    def interrupted(self):
        """Runs two rows, takes the second answer back, and returns all answers and the picture of the first."""
        rows = [{"id": i, "prompt": ROWS[i]["text"], "images": [FILES[ROWS[i]["pictures"][0]]]} for i in (0, 1)]
        whole = self.run_rows(rows, "--max-tokens", str(NEW), "--no-special", backend=CPU)
        first = self.output.read_bytes().splitlines(keepends=True)[0]
        self.output.write_bytes(first)
        return whole, self.directory / FILES[ROWS[json.loads(first)["id"]]["pictures"][0]]

    def resume(self, *options, expect=0, model=GOLDEN):
        done = self.run_program("run", *CPU[:-1], model, "-i", self.input, "-o", self.output, "--progress", "none",
                                "--resume", "--max-tokens", str(NEW), "--no-special", *options)
        self.assertEqual(done.returncode, expect, done.stderr.decode())
        return done.stderr.decode()

    def test_a_job_is_not_resumed_with_other_pictures(self):
        whole, picture = self.interrupted()
        content, before = picture.read_bytes(), self.output.read_bytes()
        times = os.stat(picture)
        changed = bytearray(content)
        changed[-1] ^= 1
        picture.write_bytes(changed)  # of the same size, and as old
        os.utime(picture, ns=(times.st_atime_ns, times.st_mtime_ns))
        says = self.resume(expect=1)
        self.assertIn(f"not the same job: the picture \"{picture}\" has changed", says)
        self.assertIn("--force", says)
        self.assertEqual(self.output.read_bytes(), before)
        picture.write_bytes(content)  # at another time
        self.resume()
        self.assertEqual(self.read_output(), whole)
        listed = (self.directory / "out.jsonl.pictures").read_text().splitlines()
        self.assertEqual({line.split(" ")[3] for line in listed}, {os.path.realpath(self.directory / FILES[n]) for n in (0, 3)})

    def test_a_job_is_not_resumed_after_a_link_was_moved(self):
        for of_folder in (False, True):
            for name in ("v1", "v2"):
                (self.directory / name).mkdir(exist_ok=True)
            latest = self.directory / "latest"
            latest.symlink_to("v1")
            numbers = [ROWS[i]["pictures"][0] for i in (0, 1)]
            prefix, images = ("", latest) if of_folder else ("latest/", self.directory)
            for n in numbers:
                shutil.copy(GOLDEN / FILES[n], self.directory / "v1" / FILES[n])
                shutil.copy(GOLDEN / FILES[2], self.directory / "v2" / FILES[n])
            rows = [{"id": i, "prompt": ROWS[i]["text"], "images": [prefix + FILES[n]]} for i, n in enumerate(numbers)]
            whole = self.run_rows(rows, "--images", images, "--max-tokens", str(NEW), "--no-special", backend=CPU)
            self.output.write_bytes(self.output.read_bytes().splitlines(keepends=True)[0])
            latest.unlink()
            latest.symlink_to("v2")
            self.assertIn(f'the first of them "{latest}/', self.resume("--images", images, expect=1))
            latest.unlink()
            latest.symlink_to("v1")
            self.resume("--images", images)
            self.assertEqual(self.read_output(), whole)
            latest.unlink()
            self.output.unlink()

    def test_the_list_of_pictures_replaces_no_other_file(self):
        rows = lines([{"prompt": "x"}])
        listed, other = self.directory / "a.pictures", self.directory / "a.state"
        output = self.directory / "a"
        for name in (listed, other):
            name.write_bytes(rows)
            done = self.run_program("run", *CPU, "-i", name, "-o", output, "--max-tokens", "1")
            self.assertEqual(done.returncode, 1)
            self.assertIn("is the input", done.stderr.decode())
            self.assertEqual(name.read_bytes(), rows)
            self.assertFalse(output.exists())
            name.unlink()
        self.write([{"prompt": "x"}])
        done = self.run_program("run", *CPU, "-i", self.input, "-o", output, "--report", listed, "--max-tokens", "1")
        self.assertEqual(done.returncode, 1)
        self.assertIn("is where --output keeps its list of pictures", done.stderr.decode())
        output.write_bytes(b"earlier")
        listed.mkdir()
        done = self.run_program("run", *CPU, "-i", self.input, "-o", output, "--force", "--max-tokens", "1")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(output.read_bytes(), b"earlier")

    def test_pictures_that_are_gone_or_listed_badly_do_not_hinder(self):
        whole, picture = self.interrupted()
        picture.unlink()
        listed = self.directory / "out.jsonl.pictures"
        listed.write_bytes(b"\0" * 40 + b"\n0 1\n" + listed.read_bytes() + b"torn")
        self.resume()
        self.assertEqual(self.read_output(), whole)
        self.assertNotIn(b"torn", listed.read_bytes())
        rows = [{"id": 0, "prompt": ROWS[9]["text"]}]
        self.run_rows(rows, "--force", "--max-tokens", "1", backend=CPU)
        self.assertFalse(listed.exists())

    def test_a_job_is_not_resumed_with_other_settings_of_pictures(self):
        model = self.directory / "model"
        shutil.copytree(GOLDEN, model)
        self.interrupted()
        settings = model / "preprocessor_config.json"
        settings.write_text(settings.read_text().replace("6144", "3072"))
        self.assertIn("model preprocessor_config.json", self.resume(expect=1, model=model))


if __name__ == "__main__":
    unittest.main()
