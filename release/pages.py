"""docs/ -> a site of HTML pages with search, the references of C, Python and Java, and what the pages link to of the tree. See docs/site/conf.py."""
import html.parser
import os
import pathlib
import posixpath
import re
import shutil
import subprocess
import sys
import urllib.parse
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<!\!)\[([^\]\n]+)\]\(([^)\s]+)\)")
# What each part of the site has, in this order; every other page of docs/ is for contributors.
PARTS = {
    "Start": ["installing", "concepts", "coming-from-vllm", "models"],
    "Tasks": ["cli", "formats", "files", "tables", "chat", "pictures", "structured-output", "embeddings", "predictions", "planning", "plan-file", "resuming", "report", "tokenizer", "adapters"],
    "Languages and clusters": ["python", "java", "spark", "ray"],
    "Running": ["backends", "scheduling", "drafts", "performance", "reproducible", "reliability"],
    "Reference": ["reference-c", "reference-cpp", "reference-python", "reference-java"],
}


# ---- The C reference ----------------------------------------------------------------------------

# Functions, structs, and handles, each with its name.
DECLARED = [r"^BATCHLLM_API [\w *]*?(batchllm_\w+)\(", r"^\} (batchllm_\w+);", r"^typedef struct \w+ (batchllm_\w+);"]


def comment_text(comment, names):
    """The text of a comment as Markdown. What is laid out by spaces stays so."""
    lines = [re.sub(r"^\s*(/\*|\*/|\*|//)? ?", "", line).rstrip() for line in comment.rstrip().removesuffix("*/").splitlines()]
    if any(line.startswith("  ") or re.search(r"\S {2,}\S", line) for line in lines):
        return "```text\n" + "\n".join(lines).strip("\n") + "\n```\n"
    return linked("\n".join(lines), names) + "\n"


def linked(text, names):
    """Prose of the header as Markdown: what it names of itself is code, and leads to its heading."""
    def link(match):
        called = match[0].replace("\\", "")
        name = called.removesuffix("()")
        return f"[`{called}`](#{name.lower()})" if name in names else f"`{called}`"

    return re.sub(r"(?<![`\w])(?:batchllm|BATCHLLM)(?:\\_\w*)+(?:\(\))?(?!`)", link, escape(text))


def c_reference(header, title, opening):
    """Markdown of a header: a section for each of its own, and in it a heading for each function and type."""
    text = header.read_text()
    names = {name for pattern in DECLARED for name in re.findall(pattern, text, re.M)}
    first, _, rest = text.partition("#ifndef BATCHLLM_H")
    out = [f"# {title}\n", opening, comment_text_of_opening(first, names)]
    sections = re.split(r"^/\* ---- (.*?) -+ \*/$", rest, flags=re.M)
    for name, body in zip(sections[1::2], sections[2::2]):
        out.append(f"\n## {name}\n")
        for block in declarations(body):
            match = re.match(r"\s*(/\*.*?\*/\s*\n)?(.*)", block, re.S)
            comment, code = match[1] or "", match[2].strip("\n")
            found = next(filter(None, (re.findall(pattern, code, re.M) for pattern in DECLARED)), [])
            out += [f"\n({one.lower()})=" for one in found[1:]]
            if found:
                out.append(f"\n### {found[0]}\n")
            if comment:
                out.append(comment_text(comment, names - set(found)))
            if code:
                out.append(f"```c\n{code.replace('BATCHLLM_API ', '')}\n```\n")
    return "\n".join(out)


def comment_text_of_opening(text, names):
    """The header's own prose: its example, and its rules as a list."""
    lines = [line[3:] if line.startswith(" * ") else "" for line in text.splitlines()]
    out, code = [], False
    for line in lines:
        rule = re.match(r"([A-Z][\w]*)\.\s+(.*)", line)
        if line.startswith("    #include") and not code:
            out.append("```c")
            code = True
        if code:
            out.append(line[4:])
            if line == "    }":
                out.append("```")
                code = False
        elif rule:
            out += ["", f"**{rule[1]}.** {linked(rule[2], names)}"]
        else:
            out.append(linked(line.strip(), names))
    return "\n".join(out) + "\n"


def escape(text):
    """What is between backticks stays code."""
    return "".join(part if number % 2 else re.sub(r"([*_<>\[\]])", r"\\\1", part) for number, part in enumerate(re.split(r"(`[^`]*`)", text)))


def declarations(body):
    """The parts of a section between blank lines, outside of braces and comments; the C++ guards are left out."""
    part, depth, comment = [], 0, False
    for line in body.splitlines():
        if line.startswith("#") and not line.startswith("#define"):
            continue
        if not line.strip() and depth == 0 and not comment:
            if part:
                yield "\n".join(part)
            part = []
            continue
        part.append(line)
        plain = re.sub(r"/\*.*?\*/", "", line)
        comment = "/*" in plain or (comment and "*/" not in plain)
        if not comment:
            depth += plain.count("{") - plain.count("}")
    if part and "".join(part).strip() not in ("", "}"):
        yield "\n".join(part)


# ---- Pages --------------------------------------------------------------------------------------


def file_page(path):
    """A page that shows a file of the tree, or lists a folder's."""
    name = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        inside = sorted(one for one in path.iterdir() if not one.name.startswith((".", "__")))
        return f"---\norphan: true\n---\n# {name}/\n\n" + "\n".join(f"- `{one.name}{'/' if one.is_dir() else ''}`" for one in inside) + "\n"
    text = path.read_text(errors="replace")
    language = {".h": "c", ".c": "c", ".cc": "cpp", ".py": "python", ".java": "java", ".sh": "bash", ".json": "json"}.get(path.suffix, "text")
    fence = "`" * max(4, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    return f"---\norphan: true\n---\n# {name}\n\n{fence}{language}\n{text}\n{fence}\n"


class Stage:
    """The folder that Sphinx reads: the pages, with links to the tree's other files leading to pages that show them."""

    def __init__(self, folder):
        self.folder = folder
        self.shown = set()

    def link(self, page, target):
        """page: where the Markdown stands in docs/."""
        address, _, anchor = target.partition("#")
        if not address or re.match(r"\w+:", address):
            return target
        path = (ROOT / "docs" / posixpath.dirname(page) / address).resolve()
        if path.is_relative_to(ROOT / "docs") and path.exists() and not path.is_dir():
            return target
        if path.is_dir() and (path / "README.md").exists():
            path = path / "README.md"
        if not path.exists() or not path.is_relative_to(ROOT):
            sys.exit(f"docs/{page}: {target} leads nowhere")
        if path == ROOT / "docs/README.md":
            place = "index.md"
        elif path == ROOT / "include/batchllm.h":
            place = "reference-c.md"
        elif path == ROOT / "include/batchllm/handles.h":
            place = "reference-cpp.md"
        elif path.is_relative_to(ROOT / "docs"):
            place = path.relative_to(ROOT / "docs").as_posix()
        else:
            name = path.relative_to(ROOT).as_posix()
            place = f"tree/{name}.md" if not name.endswith(".md") else f"tree/{name}"
            if name not in self.shown:
                self.shown.add(name)
                self.show(place, path)
        return posixpath.relpath(place, posixpath.dirname(page) or ".") + (f"#{anchor}" if anchor else "")

    def show(self, place, path):
        out = self.folder / place
        out.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            inside = posixpath.relpath(path.relative_to(ROOT).as_posix(), "docs")
            text = LINK.sub(lambda match: f"[{match[1]}]({self.moved(match[2], inside, place)})", path.read_text())
            out.write_text("---\norphan: true\n---\n" + re.sub(r"!\[([^\]]*)\]\([^)]*\)", r"\1", text))
        else:
            out.write_text(file_page(path))

    def moved(self, target, inside, place):
        """A link of a Markdown file outside docs/, for the place where the site has that file."""
        found = self.link(inside, target)
        if found == target and not re.match(r"\w+:|#", target):  # it leads to a page of docs/
            address, _, anchor = target.partition("#")
            found = (ROOT / "docs" / posixpath.dirname(inside) / address).resolve().relative_to(ROOT / "docs")
            return posixpath.relpath(found, posixpath.dirname(place)) + (f"#{anchor}" if anchor else "")
        if re.match(r"\w+:|#", target):
            return target
        address, _, anchor = found.partition("#")
        address = posixpath.normpath(posixpath.join(posixpath.dirname(inside) or ".", address))
        return posixpath.relpath(address, posixpath.dirname(place)) + (f"#{anchor}" if anchor else "")

    def add(self, page, text):
        out = self.folder / page
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(LINK.sub(lambda match: f"[{self.label(page, match)}]({self.link(page, match[2])})", text))

    def label(self, page, match):
        """A link whose text is a page's file name has the page's title on the site."""
        path = (ROOT / "docs" / posixpath.dirname(page) / match[2].partition("#")[0]).resolve()
        if path.suffix != ".md" or not match[1].endswith(path.name) or not path.exists():
            return match[1]
        return re.search(r"^# (.*)$", path.read_text(), re.M)[1]


def contents_list(everything):
    """index.md's lists of pages."""
    listed = {name for names in PARTS.values() for name in names}
    others = sorted(name for name in everything - listed if not name.startswith("lab/") or name == "lab/README")
    return "\n".join(list_of_pages(part, [name for name in names if name in everything]) for part, names in {**PARTS, "For contributors": others}.items())


def list_of_pages(caption, names):
    return f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n" + "\n".join(names) + "\n```\n"


def java_reference(javadoc):
    links = "".join(f'<li><a href="java/{name}/index.html">{name}</a></li>' for name in javadoc)
    return "# Java: org.batchllm\n\nThe Javadoc of the packages:\n\n" + (f"<ul>{links}</ul>\n" if links else "It has not been built with this site.\n")


def stage(folder, javadoc):
    made = Stage(folder)
    docs = ROOT / "docs"
    everything = {"reference-c", "reference-cpp", "reference-python", "reference-java"}
    for path in sorted(docs.rglob("*.md")):
        page = path.relative_to(docs).as_posix()
        if page.startswith("site/") or page == "README.md":
            continue
        everything.add(page.removesuffix(".md"))
        notes = [f"/lab/{note.stem}" for note in sorted(path.parent.glob("*.md")) if note != path] if page == "lab/README.md" else []
        made.add(page, path.read_text() + (list_of_pages("Notes", notes) if notes else ""))
    for path in [*docs.glob("*.svg"), *docs.glob("*.png")]:
        shutil.copyfile(path, folder / path.name)
    made.add("index.md", (docs / "site/index.md").read_text() + contents_list(everything))
    (folder / "reference-c.md").write_text(c_reference(ROOT / "include/batchllm.h", "C: batchllm.h", "Made from the header, which has everything that a caller must know.\n"))
    handles = (ROOT / "include/batchllm/handles.h").read_text()
    (folder / "reference-cpp.md").write_text(
        "# C++: batchllm/handles.h\n\nHandles that close themselves, and failures as exceptions, over the functions of [batchllm.h](reference-c.md).\n\n````cpp\n" + handles + "````\n")
    (folder / "reference-python.md").write_text(python_reference())
    (folder / "reference-java.md").write_text(java_reference(javadoc))
    shutil.copyfile(docs / "site/conf.py", folder / "conf.py")
    (folder / "_static").mkdir()
    shutil.copyfile(docs / "site/site.css", folder / "_static/site.css")


def python_reference():
    modules = {"batchllm": None, "batchllm.spark": ["transform", "Metrics"], "batchllm.ray": ["transform", "Metrics"]}
    out = ["# Python: batchllm\n", "Made from the docstrings and types of the package.\n"]
    text = (ROOT / "bindings/python/batchllm/__init__.py").read_text()
    names = re.findall(r'"(\w+)"', text.partition("__all__ = [")[2].partition("]")[0])
    errors = [name for name in names if name.endswith("Error")]
    functions = [name for name in names if name[0].islower() and name != "__version__" and not name.startswith("_")]
    classes = [name for name in names if name not in errors and name not in functions and not name.startswith("_")]
    for title, listed, kind in (("Classes", ["Engine", "SamplingParams", *[one for one in classes if one not in ("Engine", "SamplingParams")]], "autoclass"),
                                ("Functions", functions, "autofunction"), ("Errors", errors, "autoexception")):
        out.append(f"\n## {title}\n")
        for name in listed:
            members = ":members:\n:inherited-members: object, Exception, BaseException, tuple, Sequence\n" if kind == "autoclass" else ""
            out.append(f"```{{eval-rst}}\n.. {kind}:: batchllm.{name}\n" + "".join(f"   {line}\n" for line in members.splitlines()) + "```\n")
    return "\n".join(out)


# ---- Links --------------------------------------------------------------------------------------


class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.links, self.anchors = [], {"", "top"}
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if given.get("id"):
            self.anchors.add(given["id"])
        if tag == "a" and given.get("name"):
            self.anchors.add(given["name"])
        for key in ("href", "src"):
            if given.get(key) is not None:
                self.links.append(given[key])


def broken_links(site):
    """Links within the site that lead to no file or to no place in it. Javadoc's pages are only led to: its own tool checks them."""
    pages = {path.relative_to(site).as_posix(): Page(path.read_text(errors="replace")) for path in site.rglob("*.html") if "java/" not in path.relative_to(site).as_posix()}
    faults = []
    for name, page in sorted(pages.items()):
        for link in page.links:
            split = urllib.parse.urlsplit(link)
            if split.scheme or split.netloc:
                continue
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), urllib.parse.unquote(split.path))) if split.path else name
            if target.startswith("..") or not (site / target).exists():
                faults.append(f"{name}: {link} leads to no file")
            elif split.fragment and target in pages and urllib.parse.unquote(split.fragment) not in pages[target].anchors:
                faults.append(f"{name}: {link} leads to no place in the page")
    return faults


def make(folder, staged, version, package, javadoc, python):
    """package: the folder of the Python package. javadoc: {name: JAR of pages}. Returns Sphinx's warnings and the links that lead nowhere."""
    stage(staged, javadoc)
    for name, jar in javadoc.items():
        into = staged / "_java/java" / name
        into.mkdir(parents=True)
        with zipfile.ZipFile(jar) as archive:
            archive.extractall(into)
    environment = {**os.environ, "BATCHLLM_SITE_VERSION": version, "PYTHONPATH": os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")])}
    extra = ["-D", "html_extra_path=_java"] if javadoc else []
    done = subprocess.run([python, "-B", "-m", "sphinx", "-q", "-b", "html", "-d", str(staged / ".doctrees"), *extra, str(staged), str(folder)],
                          env=environment, capture_output=True, text=True)
    warnings = [line.replace(str(staged), "docs") for line in done.stderr.splitlines() if line.strip()]
    if done.returncode != 0:
        warnings.append(f"Sphinx: exit status {done.returncode}")
    (folder / ".buildinfo").unlink(missing_ok=True)
    shutil.rmtree(folder / "_sources", ignore_errors=True)
    return warnings + broken_links(folder)


if __name__ == "__main__":  # pages.py OUTPUT VERSION PACKAGE: without Java's pages
    import tempfile

    with tempfile.TemporaryDirectory() as staging:
        found = make(pathlib.Path(sys.argv[1]), pathlib.Path(staging), sys.argv[2], pathlib.Path(sys.argv[3]), {}, sys.executable)
    print(*found, sep="\n")
    sys.exit(bool(found))
