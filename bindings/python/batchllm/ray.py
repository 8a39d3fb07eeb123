"""A language model over a Ray dataset:

    import batchllm.ray
    answers = batchllm.ray.transform(dataset, model="/models/m", params=batchllm.SamplingParams(max_tokens=64))

Rows that share a prefix go to the same partition. A pool of actors, each with an engine, computes the partitions. Needs
Ray (`pip install "ray[data]"`) and this package on every node.
"""

from __future__ import annotations

import inspect
import logging
import os
import random
import zlib
from functools import partial
from typing import Any, Callable, Mapping, Optional, Union

from .adapters import adapter_name
from .engine import Engine
from .file_rows import Prompts
from .frames import optional
from .options import no_option
from .params import SamplingParams
from .pictures import folder_list
from .prefix_ranges import Item, PrefixRanges, PromptSample
from .ray_engine import RowEngine
from .ray_rows import CONSTRAINTS, RayRows, arrow, places, sort_keys
from .task_rows import Task

__all__ = ["Metrics", "transform"]

_ENGINE = frozenset(inspect.signature(Engine).parameters) - {"model", "timeline", "logger"}
_PARTITIONS_AN_ENGINE = 4
_LEAST_ROWS = 1_000
_PARTITION_BYTES = 128 << 20
_SAMPLE_BYTES = 64 << 20
_KEYS_COUNTED = 4096
_PLACE = "batchllm_place"
# Blocks that an engine works on at a time: as one nears its end, the next one fills the engine's steps.
_BLOCKS_AT_ONCE = 2


class _Counts:
    """Counts, kept in a separate actor."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def add(self, **more: int) -> None:
        for name, value in more.items():
            self.counts[name] = self.counts.get(name, 0) + value

    def get(self) -> dict[str, int]:
        return self.counts


class Metrics:
    """Counts of one or more transforms, updated while their engines work.

    Rows of a lost actor are counted again when they are computed again.
    """

    def __init__(self) -> None:
        ray = optional("ray", "batchllm.ray")
        self._ray = ray
        self._actor = ray.remote(num_cpus=0)(_Counts).remote()

    def _get(self, name: str) -> int:
        return int(self._ray.get(self._actor.get.remote()).get(name, 0))

    @property
    def rows(self) -> int:
        """Number of results; with `samples` above 1 there are more than rows."""
        return self._get("rows")

    @property
    def errors(self) -> int:
        """How many of them have an error."""
        return self._get("errors")

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of all rows, shared or not."""
        return self._get("prompt_tokens")

    @property
    def processed_prompt_tokens(self) -> int:
        """How many of these were computed."""
        return self._get("processed_prompt_tokens")

    @property
    def completion_tokens(self) -> int:
        """Tokens generated."""
        return self._get("completion_tokens")

    @property
    def cut_off_results(self) -> int:
        """Results of rows with a constraint that max_tokens or a stop of their own cut off: their texts are only the beginnings of valid ones."""
        return self._get("cut_off_results")

    @property
    def saving_ratio(self) -> float:
        """1 - processed_prompt_tokens / prompt_tokens."""
        everything = self.prompt_tokens
        return 1 - self.processed_prompt_tokens / everything if everything else 0.0

    def __repr__(self) -> str:
        return (
            f"{self.rows:,} rows ({self.errors:,} errors). Prompts: {self.prompt_tokens:,} tokens,"
            f" {self.processed_prompt_tokens:,} computed, {100 * self.saving_ratio:.1f} % saved by sharing."
            f" Generated: {self.completion_tokens:,} tokens."
        )


def transform(
    dataset: Any,
    model: Union[str, os.PathLike[str], None] = None,
    *,
    prompt_column: str = "prompt",
    template: Optional[str] = None,
    chat: bool = False,
    system: Optional[str] = None,
    image_column: Optional[str] = None,
    params: Optional[SamplingParams] = None,
    key_column: Optional[str] = None,
    continuations_column: Optional[str] = None,
    max_tokens_column: Optional[str] = None,
    temperature_column: Optional[str] = None,
    seed_column: Optional[str] = None,
    choices_column: Optional[str] = None,
    regex_column: Optional[str] = None,
    json_schema_column: Optional[str] = None,
    grammar_column: Optional[str] = None,
    lark_grammar_column: Optional[str] = None,
    adapter_column: Optional[str] = None,
    result_prefix: str = "",
    task: str = "generate",
    pooling: Optional[str] = None,
    normalize: Optional[bool] = None,
    dimensions: int = 0,
    engines: int = 0,
    num_gpus: Optional[float] = None,
    num_cpus: Optional[float] = None,
    partitions: int = 0,
    expected_tokens: int = 0,
    sample_rows: int = 0,
    start_bytes: int = 0,
    window_rows: int = 16_384,
    window_bytes: int = 64 << 20,
    metrics: Optional[Metrics] = None,
    **engine_options: Any,
) -> Any:
    """Runs a model over the rows of a Ray dataset. Returns a dataset of the rows with their own columns and text, tokens,
    finish_reason, error (null if there is none), prompt_tokens, shared_tokens and completion_tokens; if requested, also
    sample, logprobs, top_logprobs, prompt_logprobs, prompt_top_logprobs, scores, embedding, or label, score and
    probabilities. Rows come in no particular order.

    dataset: a ray.data.Dataset. It is read twice: by this call, to find where prompts share prefixes, and when the result
    is computed. Its rows must be the same both times.
    model: a directory, at the same path on every node.
    prompt_column: the column with texts, lists of token ids or lists of chat messages.
    template, chat, system: build prompts from several columns, as in `Engine.generate_table`. With chat but without a
    template, prompt_column holds the user's message.
    image_column: the column of pictures: bytes of files, paths, arrays (as ray.data.read_images makes them), or lists of
    these. With chat they come before the text; otherwise the prompt has the model's placeholder for each. Paths lead to
    files in image_folders, an option of the engines: directories at the same paths on every node.
    params: for all rows. The columns max_tokens_column to adapter_column give each row its own parameters; where
    they are null, `params` applies.
    key_column: a column of integers that identify rows. A row's key and the seeds determine its random numbers. Without
    a key column, the prompt takes the place of the key, so equal prompts get equal answers.
    continuations_column: a column of lists of texts, or of lists of token ids. Rows are scored.
    result_prefix: put before the names of the columns that are added.
    task: "generate", "embed" or "classify", with pooling, normalize and dimensions as in `Engine.embed`.
    engines: number of actors, each with an engine; 0: one for each GPU of the cluster, or for each node without GPUs.
    num_gpus, num_cpus: what each actor requests; None: one GPU if there are any, else one CPU. An engine on the CPU uses
    all cores of its node regardless of num_cpus; `threads` limits it.
    partitions: 0: four for each engine, none larger than 128 MiB, none for fewer than 1,000 rows.
    expected_tokens: tokens that a row generates on average, to balance partitions; 0: max_tokens.
    sample_rows, start_bytes: how many prompts are sampled, and how many bytes of each are used (about four per token); 0:
    chosen so that the sample fits 64 MiB.
    window_rows, window_bytes: the most that an engine plans at a time.
    metrics: the call adds its counts to these.
    adapters: of rows whose `adapter`, in params or a column, names one: directories, at the same paths on every node.
    engine_options: other options of `Engine`: backend, devices, compute_type, kv_memory_bytes, seed ..

    A row that fails gets an `error`, and the others continue. If an actor is lost, another computes its rows again,
    with the same answers.
    """
    for name in engine_options:
        if name not in _ENGINE:
            if name in inspect.signature(SamplingParams).parameters:
                raise TypeError(f"no option {name!r}; it is one of params=batchllm.SamplingParams({name}=..)")
            raise no_option(name, _ENGINE | set(inspect.signature(transform).parameters) - {"engine_options"})
    ray = optional("ray", "batchllm.ray")
    optional("ray.data", "batchllm.ray")
    rows = RayRows(
        Prompts(prompt_column, template, "given", chat, system, image_column),
        key_column,
        continuations_column,
        _columns(
            max_tokens=max_tokens_column,
            temperature=temperature_column,
            seed=seed_column,
            choices=choices_column,
            regex=regex_column,
            json_schema=json_schema_column,
            grammar=grammar_column,
            lark_grammar=lark_grammar_column,
            adapter=adapter_column,
        ),
        params or SamplingParams(),
        task,
        result_prefix,
    )
    _check(rows, window_rows, window_bytes)
    if engine_options.get("adapters"):
        given = engine_options["adapters"]
        if adapter_column is None and adapter_name(rows.params.adapter) is None:
            raise ValueError("adapters: no row can name one: give adapter_column, or params with an adapter")
        one = isinstance(given, (str, os.PathLike))
        engine_options["adapters"] = _directory(given) if one else {name: _directory(path) for name, path in given.items()}
    if engine_options.get("image_folders"):
        engine_options["image_folders"] = [_directory(one) for one in folder_list(engine_options["image_folders"])]
    schema = dataset.schema()
    if schema is None:  # no rows
        return dataset
    rows.check(_arrow_schema(schema))
    gpus = _gpus(ray, engine_options, num_gpus)
    count = engines or _engines(ray, gpus)
    most = _PARTITIONS_AN_ENGINE * count
    sample_rows = sample_rows or _within(200 * max(partitions, most), 2_000, 100_000)
    sample = PromptSample(sample_rows, start_bytes or _within(_SAMPLE_BYTES // sample_rows, 1_024, 16_384))
    repeated = _take_sample(dataset, rows, sample)
    wanted = partitions or _within(
        max(min(most, sample.rows // _LEAST_ROWS), -(-sample.bytes // _PARTITION_BYTES)), 1, max(1, sample.rows)
    )
    ranges = PrefixRanges.choose(sample, wanted, expected_tokens or (rows.params.max_tokens if rows.generates else 1))
    if ranges.blind:
        logging.getLogger("batchllm").warning(
            "most sampled prompts are equal in their first %d bytes, so rows are not put together by what follows: set"
            " start_bytes higher",
            sample.start_bytes,
        )
    placed = _placed(dataset, rows, ranges)
    actor = {"num_gpus": gpus} if gpus else {"num_cpus": 1 if num_cpus is None else num_cpus}
    if gpus and num_cpus is not None:
        actor["num_cpus"] = num_cpus
    return placed.map_batches(
        RowEngine,
        fn_constructor_kwargs={
            "rows": rows,
            "model": _directory(model),
            "options": engine_options,
            "task": {"pooling": pooling, "normalize": normalize, "dimensions": dimensions},
            "repeated": repeated,
            "dropped": [_PLACE] if ranges.partitions > 1 else [],
            "limits": (window_rows, window_bytes),
            "metrics": None if metrics is None else metrics._actor,
        },
        batch_size=None,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(
            size=count, max_concurrent_calls_per_actor=_BLOCKS_AT_ONCE, enable_true_multi_threading=True
        ),
        **actor,
    )


def _directory(model: Union[str, os.PathLike[str], None]) -> Optional[str]:
    """An absolute path: an actor has its own working directory."""
    if model is None:
        return None
    return os.path.abspath(model) if os.path.isdir(model) else os.fspath(model)


def _columns(**given: Optional[str]) -> dict[str, str]:
    return {name: column for name, column in given.items() if column is not None}


def _check(rows: RayRows, window_rows: int, window_bytes: int) -> None:
    Task(rows.task, continuations_column=rows.continuations_column)  # raises
    if rows.prompts.system is not None and not rows.prompts.chat:
        raise ValueError("system: needs chat")
    if not rows.generates and rows.params.samples != 1:
        raise ValueError("samples: rows that generate nothing have one result")
    own = [name for name in rows.param_columns if name in CONSTRAINTS]
    if len(own) > 1:
        raise ValueError(f"{own[0]}_column and {own[1]}_column both say what a row's output must look like")
    if window_rows < 1 or window_bytes < 1:
        raise ValueError("window_rows and window_bytes are at least 1")


def _arrow_schema(schema: Any) -> Any:
    pa = arrow()
    base = getattr(schema, "base_schema", schema)
    if isinstance(base, pa.Schema):
        return base
    return pa.schema(list(zip(schema.names, schema.types)))  # blocks of pandas


def _within(value: int, least: int, most: int) -> int:
    return max(least, min(most, value))


def _gpus(ray: Any, options: Mapping[str, Any], wanted: Optional[float]) -> float:
    """GPUs of an actor."""
    if wanted is not None:
        return wanted
    if options.get("backend") in ("cpu", "sim"):
        return 0
    return 1 if ray.cluster_resources().get("GPU", 0) >= 1 else 0


def _engines(ray: Any, gpus: float) -> int:
    if gpus:
        return max(1, int(ray.cluster_resources().get("GPU", 0) / gpus))
    return max(1, sum(bool(node["Alive"]) for node in ray.nodes()))


# ---- Where rows go ----


def _sampled(rows: RayRows, capacity: int, start_bytes: int, block: Any) -> Any:
    """A block -> one row: the beginnings of some prompts, and how often some keys occur."""
    pa = arrow()
    prompts = sort_keys(rows.bytes_of(block), rows.images_of(block))
    keys = rows.keys_of(block)
    given = [i for i, prompt in enumerate(prompts) if prompt is not None]
    draw = random.Random(zlib.crc32((prompts[given[0]] or b"") if given else b"") + len(prompts))
    drawn = sorted((draw.getrandbits(63), i) for i in given)[:capacity]
    chosen = [i for _, i in drawn]
    some = [prompts[i] or b"" for i in chosen]
    counts: dict[int, int] = {}
    for hashed in places(keys, [b""] * len(keys)) if keys is not None else ():
        counts[hashed] = counts.get(hashed, 0) + 1
    least = sorted(counts)[:_KEYS_COUNTED]
    found = places(None if keys is None else [keys[i] for i in chosen], some)
    one = {
        "rows": len(prompts),
        "bytes": block.nbytes,
        "draws": [number for number, _ in drawn],
        "heads": [head[:start_bytes] for head in some],
        "lengths": [len(prompt) for prompt in some],
        "places": [place >> 1 for place in found],
        "keys": [key >> 1 for key in least],
        "counts": [counts[key] for key in least],
    }
    integers, binaries = pa.list_(pa.int64()), pa.list_(pa.large_binary())
    kinds = {"rows": pa.int64(), "bytes": pa.int64(), "heads": binaries}
    return pa.table({name: pa.array([value], kinds.get(name, integers)) for name, value in one.items()})


def _take_sample(dataset: Any, rows: RayRows, sample: PromptSample) -> bool:
    """Fills the sample. Returns whether keys repeat, judged by all rows of the keys with the smallest hashes."""
    counts: dict[int, int] = {}
    sampling = partial(_sampled, rows, sample.capacity, sample.start_bytes)
    for part in dataset.map_batches(sampling, batch_size=None, batch_format="pyarrow").iter_rows():
        sample.rows += part["rows"]
        sample.bytes += part["bytes"]
        for draw, head, length, place in zip(part["draws"], part["heads"], part["lengths"], part["places"]):
            sample.add(int(draw), Item(bytes(head), int(place), int(length)))
        for key, count in zip(part["keys"], part["counts"]):
            counts[int(key)] = counts.get(int(key), 0) + int(count)
        counts = {key: counts[key] for key in sorted(counts)[:_KEYS_COUNTED]}
    return any(count > 1 for count in counts.values())


def _put(rows: RayRows, ranges: PrefixRanges, block: Any) -> Any:
    """A block with the partition of each row in a column."""
    prompts = sort_keys(rows.bytes_of(block), rows.images_of(block))
    own = places(rows.keys_of(block), prompts)
    found = [ranges.partition(prompt, place >> 1) for prompt, place in zip(prompts, own)]
    return block.append_column(_PLACE, arrow().array(found, arrow().int32()))


def _placed(dataset: Any, rows: RayRows, ranges: PrefixRanges) -> Any:
    """The rows in one block for each partition."""
    if ranges.partitions == 1:
        return dataset.repartition(1)
    put: Callable[[Any], Any] = partial(_put, rows, ranges)
    placed = dataset.map_batches(put, batch_size=None, batch_format="pyarrow")
    return placed.sort(_PLACE, boundaries=list(range(1, ranges.partitions)))
