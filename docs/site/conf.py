# Sphinx's settings: release/pages.py stages the pages and runs it. Sphinx with MyST and Furo, because all three are maintained, read the Markdown that the repository shows, describe Python
# from its docstrings, search without a server, and need nothing from elsewhere when a page is read.
import os
import re

project = "libbatchllm"
release = version = os.environ["BATCHLLM_SITE_VERSION"]
html_title = f"libbatchllm {version}"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 4
# Names in a page's Markdown that mean something else to Sphinx, and languages that it has no lexer for.
suppress_warnings = ["myst.header", "misc.highlighting_failure"]
smartquotes = False
html_theme = "furo"
pygments_dark_style = "github-dark"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = html_show_sourcelink = html_show_copyright = False
html_last_updated_fmt = None
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
autodoc_class_signature = "separated"
napoleon_google_docstring = True


def as_text_is_written(app, what, name, thing, options, lines):
    """The docstrings are plain text: "name: what it is" describes a parameter, and what is indented after a blank line is code."""
    out, item, literal = [], False, False
    for line in lines:
        line = re.sub(r"(?<!`)`([^`]+)`(?!`)(?=(\w?))", lambda match: f"``{match[1]}``" + ("\\ " if match[2] else ""), line)
        line = re.sub(r"\bdocs/([\w-]+)\.md", r":doc:`\1`", line)
        described = re.match(r"(\w+(?:, \w+)*): (.+)", line)
        if not line.strip():
            item = False
        elif described:
            if out and out[-1] and not item:
                out.append("")
            line, item, literal = f"* **{described[1]}**: {described[2]}", True, False
        elif item:
            line = "  " + line.strip()
        elif not line.startswith(" "):
            literal = False
        elif not literal and out and not out[-1].strip() and not any(one.startswith(("Raises:", "Returns:")) for one in out[-4:]):
            out += ["::", ""]
            literal = True
        out.append(line)
    lines[:] = out


def setup(app):
    app.connect("autodoc-process-docstring", as_text_is_written, priority=100)  # before Napoleon
