"""The JARs of the Java and Spark packages, if they are installed with this one."""

from __future__ import annotations

from pathlib import Path

_NAMES = ("batchllm.jar", "batchllm-spark.jar")


def spark_jars() -> str:
    """Paths of batchllm.jar and batchllm-spark.jar, separated by a comma, for the setting `spark.jars`:

        session = SparkSession.builder.config("spark.jars", batchllm.spark_jars()).getOrCreate()

    A wheel contains them (scripts/release); `meson install` installs them in share/java.

    Raises:
        FileNotFoundError: if this package was built without them.
    """
    here = Path(__file__).resolve().parent
    for folder in (here / "jars", *(parent / "share" / "java" for parent in here.parents)):
        jars = [folder / name for name in _NAMES]
        if all(jar.is_file() for jar in jars):
            return ",".join(map(str, jars))
    raise FileNotFoundError(
        f"{' and '.join(_NAMES)} are not in {here / 'jars'}: this package was built without a JDK 17 or without pyspark,"
        " which scripts/release has from scripts/setup --tests"
    )
