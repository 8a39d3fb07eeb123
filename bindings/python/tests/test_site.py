"""The site that is made from docs/: every page is made without a warning, and no link leads nowhere."""

import importlib.util
import pathlib
import sys
import tempfile
import unittest

import batchllm

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "release"))
import pages


class Links(unittest.TestCase):
    def test_a_link_to_no_file_or_no_place_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            site = pathlib.Path(folder)
            (site / "a.html").write_text('<h1 id="top1">a</h1><a href="b.html#here">b</a><a href="b.html#gone">b</a><img src="no.png"><a href="#top1">a</a>')
            (site / "b.html").write_text('<p id="here"><a href="https://example.org/x">x</a></p>')
            self.assertEqual(pages.broken_links(site), ["a.html: b.html#gone leads to no place in the page", "a.html: no.png leads to no file"])


@unittest.skipUnless(all(importlib.util.find_spec(name) for name in ("sphinx", "furo", "myst_parser")), "needs sphinx, furo and myst-parser: scripts/setup --tests")
class Site(unittest.TestCase):
    def test_every_page_is_made_and_no_link_is_broken(self):
        with tempfile.TemporaryDirectory() as site, tempfile.TemporaryDirectory() as staged:
            faults = pages.make(pathlib.Path(site), pathlib.Path(staged), "0.1.0", pathlib.Path(batchllm.__file__).parent.parent, {}, sys.executable)
            self.assertEqual(faults, [])
            reference = (pathlib.Path(site) / "reference-c.html").read_text()
            for name in ("batchllm_engine_create", "batchllm_params", "batchllm_journal_open"):
                self.assertIn(f'id="{name.replace("_", "-")}"', reference)
            self.assertIn(">Planning: ", (pathlib.Path(site) / "concepts.html").read_text().partition("<article")[2])  # a link to planning.md by its title
            self.assertIn("batchllm.Engine.generate", (pathlib.Path(site) / "reference-python.html").read_text())


if __name__ == "__main__":
    unittest.main()
