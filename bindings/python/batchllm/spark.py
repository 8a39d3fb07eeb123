"""A language model over a Spark DataFrame:

    from batchllm import spark
    answers = spark.transform(rows, model="/models/m", max_tokens=64)

This calls the Java class BatchLlm in the driver's JVM, and the executors compute in their JVMs. The JARs
batchllm.jar and batchllm-spark.jar must be on the class path (the setting spark.jars, or spark-submit --jars);
batchllm.spark_jars() returns their paths. Executors do not need this package.

Python workers (mapInArrow) are not used because they are processes, one for each task slot: the tasks of an executor
could not share an engine, and an idle worker would keep its model in the GPU's memory. In the JVM an executor has one
engine per GPU, the rows of all its tasks fill that engine's steps together, and no row is copied to Python. Results are
the same as from Java, since it is the same code.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

from .adapters import adapters_by_name
from .constraints import schema_of
from .options import no_option
from .sampling_params import PARAMETERS

__all__ = ["Metrics", "transform"]

# The options of Java's BatchLlmOptions, which documents each one; their Java names are promptColumn and so on.
_OPTIONS = frozenset({
    "prompt_column", "messages_column", "template", "fields", "chat", "system", "key_column", "continuations_column", "max_tokens_column", "temperature_column", "seed_column",
    "choices_column", "regex_column", "json_schema_column", "grammar_column", "lark_grammar_column", "adapter_column", "image_column", "image_folders", "result_prefix", "parsed",
    "model", "backend", "devices", "compute_type", "backend_options", "plan_path", "plan", "enlarge", "threads",
    "levels", "min_prefix_tokens", "kv_memory_bytes", "kv_memory_fraction", "step_tokens", "max_request_tokens",
    "max_requests", "adapter_memory_bytes", "adapters", "use_adapter", "reproducible", "idle_seconds",
    "choices", "regex", "json_schema", "grammar", "lark_grammar", "start_after", "flexible_whitespace",
    "any_member_order", "any_numbers", "loose_schema",
    "partitions", "ordered", "expected_tokens", "sample_rows", "start_bytes", "window_rows", "window_bytes",
    *(one.name for one in PARAMETERS if one.kind != "Biases"),
})  # fmt: skip
# vLLM's names.
_SYNONYMS = {"n": "samples", "stop": "stop_strings", "stop_token_ids": "stop_tokens"}
_FRACTIONS = {"kv_memory_fraction", "idle_seconds"} | {one.name for one in PARAMETERS if one.kind == "Number"}
_TEXTS = {one.name for one in PARAMETERS if one.kind == "Texts"}


class Metrics:
    """Counts of one or more transforms, which are correct after an action on their results.

    Spark counts a task again if it runs again, but not if it was killed.
    """

    def __init__(self, session: SparkSession) -> None:
        self._java = _package(session).BatchLlmMetrics(session._jsparkSession.sparkContext())

    @property
    def rows(self) -> int:
        """Number of results; with `samples` above 1 there are more than rows."""
        return int(self._java.rows())

    @property
    def errors(self) -> int:
        """How many of them have an error."""
        return int(self._java.errors())

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of all rows, shared or not."""
        return int(self._java.promptTokens())

    @property
    def processed_prompt_tokens(self) -> int:
        """How many of these were computed."""
        return int(self._java.processedPromptTokens())

    @property
    def completion_tokens(self) -> int:
        """Tokens generated."""
        return int(self._java.completionTokens())

    @property
    def cut_off_results(self) -> int:
        """Results of rows with a constraint that max_tokens cut off: their texts are only the beginnings of valid ones."""
        return int(self._java.cutOffResults())

    @property
    def warnings(self) -> list[str]:
        """Warnings of the executors' engines, for example that prompts could share more than they do. The driver logs
        each one when the first task that reports it ends. Warnings that differ only in numbers are kept once."""
        return [str(text) for text in self._java.warnings()]

    @property
    def saving_ratio(self) -> float:
        """1 - processed_prompt_tokens / prompt_tokens."""
        return float(self._java.savingRatio())

    def __repr__(self) -> str:
        return str(self._java.toString())


def transform(rows: DataFrame, *, metrics: Metrics | None = None, **options: Any) -> DataFrame:
    """Runs a model over the rows of a DataFrame. Returns the rows with their own columns, their key, and the columns text,
    tokens, finish_reason, error (null if there is none), prompt_tokens, shared_tokens and completion_tokens; if
    requested, also sample, logprobs, prompt_logprobs, scores, embedding, or label, score and probabilities.

    Rows come in no particular order, or with ordered=True in the order of their keys. To sort by anything else, write
    or persist the results first; docs/spark.md explains why.

    Args:
        rows: a DataFrame with a column of prompts: text, lists of token ids, or the JSON of chat messages
        (messages_column).
        metrics: the call adds its counts to these.
        options: those of Java's BatchLlmOptions: model, backend, max_tokens, prompt_column, key_column, ... json_schema
            may also be a mapping, a pydantic model or a dataclass.

    Raises:
        TypeError: for an unknown option, or a value of the wrong type.
        RuntimeError: if this process cannot reach the session's JVM, or the class path lacks the JARs.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.sql import DataFrame

    session = rows.sparkSession
    package = _package(session)
    java = package.BatchLlmOptions()
    for given, value in options.items():
        name = _SYNONYMS.get(given, given)
        if name not in _OPTIONS:
            raise no_option(name, _OPTIONS)
        if name != given and name in options:
            raise TypeError(f"options {name} and {given} are the same: give one")
        if value is None:
            continue
        if name in _FRACTIONS:
            value = float(value)
        elif name == "json_schema":
            value = schema_of(value)
        elif name == "adapters":
            # The driver lists a directory; those that are named are the executors', which have directories of their own.
            value = adapters_by_name(os.path.abspath(value) if isinstance(value, (str, os.PathLike)) else value)
        elif name == "image_folders":
            value = [os.fspath(folder) for folder in ([value] if isinstance(value, (str, os.PathLike)) else value)]
        elif isinstance(value, tuple):
            value = list(value)
        elif name in _TEXTS and isinstance(value, str):
            value = [value]
        elif isinstance(value, os.PathLike):
            value = os.fspath(value)
        words = name.split("_")
        try:
            getattr(java, words[0] + "".join(word.title() for word in words[1:]))(value)
        except (AttributeError, Py4JError) as error:  # py4j knows no such Java type, or Java no such method
            raise TypeError(f"option {name}: {value!r} is of the wrong type or size") from error
    counted = (metrics or Metrics(session))._java
    return DataFrame(package.BatchLlm.transform(rows._jdf, java, counted), session)


def _package(session: SparkSession) -> Any:
    from py4j.java_gateway import JavaPackage  # type: ignore[import-untyped]

    context = getattr(session, "_sc", None)
    if context is None or context._jvm is None:
        raise RuntimeError("batchllm.spark needs a session with a JVM of its own; Spark Connect has none")
    package = context._jvm.org.batchllm.spark
    # A class that is not on the class path looks like a package to py4j.
    if isinstance(package.BatchLlmOptions, JavaPackage):
        raise RuntimeError(
            "batchllm.jar and batchllm-spark.jar are not on Spark's class path: give batchllm.spark_jars() by spark-submit"
            " --jars, or as the setting spark.jars, before the session starts"
        )
    return package
