"""A wheel as scripts/release builds it, installed into a fresh environment and used outside the source tree."""

import hashlib
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
MODEL = os.path.abspath(os.environ.get("BATCHLLM_TEXT_MODEL", "build/tests/text_model"))
# The newest symbols that RHEL 9 has.
NEWEST = {"GLIBC": (2, 34), "GLIBCXX": (3, 4, 29), "CXXABI": (1, 3, 13), "GCC": (11,)}
TOOLS = ("pip", "mesonpy", "auditwheel", "swig")

USE = """
import sys, pickle
import batchllm
assert batchllm.__file__.startswith(sys.prefix), batchllm.__file__
with batchllm.Engine(sys.argv[1], backend="cpu") as engine:
    results = engine.generate(["The capital of France is"], batchllm.SamplingParams(max_tokens=4))
    print(results[0].tokens.tolist())
with open("/proc/self/maps") as maps:
    libraries = {line.split()[-1] for line in maps if ".so" in line}
for name in ("libbatchllm", "libdnnl", "libsimdjson", "libxxhash", "libzstd", "libjpeg", "libpng", "libwebpdemux"):
    (path,) = [path for path in libraries if name in path]
    assert path.startswith(sys.prefix), path
assert not any("cuda" in path or "cublas" in path for path in libraries), libraries
try:
    batchllm.Engine(sys.argv[1], backend="cuda").close()
    why = "loaded"
except batchllm.BackendUnavailableError as error:
    why = str(error)
print(why)
"""

SPARK = """
import os, sys
import batchllm, batchllm.spark
assert batchllm.__file__.startswith(sys.prefix), batchllm.__file__
from pyspark.sql import SparkSession
session = (SparkSession.builder.master("local[1]").config("spark.jars", batchllm.spark_jars()).config("spark.ui.enabled", "false")
           .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate())
rows = session.createDataFrame([(i, f"Row {i}") for i in range(4)], ["id", "prompt"])
answers = batchllm.spark.transform(rows, model=sys.argv[1], backend="cpu", key_column="id", max_tokens=2, kv_memory_bytes=64 << 20)
print("answers:", sorted((row.id, row.error, row.completion_tokens) for row in answers.collect()))
session.stop()
"""


@unittest.skipUnless(all(importlib.util.find_spec(tool) for tool in TOOLS) and shutil.which("ninja"),
                     "needs pip, meson-python, auditwheel and PyPI's swig: scripts/setup --tests")
class Wheel(unittest.TestCase):
    def test_a_wheel_works_outside_the_source_tree(self):
        environment = {key: value for key, value in os.environ.items()
                       if key not in ("PYTHONPATH", "LD_LIBRARY_PATH", "MALLOC_PERTURB_")}
        with tempfile.TemporaryDirectory() as folder:
            built = subprocess.run([ROOT / "scripts/release", "wheel", "--output", f"{folder}/wheels"],
                                   env=environment, capture_output=True, text=True)
            self.assertEqual(built.returncode, 0, built.stdout + built.stderr)
            (wheel,) = pathlib.Path(f"{folder}/wheels").glob("*.whl")
            self.assertRegex(wheel.name, r"-cp310-abi3-manylinux.*_2_34_")
            self.assertLess(wheel.stat().st_size, 100e6)
            with zipfile.ZipFile(wheel) as archive:
                names = archive.namelist()
                archive.extractall(f"{folder}/contents")
            for name in ("batchllm/libbatchllm.so", "batchllm/batchllm", "batchllm/py.typed", "batchllm/native.pyi", "batchllm/native.py"):
                self.assertIn(name, names)
            self.assertNotIn("batchllm/libbatchllm_cuda.so", names)
            self.check_contents(pathlib.Path(folder) / "contents")
            self.check_needs(pathlib.Path(folder) / "contents")
            subprocess.run([sys.executable, "-m", "venv", f"{folder}/venv"], check=True, env=environment)
            python = f"{folder}/venv/bin/python"
            subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel], check=True,
                           env=environment)
            used = subprocess.run([python, "-c", USE, MODEL], cwd=folder, env=environment, capture_output=True, text=True)
            self.assertEqual(used.returncode, 0, used.stderr)
            tokens, cuda = used.stdout.splitlines()
            self.assertRegex(tokens, r"^\[\d+, \d+, \d+, \d+\]$")
            self.assertIn("libbatchllm_cuda.so: cannot open", cuda)
            self.check_program(pathlib.Path(folder) / "venv")
            self.check_spark(python, folder, environment, names)

    def check_contents(self, contents):
        """The list of contents is true, and says the licence of everything that others made; the texts are there."""
        (info,) = contents.glob("*.dist-info")
        listed = json.loads((info / "sboms/batchllm.spdx.json").read_text())
        for file in listed["files"]:
            sums = {one["algorithm"]: one["checksumValue"] for one in file["checksums"]}
            self.assertEqual(hashlib.sha256((contents / file["fileName"]).read_bytes()).hexdigest(), sums["SHA256"], file["fileName"])
        unlisted = {str(path.relative_to(contents)) for path in contents.rglob("*") if path.is_file()} - {file["fileName"][2:] for file in listed["files"]}
        self.assertEqual({pathlib.PurePath(name).name for name in unlisted}, {"RECORD", "batchllm.spdx.json"})
        packages = {package["name"]: package["licenseDeclared"] for package in listed["packages"]}
        self.assertEqual(packages.pop("batchllm"), "Apache-2.0")
        self.assertLessEqual({"oneDNN", "simdjson", "xxHash", "Zstandard", "libjpeg-turbo", "libpng", "libwebp", "GNU C++ library", "CLI11"}, set(packages))
        self.assertGreaterEqual(len(packages), 2 + len(list((contents / "batchllm.libs").iterdir())))
        notice = (info / "licenses/bundled/NOTICE").read_text()
        for name, licence in packages.items():
            (text,) = re.findall(rf"^{re.escape(name)} \({re.escape(licence)}\): (.*)$", notice, re.MULTILINE)
            self.assertGreater((info / "licenses/bundled" / text).stat().st_size, 500, text)

    def check_program(self, environment):
        """On a worker: without a home, with nothing in the path and no place to write but the temporary folder."""
        with tempfile.TemporaryDirectory() as empty:
            done = subprocess.run([environment / "bin/batchllm", "demo"], cwd="/", env={"TMPDIR": empty}, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("answers are right", done.stdout)
        for page in ("man/man1/batchllm.1", "bash-completion/completions/batchllm"):
            self.assertGreater((environment / "share" / page).stat().st_size, 1000)

    def check_spark(self, python, folder, environment, names):
        """If the wheel was built with a JDK and pyspark, it has everything that Spark needs, and Spark gets nothing
        else."""
        pyspark = importlib.util.find_spec("pyspark")
        if pyspark is None or shutil.which("javac") is None:
            print("no JARs in the wheel: no pyspark, or no JDK")
            return
        self.assertLessEqual({"batchllm/jars/batchllm.jar", "batchllm/jars/batchllm-spark.jar"}, set(names))
        packages = pathlib.Path(pyspark.origin).parent.parent
        shown = pathlib.Path(folder) / "packages"  # only Spark's own packages from the tests' environment
        shown.mkdir()
        for name in ("pyspark", "py4j"):
            (shown / name).symlink_to(packages / name)
        used = subprocess.run([python, "-c", SPARK, MODEL], cwd=folder, capture_output=True, text=True,
                              env={**environment, "PYTHONPATH": str(shown), "PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1"})
        self.assertEqual(used.returncode, 0, used.stderr)
        self.assertIn("answers: [(0, None, 2), (1, None, 2), (2, None, 2), (3, None, 2)]", used.stdout)

    def check_needs(self, contents):
        """Outside the wheel, its files only need the C and C++ runtime and zlib, which Python needs too, of versions that RHEL 9 has, and no CUDA."""
        runtime = ("libc.so", "libz.so", "libm.so", "libstdc++.so", "libgcc_s.so", "libpthread.so", "libdl.so", "librt.so", "ld-linux")
        own = {path.name for path in contents.rglob("*.so*")}
        for path in [*contents.rglob("*.so*"), contents / "batchllm/batchllm"]:
            symbols = subprocess.run(["readelf", "--version-info", "--wide", path], check=True, capture_output=True, text=True).stdout
            for kind, version in re.findall(r"Name: (GLIBC|GLIBCXX|CXXABI|GCC)_([0-9.]+)", symbols):
                self.assertLessEqual(tuple(map(int, version.split("."))), NEWEST[kind], f"{path.name} needs {kind}_{version}")
            dynamic = subprocess.run(["readelf", "-d", path], check=True, capture_output=True, text=True).stdout
            for line in dynamic.splitlines():
                if "(NEEDED)" in line:
                    needed = line.split("[")[1].split("]")[0]
                    self.assertTrue(needed in own or needed.startswith(runtime), f"{path.name} needs {needed}")
                if "RPATH" in line or "RUNPATH" in line:
                    for entry in line.split("[")[1].split("]")[0].split(":"):
                        self.assertRegex(entry, r"^\$ORIGIN(/\.\./batchllm\.libs)?$", f"{path.name}: {line}")
        self.assertIn("_native.abi3.so", own)


if __name__ == "__main__":
    unittest.main()
