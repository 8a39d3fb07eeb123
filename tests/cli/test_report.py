"""--report of run and plan: a page that is well-formed, has the figures of --stats, and contains no foreign
markup."""

import html.parser
import json
import os
import pathlib
import re
import subprocess
import sys
import unittest
import xml.etree.ElementTree

from program import SIM, ProgramTest, lines, text_model, token_rows

VOID = {"meta", "br", "img", "hr", "input", "link"}
ALLOWED = {"html", "head", "meta", "title", "style", "body", "main", "header", "footer", "section", "h1", "h2", "h3", "p", "b", "small",
           "dl", "div", "dt", "dd", "table", "thead", "tbody", "tr", "th", "td", "i", "span", "figure", "figcaption",
           "svg", "rect", "text", "path"}
ATTRIBUTES = {"lang", "charset", "name", "content", "class", "style", "data-figure", "viewbox", "role", "aria-label", "x", "y", "width",
              "height", "rx", "d"}
SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"


class Page(html.parser.HTMLParser):
    """Parses a report, and raises if an element is not closed or is not one that reports use."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.figures, self.text, self.figure = [], {}, [], None
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        assert tag in ALLOWED, tag
        for name, value in attributes:
            assert name in ATTRIBUTES, (tag, name)
            assert not re.search(r"url\(|https?:|javascript:", value or ""), (tag, name, value)
        if tag not in VOID:
            self.open.append(tag)
        self.figure = dict(attributes).get("data-figure")

    def handle_startendtag(self, tag, attributes):
        assert "svg" in self.open, tag
        self.handle_starttag(tag, attributes)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, (tag, self.open)
        self.open.pop()
        self.figure = None

    def handle_data(self, data):
        if self.figure:
            self.figures[self.figure] = float(data.replace(",", ""))
        if "style" not in self.open:
            self.text.append(data)


def few_tokens(count):
    """Rows of ids in the text model's vocabulary."""
    return [{**row, "tokens": [token % 300 for token in row["tokens"]]} for row in token_rows(count)]


def drawings(text):
    """The outermost svg elements, as XML."""
    found, depth, start = [], 0, 0
    for mark in re.finditer(r"<svg\b|</svg>", text):
        if mark.group() == "</svg>":
            depth -= 1
            if depth == 0:
                found.append(xml.etree.ElementTree.fromstring(text[start:mark.end()]))
        else:
            start = mark.start() if depth == 0 else start
            depth += 1
    return found


class ReportTest(ProgramTest):
    def setUp(self):
        super().setUp()
        self.report = self.directory / "report.html"
        self.stats = self.directory / "stats.json"

    def run_text(self, rows, expect=0):
        """Runs rows of text through a tokenizer; the output is not checked."""
        model = text_model(self.directory / "model")
        self.input.write_bytes(lines(rows))
        done = self.run_program("run", "--backend", "sim", "--backend-options", "pages=4096", "--model", model, "-i", self.input,
                                "-o", self.output, "--progress", "none", "--report", self.report)
        self.assertEqual(done.returncode, expect, done.stderr.decode())

    def read_report(self):
        text = self.report.read_bytes().decode("utf-8")
        self.assertTrue(text.startswith("<!DOCTYPE html>\n"))
        self.assertLess(len(text), 1_000_000)
        page = Page(text)
        self.drawings = drawings(text)
        self.words = " ".join(page.text)
        return page

    def assert_figures(self, page, stats):
        predicted = {"predicted_" + name: value for name, value in stats.get("predicted", {}).items()}
        # "backend" is a name in the statistics, but a time in the page.
        stats = {name: value for name, value in {**stats, **predicted}.items() if not isinstance(value, str)}
        seconds, kv = {**stats.get("seconds", {}), "predicted_seconds": 0}, stats.get("kv", {})
        for name, value in page.figures.items():
            wanted = stats[name] if name in stats else kv[name] if name in kv else seconds[name]
            self.assertAlmostEqual(value, wanted, delta=0.001 if name in seconds else 1e-6, msg=name)
        for name in ("rows_done" if "rows_done" in stats else "rows", "rows_failed", "groups", "logical_prompt_tokens",
                     "processed_prompt_tokens", "shared_prompt_tokens", "saving_ratio"):
            self.assertIn(name, page.figures)


class Run(ReportTest):
    def test_a_model_with_states_has_its_slots_in_the_page(self):
        page = self.directory / "job.html"
        stats = self.directory / "stats.json"
        model = pathlib.Path(__file__).resolve().parents[1] / "golden/bamba_bf16"
        rows = [{"id": i, "tokens": [5, 6, 7, i]} for i in range(20)]
        self.run_rows(rows, "--model", model, "--report", page, "--stats", stats,
                      backend=["--backend", "sim", "--backend-options", "state_slots=9"])
        states = json.loads(stats.read_text())["states"]
        found = Page(page.read_text())
        self.assertEqual(found.figures["state_slots_total"], 9)
        self.assertEqual(found.figures["state_slots_peak"], states["slots_peak"])
        self.assertEqual(found.figures["state_slot_bytes"], states["slot_bytes"])
        self.assertIn(f"at most {states['slots_peak']} of 9 slots", "".join(found.text))

    def test_the_figures_are_those_of_the_statistics(self):
        self.run_rows(token_rows(600), "--report", self.report, "--stats", self.stats)
        page = self.read_report()
        self.assert_figures(page, json.loads(self.stats.read_text()))
        self.assertEqual(page.figures["rows_done"], 600)
        self.assertEqual(page.figures["groups"], 120)
        self.assertEqual(len(self.drawings), 5)  # prefixes, batches, pages, prompts, outputs
        for heading in ("What rows share", "Batches over time", "KV pages", "Time", "Lengths", "How rows ended", "Slowest groups"):
            self.assertIn(heading, self.words)
        self.assertIn("on the device that the sim backend models", self.words)
        self.assertRegex(self.words, r"\[0 3 6 9 12 15 18 21 ..\]\s+40\s+5\s+1\s+160\s")  # a group of 5 saves 4 x 40 tokens
        prompts = self.drawings[3]
        counted = re.findall(r": ([\d,]+)<", xml.etree.ElementTree.tostring(prompts, "unicode"))
        self.assertEqual(sum(int(one.replace(",", "")) for one in counted), 600)

    def test_rows_that_fail_are_told_by_kind(self):
        rows = [*token_rows(100), '{"id": 1', {"id": 2, "tokens": []}, {"id": 3, "tokens": [5000]}, {"id": 4, "tokens": [5001]},
                {"id": 5, "tokens": [1], "max_tokens": -4}]
        self.run_rows(rows, "--report", self.report, "--stats", self.stats, expect=3)
        page = self.read_report()
        self.assert_figures(page, json.loads(self.stats.read_text()))
        self.assertEqual(page.figures["rows_failed"], 5)
        self.assertRegex(self.words, r"ROW_UNKNOWN_TOKEN\s+2\s+103: ")
        self.assertRegex(self.words, r"ROW_JSON\s+1\s+101: ")
        self.assertRegex(self.words, r"error\s+5\s")

    def test_hostile_prompts_and_names_are_text(self):
        hostile = "</title></style></svg><script>alert(1)</script><img src=x onerror=alert(1)>'\"\u202e\x07\ud800"
        rows = [{"id": i, "prompt": "\"'></text></svg><script>alert(1)</script>\u202e\x07 and all the same for each of the rows: %d" % i}
                for i in range(50)]
        rows += [json.dumps({"id": 99, hostile: 1})]
        self.input = self.directory / "<img src=x onerror=alert(1)>.jsonl"
        self.run_text(rows, expect=3)
        self.read_report()  # raises on any element or attribute of theirs
        self.assertNotIn("\u202e", self.words)
        self.assertNotIn("\x07", self.words)
        self.assertIn("</text></svg><script>alert(1)", self.words)
        self.assertIn("Job: <img src=x onerror=alert(1)>.jsonl", self.words)

    def test_words_of_shared_prefixes_are_decoded(self):
        rows = [{"id": i, "prompt": "Read the review and answer with one word. " * 4 + f"Review {i}: good"} for i in range(30)]
        self.run_text(rows)
        self.read_report()
        self.assertIn("Read the review and answer", self.words)
        icicle = self.drawings[0]
        self.assertEqual(len(icicle.findall("svg")), 2)  # all rows, and the prefixes that they share

    def test_with_no_sharing_there_is_none(self):
        self.run_rows(token_rows(50), "--report", self.report, "--no-sharing")
        page = self.read_report()
        self.assertEqual(page.figures["saving_ratio"], 0)
        self.assertIn("No two rows share a prefix.", self.words)

    def test_two_levels_and_two_devices(self):
        for options in (["--levels", "2"], ["--devices", "0,1"]):
            rows = [{"id": i, "tokens": [7] * 40 + [i // 10] * 40 + [i % 900, i // 900, 5]} for i in range(400)]
            self.run_rows(rows, "--report", self.report, "--stats", self.stats, "--force", *options)
            self.assert_figures(self.read_report(), json.loads(self.stats.read_text()))

    def test_a_resumed_job_says_what_is_missing(self):
        self.run_rows(token_rows(40))
        self.run_rows(token_rows(60), "--report", self.report, "--force")
        text = self.output.read_bytes().splitlines(keepends=True)
        self.output.write_bytes(b"".join(text[:20]))
        self.run_rows(token_rows(60), "--report", self.report, "--resume")
        self.read_report()
        self.assertRegex(self.words, r"Rows of earlier runs\s+20, which are not in this report")

    def test_the_path_is_checked_before_the_work(self):
        self.input.write_bytes(lines(token_rows(3)))
        for path, text in ((self.input, "is the input"), (self.output, "is the file of --output too"),
                           (self.directory / "none/report.html", "cannot create")):
            done = self.run_program("run", *SIM, "-i", self.input, "-o", self.output, "--report", path)
            self.assertEqual(done.returncode, 1)
            self.assertIn(text, done.stderr.decode())
            self.assertFalse(self.output.exists())

    def test_a_full_disk_is_an_error_and_results_stay(self):
        if not os.access("/dev/full", os.W_OK):
            self.skipTest("no /dev/full")
        self.run_rows(token_rows(5), "--report", "/dev/full", expect=1)
        self.assertRegex(self.stderr, "/dev/full: .*No space left")
        self.assertEqual(len(self.read_output()), 5)

    def test_an_existing_report_is_replaced_in_one_piece(self):
        self.report.write_text("old")
        self.run_rows(token_rows(5), "--report", self.report)
        self.read_report()
        self.assertEqual([p.name for p in self.directory.iterdir() if ".tmp." in p.name], [])


class Plans(ReportTest):
    def plan(self, rows, *arguments, expect=0):
        self.input.write_bytes(lines(rows))
        done = self.run_program("plan", "-i", self.input, "-o", self.directory / "p.plan", *arguments)
        self.assertEqual(done.returncode, expect, done.stderr.decode())

    def test_a_plans_figures_are_those_of_its_statistics(self):
        self.plan([*token_rows(600), "{"], "--report", self.report, "--stats", self.stats, expect=3)
        page = self.read_report()
        self.assert_figures(page, json.loads(self.stats.read_text()))
        self.assertEqual((page.figures["rows"], page.figures["rows_failed"]), (600, 1))
        self.assertNotIn("Prediction", self.words)
        self.assertIn("ROW_JSON", self.words)

    def test_what_a_plan_is_predicted_to_take_is_told_everywhere(self):
        model = text_model(self.directory / "model")
        rows = few_tokens(200)
        self.plan(rows, "--model", model, "--device", "h200", "--max-tokens", "20", "--self-contained", "--report", self.report,
                  "--stats", self.stats)
        predicted = json.loads(self.stats.read_text())["predicted"]
        page = self.read_report()
        self.assert_figures(page, json.loads(self.stats.read_text()))
        self.assertEqual(page.figures["predicted_steps"], predicted["steps"])
        self.assertIn("For NVIDIA H200, before anything ran", self.words)
        self.assertEqual((predicted["rows"], predicted["completion_tokens"]), (200, 4000))
        done = self.run_program("plan", "-i", self.input, "-o", self.directory / "p.plan", "--device", "h200")
        self.assertIn(b"a prediction needs the model: --model DIR", done.stderr)

    def test_a_run_shows_what_was_predicted_beside_what_it_took(self):
        model = text_model(self.directory / "model")
        self.input.write_bytes(lines(few_tokens(100)))
        # A window's rows join those of the previous window, so the job takes less time than its windows one after
        # another.
        for windows, within in ([], 0.01), (["--window-rows", "50"], 0.5):
            done = self.run_program("run", "-i", self.input, "-o", self.output, "--model", model, "--backend", "sim", "--backend-options",
                                    "device=h200", "--device", "h200", "--ignore-eos", "--max-tokens", "8", "--report", self.report,
                                    "--stats", self.stats, "--force", *windows)
            self.assertEqual(done.returncode, 0, done.stderr.decode())
            stats = json.loads(self.stats.read_text())
            self.assert_figures(self.read_report(), stats)
            self.assertIn("off by", self.words)
            self.assertLess(abs(stats["seconds"]["backend"] / stats["predicted"]["seconds"] - 1), within)
            self.assertEqual(stats["predicted"]["completion_tokens"], stats["completion_tokens"])
            self.assertEqual(stats["predicted"]["rows"], 100)

    def test_an_unknown_device_is_told_before_anything_is_written(self):
        model = text_model(self.directory / "model")
        self.input.write_bytes(lines(token_rows(10)))
        # The model has no weights: the device is examined before the engine allocates any of its memory.
        for command in (["plan"], ["run", "--backend", "sim"], ["run", "--backend", "cpu"]):
            done = self.run_program(*command, "-i", self.input, "-o", self.output, "--model", model, "--device", "h9")
            self.assertEqual(done.returncode, 1)
            self.assertIn(b'device "h9" is not known: there are h200', done.stderr)
            self.assertFalse(self.output.exists())

    def test_a_report_is_a_file(self):
        self.plan(token_rows(10))
        self.input.write_bytes(lines(token_rows(10)))
        for command in (["plan", "-i", self.input, "-o", self.directory / "q.plan"], ["run", *SIM, "-i", self.input, "-o", self.output]):
            done = self.run_program(*command, "--report", "-")
            self.assertEqual(done.returncode, 1)
            self.assertIn(b"--report: -: it is a file, and cannot be stdout", done.stderr)
        self.assertFalse(self.output.exists())

    def test_advice_is_in_the_report(self):
        rows = [{"id": i, "tokens": [i % 997, i // 997, *((i * 7 + j) % 991 for j in range(40)), *range(500)]} for i in range(500)]
        self.plan(rows, "--report", self.report)
        self.read_report()
        self.assertIn("Advice.", self.words)
        self.assertIn("tokens in common", self.words)


class Browser(unittest.TestCase):
    def test_it_looks_right_in_a_browser(self):
        done = subprocess.run([sys.executable, SCRIPTS / "report_pictures", "--check"], capture_output=True, text=True, timeout=280, check=False)
        if done.returncode == 77:
            self.skipTest(done.stdout.strip())
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
