"""Rows that name pictures: the program's own form, the OpenAI batch format, plans, and folders."""

import base64
import json
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

    def test_plans_count_the_tokens_of_pictures(self):
        rows = [{"prompt": row["text"], "images": [FILES[n] for n in row["pictures"]]} for row in ROWS]
        plan, stats = self.directory / "rows.plan", self.directory / "stats.json"
        done = self.run_program("plan", "--model", GOLDEN, "--input", self.write(rows), "--output", plan, "--stats", stats)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        self.assertEqual(json.loads(stats.read_text())["logical_prompt_tokens"], sum(len(row["prompt"]) for row in ROWS))
        found = self.run_rows(rows, "--plan", plan, "--max-tokens", str(NEW), "--no-special", backend=CPU)
        for row in found:
            self.assert_said(int(row["id"]) - 1, row["tokens"])


if __name__ == "__main__":
    unittest.main()
