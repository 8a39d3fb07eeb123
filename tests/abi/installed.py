#!/usr/bin/env python3
"""Installs the built library into an empty directory, finds it there with pkg-config and with CMake, compiles programs
against it and runs them, and the installed program too. Usage: installed.py BUILD_DIRECTORY MODEL_DIRECTORY"""
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree
import zipfile

MESON = shlex.split(os.environ.get("MESON", "meson"))
EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


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
            if "META-INF/LICENSE" not in names[kind]:
                sys.exit(f"{pom.stem}{kind}.jar has no licence")
        # Nested classes, and those in a file with several, are in the file of that name.
        classes = {re.sub(r"(\$.*)?\.class$", ".java", name) for name in names[""] if name.endswith(".class")}
        if not classes or classes - names["-sources"] or "index.html" not in names["-javadoc"]:
            sys.exit(f"{pom}: no sources of {sorted(classes - names['-sources'])}, or no pages")
    print(f"{len(jars)} JARs, {len(poms)} POMs")


def check_pkg_config(moved, build):
    """pkg-config gives the paths of a tree that has moved, unless the build was told otherwise (as for Debian's packages)."""
    options = json.loads(run([*MESON, "introspect", "--buildoptions", build]))
    if not next(option["value"] for option in options if option["name"] == "pkgconfig.relocatable"):
        print("batchllm.pc has fixed paths")
        return
    environment = dict(os.environ, PKG_CONFIG_PATH=str(next(moved.rglob("batchllm.pc")).parent))
    for variable, file in (("includedir", "batchllm.h"), ("libdir", "libbatchllm.so")):
        path = pathlib.Path(run(["pkg-config", f"--variable={variable}", "batchllm"], env=environment).strip(), file)
        if not path.exists() or moved.resolve() not in path.resolve().parents:
            sys.exit(f"{variable}: {path} is not in {moved}")


def check_cmake(moved, model, build):
    """A project of its own finds the package in a tree that has moved, builds and passes its tests."""
    if shutil.which("cmake") is None:
        print("no cmake: find_package is not tested")
        return
    run(["cmake", "-S", pathlib.Path(__file__).parent / "cmake", "-B", build, f"-DCMAKE_PREFIX_PATH={moved}",
         f"-DEXAMPLES={EXAMPLES}", f"-DMODEL={model}"])
    run(["cmake", "--build", build])
    run(["ctest", "--test-dir", build, "--output-on-failure", "--no-tests=error"])


def main():
    build, model = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory) / "root"
        run([*MESON, "install", "-C", build, "--no-rebuild",
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
        run([*shlex.split(os.environ.get("CC", "cc")), "-std=c99", "-Wall", "-Werror", EXAMPLES / "c/hello.c",
             "-o", program, *flags], env=environment)
        needed = run(["readelf", "-d", program])
        if "libbatchllm.so.0" not in needed:
            sys.exit("the program does not name libbatchllm.so.0")
        if not run([program, model], env=environment).strip():
            sys.exit("the program printed nothing")
        prefix = library
        while not (prefix / "include").is_dir():
            prefix = prefix.parent
        if (prefix / "bin/batchllm").exists():  # built without CLI11's headers there is none
            without = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
            run([prefix / "bin/batchllm", "--version"], env=without)
        moved = prefix.rename(prefix.with_name("moved"))
        check_pkg_config(moved, build)
        check_cmake(moved, model, f"{directory}/project")


main()
