#!/usr/bin/env python3
"""Runs one of the Spark tests through spark-submit, as a user would: Java classes of a JAR, or a Python script.

    run.py [--master MASTER] [--gpu] [--executor-java OPTIONS] --jars A,B TEST [ARGUMENT ...]

TEST: CLASS in the last of the JARs, or SCRIPT.py. `{folder}` in an argument is a fresh folder for files. Exits with 77
and a reason if there is no pyspark or no Java.
"""

import argparse
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

LOGGING = """
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex{short}
"""


def skip(why: str) -> None:
    print(f"skipped: {why} (scripts/setup --tests installs it)")
    sys.exit(77)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--gpu", action="store_true", help="each executor and each task is given one, number 3")
    parser.add_argument("--executor-java", default="", help="further options of the executors' Java")
    parser.add_argument("--jars")
    parser.add_argument("--missing", action="store_true", help="the build has found no pyspark, or no JDK 17")
    parser.add_argument("test", nargs="?")
    parser.add_argument("arguments", nargs="*")
    given = parser.parse_args()

    if given.missing:
        skip("the build has found no pyspark, or no JDK 17")
    found = importlib.util.find_spec("pyspark")
    if found is None or not found.submodule_search_locations:
        skip(f"no pyspark in {sys.executable}")
    if shutil.which("java") is None:
        skip("no java")
    home = found.submodule_search_locations[0]

    with tempfile.TemporaryDirectory(prefix="batchllm-spark-") as folder:
        logging = pathlib.Path(folder, "log4j2.properties")
        logging.write_text(LOGGING)
        files = pathlib.Path(folder, "files")
        files.mkdir()
        script = given.test.endswith(".py")
        jars = given.jars.split(",")
        command = [
            os.path.join(home, "bin", "spark-submit"), "--master", given.master,
            "--driver-memory", "1g", "--jars", ",".join(jars if script else jars[:-1]),
            "--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.driver.bindAddress=127.0.0.1",
            "--conf", "spark.ui.enabled=false", "--conf", f"spark.local.dir={folder}/local",
            "--conf", "spark.sql.shuffle.partitions=4", "--conf", f"spark.sql.warehouse.dir={folder}/warehouse",
            "--conf", f"spark.driver.extraJavaOptions=-Dlog4j.configurationFile={logging}",
            "--conf", f"spark.executor.extraJavaOptions=-Dlog4j.configurationFile={logging} {given.executor_java}",
        ]  # fmt: skip
        if given.gpu:
            for who in ("worker", "executor", "task"):
                command += ["--conf", f"spark.{who}.resource.gpu.amount=1"]
            command += ["--conf", f"spark.worker.resource.gpu.discoveryScript={pathlib.Path(__file__).with_name('gpu.sh')}"]
        command += [given.test] if script else ["--class", given.test, jars[-1]]
        command += [argument.replace("{folder}", str(files)) for argument in given.arguments]
        environment = dict(os.environ, SPARK_HOME=home, SPARK_LOCAL_IP="127.0.0.1", PYSPARK_PYTHON=sys.executable,
                           SPARK_WORKER_DIR=f"{folder}/work")  # fmt: skip
        return subprocess.run(command, env=environment, cwd=folder).returncode


sys.exit(main())
