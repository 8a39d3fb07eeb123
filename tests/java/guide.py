#!/usr/bin/env python3
"""Compiles and runs the Java code of docs/java.md and README.md. Usage: guide.py JAVAC JAVA JAR MODEL"""
import pathlib
import re
import subprocess
import sys
import tempfile

javac, java, jar, model = sys.argv[1:]
root = pathlib.Path(__file__).resolve().parents[2]


def blocks(name):
    return re.findall(r"```java\n(.*?)```", (root / name).read_text(), re.DOTALL)


guide, readme = blocks("docs/java.md"), blocks("README.md")
whole = [block for block in guide if "class Job" in block]
parts = [block for block in guide + readme if "class " not in block]
assert len(whole) == 1 and len(parts) == 9, f"{len(whole)} programs and {len(parts)} parts"
with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    (folder / "path/to").mkdir(parents=True)
    (folder / "path/to/model").symlink_to(model)
    (folder / "Job.java").write_text(whole[0])
    imports = "import java.nio.*; import java.nio.file.Path; import java.util.*; import org.batchllm.*;\n"
    methods, calls = [], []
    for i, part in enumerate(parts):
        given = "" if "Engine engine" in part else "Engine engine, "
        methods.append(f"static void part{i}({given}int tokenCount) {{\n{part}}}\n")
        call = f"part{i}({'engine, ' if given else ''}1500);"
        make = "try (Engine engine = Engine.create(EngineOptions.builder(Path.of(\"path/to/model\")).build())) "
        calls.append(f"{make if given else ''}{{ {call} }}\n")
    (folder / "Parts.java").write_text(imports + "final class Parts {\n" + "".join(methods)
                                       + "public static void main(String[] args) {\n" + "".join(calls) + "}\n}\n")
    subprocess.run([javac, "--release", "11", "-Xlint:all,-try", "-Werror", "-cp", jar, "-d", folder,
                    folder / "Job.java", folder / "Parts.java"], check=True)

    def run(*command):
        """Runs a command like a user, from a folder outside the source tree."""
        return subprocess.run([java, "-cp", f"{jar}:{folder}", *command], check=True, cwd=folder,
                              stdout=subprocess.PIPE, encoding="utf-8").stdout

    printed = run("Job", model)
    others = run("Parts")
lines = [line for line in printed.splitlines() if re.match(r"[01] (LENGTH|STOP) ", line)]
assert len(lines) == 2, printed
for text in (r"1[01] ", r"(yes|no)\n(yes|no)\n", r"2 rows, 2 of them in 1 groups\. Prompts: \d+ tokens",
             r'(yes|no)\n\{"name":"[^\n]*","child":(true|false)\}\n', r"2 rows are done\n", r"2 vectors of [1-9]\d* dimensions\n(water|fire)\n",
             r"2 of 2 rows done \(0 failed\)\. Prompts: \d+ tokens, \d+ computed, [1-9]\d\.\d % saved"):
    assert re.search(text, others), f"no {text} in {others}"
