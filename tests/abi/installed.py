#!/usr/bin/env python3
"""Installs the built library into an empty directory, finds it there with pkg-config, compiles a C program
against it and runs it. Usage: installed.py BUILD_DIRECTORY SOURCE MODEL_DIRECTORY"""
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile


def run(command, **options):
    print("+", " ".join(map(str, command)))
    done = subprocess.run(command, capture_output=True, text=True, **options)
    print(done.stdout, done.stderr)
    if done.returncode != 0:
        sys.exit(f"exit status {done.returncode}")
    return done.stdout


def main():
    build, source, model = sys.argv[1:4]
    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory) / "root"
        run([*shlex.split(os.environ.get("MESON", "meson")), "install", "-C", build, "--no-rebuild",
             "--destdir", str(root)])
        found = list(root.rglob("batchllm.pc"))
        if len(found) != 1:
            sys.exit(f"batchllm.pc installed {len(found)} times")
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
