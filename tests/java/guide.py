#!/usr/bin/env python3
"""Compiles the Java code of docs/java.md and README.md, and runs the guide's job. Usage: guide.py JAVAC JAVA JAR MODEL"""
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
assert len(whole) == 1 and len(parts) == 2, f"{len(whole)} programs and {len(parts)} parts"
with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    (folder / "Job.java").write_text(whole[0])
    imports = "import java.nio.*; import java.nio.file.Path; import org.batchllm.*;\n"
    methods = [f"static void part{i}(Engine engine, int tokenCount) {{\n{part}}}\n".replace(
        "(Engine engine, int", "(int" if "Engine engine" in part else "(Engine engine, int") for i, part in enumerate(parts)]
    (folder / "Parts.java").write_text(imports + "final class Parts {\n" + "".join(methods) + "}\n")
    subprocess.run([javac, "--release", "11", "-Xlint:all,-try", "-Werror", "-cp", jar, "-d", folder,
                    folder / "Job.java", folder / "Parts.java"], check=True)
    # As a user does, from a folder outside the source tree.
    printed = subprocess.run([java, "-cp", f"{jar}:{folder}", "Job", model], check=True, cwd=folder,
                             stdout=subprocess.PIPE, encoding="utf-8").stdout
lines = [line for line in printed.splitlines() if re.match(r"[01] (LENGTH|STOP) ", line)]
assert len(lines) == 2, printed
