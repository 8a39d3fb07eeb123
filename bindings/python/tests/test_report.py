"""Reports of calls and of plans: their figures, a notebook's frame, and errors."""

import html.parser
import pathlib
import pickle
import re
import tempfile
import threading
import unittest

import batchllm
from support import MODEL, rows, sim


def figures(page):
    return {name: float(value.replace(",", "")) for name, value in re.findall(r'data-figure="(\w+)">([\d.,]+)<', page)}


class Frame(html.parser.HTMLParser):
    """The attributes of the single element of a notebook's text."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


class Reports(unittest.TestCase):
    def test_a_calls_report_has_the_calls_figures(self):
        with sim() as engine:
            engine.generate(rows(50))  # not in it
            before = engine.stats()
            params = batchllm.SamplingParams(max_tokens=12)
            results = engine.generate(rows(300), params, report=True)
            after = engine.stats()
            page = results.report().to_html()
            found = figures(page)
            self.assertEqual(found["rows_done"], 300)
            for name in ("logical_prompt_tokens", "processed_prompt_tokens", "completion_tokens", "steps"):
                self.assertEqual(found[name], getattr(after, name) - getattr(before, name), name)
            self.assertEqual(found["completion_tokens"], len(results.tokens))
            self.assertGreater(results.report().seconds, 0)
            engine.generate(rows(20))
            self.assertEqual(results.report().to_html(), page)  # the report has ended
        self.assertIn("30 tokens x 300 rows", page)

    def test_a_report_outlives_its_engine_and_is_saved(self):
        with batchllm.Engine(MODEL) as engine:
            prompts = [f"Once upon a time there was <b>number</b> {i}" * 2 for i in range(8)]
            report = engine.generate(prompts, batchllm.SamplingParams(max_tokens=2), report=True).report()
        report.title = "A <job>"
        report.add_fact("Notebook", "first & last")
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "report.html"
            report.save(path)
            self.assertEqual(path.read_text(encoding="utf-8"), report.to_html())
            with self.assertRaises(batchllm.Error):
                report.save(pathlib.Path(folder) / "none" / "report.html")
        page = report.to_html()
        self.assertIn("<h1>A &lt;job&gt;</h1>", page)
        self.assertIn("first &amp; last", page)
        self.assertNotIn("<b>number", page)
        self.assertIn("Once upon a time", page)

    def test_a_notebook_gets_a_frame_that_runs_nothing(self):
        with sim() as engine:
            report = engine.generate(rows(10), report=True).report()
        [(tag, attributes)] = Frame(report._repr_html_()).found
        self.assertEqual((tag, attributes["sandbox"]), ("iframe", ""))
        self.assertEqual(attributes["srcdoc"], report.to_html())
        self.assertEqual(repr(report), "Report('batchllm')")
        with self.assertRaises(TypeError):
            pickle.dumps(report)

    def test_results_without_a_report_say_how_to_get_one(self):
        with sim() as engine:
            with self.assertRaisesRegex(ValueError, "report=True"):
                engine.generate(rows(3)).report()

    def test_an_engine_writes_one_report_at_a_time(self):
        with sim() as engine:
            refused = []

            def during(progress):
                if not refused:
                    refused.append(None)
                    thread = threading.Thread(target=second)
                    thread.start()
                    threads.append(thread)

            def second():
                try:
                    engine.generate(rows(5), report=True)
                except batchllm.StateError as error:
                    refused[0] = str(error)

            threads = []
            results = engine.generate(rows(2000), batchllm.SamplingParams(max_tokens=60, ignore_eos=True), progress=during, report=True)
            for thread in threads:
                thread.join()
            self.assertIn(refused[0], (None, "report: another call's is being written"))  # None: it was too late
            self.assertGreaterEqual(figures(results.report().to_html())["rows_done"], 2000)
            engine.generate(rows(5), report=True).report()

    def test_a_plan_has_a_report(self):
        tokenizer = batchllm.Tokenizer(MODEL)
        encoded = tokenizer.encode([f"The same beginning of each of the rows, word by word: {i}" for i in range(20)])
        plan = batchllm.Plan.build(encoded, self_contained=True)
        page = plan.report(tokenizer).to_html()
        self.assertIn("The same", page)
        self.assertEqual(figures(page)["rows"], 20)
        self.assertNotIn("The same", plan.report().to_html())

    def test_a_table_has_a_report(self):
        frame = {"name": ["<i>one</i>", "two", "three"]}
        with batchllm.Engine(MODEL) as engine:
            params = batchllm.SamplingParams(max_tokens=2)
            page = engine.generate_table(frame, "Name: {name}", params, report=True).report().to_html()
        self.assertEqual(figures(page)["rows_done"], 3)
        self.assertNotIn("<i>one", page)


if __name__ == "__main__":
    unittest.main()
