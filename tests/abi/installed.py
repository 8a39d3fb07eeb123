#!/usr/bin/env python3
"""Installs the built library into an empty directory, finds it there with pkg-config, compiles a C program
against it and runs it. Usage: installed.py BUILD_DIRECTORY SOURCE MODEL_DIRECTORY"""
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import xml.etree.ElementTree
import zipfile


def run(command, **options):
    print("+", " ".join(map(str, command)))
    done = subprocess.run(command, capture_output=True, text=True, **options)
    print(done.stdout, done.stderr)
    if done.returncode != 0:
        sys.exit(f"exit status {done.returncode}")
    return done.stdout


def check_jars(root, build):
    """JARs are installed unchanged, and the names in Maven's layout match its files."""
    built = {path.name: path.read_bytes() for path in (pathlib.Path(build) / "bindings" / "java").rglob("*.jar")}
    jars = [path for path in root.rglob("*.jar") if not path.is_symlink()]
    for path in jars:
        if path.read_bytes() != built.get(path.name):
            sys.exit(f"{path.name} is not the JAR that was built")
    repository = next(root.rglob("maven-repo"), None)
    poms = [] if repository is None else sorted(repository.rglob("*.pom"))
    for pom in poms:
        folder = pom.parent
        model = xml.etree.ElementTree.parse(pom).getroot()
        group, artifact, version = (model.find(f"{{*}}{name}").text for name in ("groupId", "artifactId", "version"))
        if folder != repository.joinpath(*group.split("."), artifact, version) or pom.stem != f"{artifact}-{version}":
            sys.exit(f"{pom} is of {group}:{artifact}:{version}")
        names = {}
        for kind in ("", "-sources", "-javadoc"):
            with zipfile.ZipFile(folder / f"{pom.stem}{kind}.jar") as jar:
                names[kind] = set(jar.namelist())
        # Nested classes, and those in a file with several, are in the file of that name.
        classes = {re.sub(r"(\$.*)?\.class$", ".java", name) for name in names[""] if name.endswith(".class")}
        if not classes or classes - names["-sources"] or "index.html" not in names["-javadoc"]:
            sys.exit(f"{pom}: no sources of {sorted(classes - names['-sources'])}, or no pages")
    print(f"{len(jars)} JARs, {len(poms)} POMs")


def main():
    build, source, model = sys.argv[1:4]
    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory) / "root"
        run([*shlex.split(os.environ.get("MESON", "meson")), "install", "-C", build, "--no-rebuild",
             "--destdir", str(root)])
        found = list(root.rglob("batchllm.pc"))
        if len(found) != 1:
            sys.exit(f"batchllm.pc installed {len(found)} times")
        check_jars(root, build)
        library = next(root.rglob("libbatchllm.so")).parent
        environment = dict(os.environ, PKG_CONFIG_PATH=str(found[0].parent),
                           PKG_CONFIG_SYSROOT_DIR=str(root), LD_LIBRARY_PATH=str(library))
        flags = run(["pkg-config", "--cflags", "--libs", "batchllm"], env=environment).split()
        program = directory + "/program"
        run([*shlex.split(os.environ.get("CC", "cc")), "-std=c99", "-Wall", "-Werror", source,
             "-o", program, *flags], env=environment)
        needed = run(["readelf", "-d", program])
        if "libbatchllm.so.0" not in needed:
            sys.exit("the program does not name libbatchllm.so.0")
        if not run([program, model], env=environment).strip():
            sys.exit("the program printed nothing")


main()
