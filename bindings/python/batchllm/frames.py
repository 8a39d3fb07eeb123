"""Turns results into tables of pyarrow, pandas and Polars. The package needs none of them."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Sequence

from .result_memory import ResultMemory

# With samples as lists, columns with one value for each prompt. `status` and `error` are those of the first failure.
_OF_PROMPT = ("tag", "prompt_tokens", "status", "error")


def optional(name: str, what: str) -> Any:
    """Imports a package that only `what` needs."""
    try:
        return import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.split(".")[0] != name.split(".")[0]:
            raise
        package = name.split(".")[0]
        raise ModuleNotFoundError(f"{what} needs {package}: pip install {package}", name=package) from None


def to_arrow(results: ResultMemory, samples: str, parsed: Any = None) -> Any:
    """See Results.to_arrow. parsed: a column of parsed values; None: there is none."""
    arrow = optional("pyarrow", "to_arrow")
    batch = arrow.record_batch(results)
    if parsed is not None:
        batch = batch.append_column("parsed", parsed)
    return samples_as_lists(results, batch) if _as_lists(samples) else batch


def samples_as_lists(results: ResultMemory, batch: Any) -> Any:
    """A record batch with a row for each result -> one with a row for each prompt."""
    arrow = optional("pyarrow", "to_arrow")
    starts = _starts(results)
    offsets = arrow.array(starts, arrow.int64())
    columns = {}
    for name in batch.schema.names:
        column = batch.column(name)
        if name in ("status", "error"):
            columns[name] = column.take(arrow.array(_first_failures(results, starts), arrow.int64()))
        elif name in _OF_PROMPT:
            columns[name] = column.take(offsets[:-1])
        elif name != "sample":
            columns[name] = arrow.LargeListArray.from_arrays(offsets, column)
    return arrow.record_batch(columns)


class _Capsules:
    """Results as an object with nothing but Arrow's capsules."""

    def __init__(self, results: ResultMemory) -> None:
        self.__arrow_c_array__ = results.__arrow_c_array__


def to_polars(results: ResultMemory, samples: str, parsed: Any = None) -> Any:
    """See Results.to_polars."""
    polars = optional("polars", "to_polars")
    frame = polars.DataFrame(_Capsules(results))  # which would treat `results` itself as a sequence
    if parsed is not None:
        frame = frame.with_columns(polars.from_arrow(parsed).alias("parsed"))
    if not _as_lists(samples):
        return frame
    starts = _starts(results)
    of_prompt = frame[starts[:-1]].select("tag", "prompt_tokens")
    failures = frame[_first_failures(results, starts)].select("status", "error")
    rows = [row for row in range(len(starts) - 1) for _ in range(starts[row], starts[row + 1])]
    lists = (
        frame.drop("tag", "sample", "status", "error", "prompt_tokens")
        .with_columns(polars.Series("row", rows, polars.Int64))
        .group_by("row", maintain_order=True)
        .agg(polars.all())
        .drop("row")
    )
    joined = polars.concat([of_prompt, failures, lists], how="horizontal")
    names = [name for name in results.columns if name != "sample"]
    return joined.select(names + ["parsed"] * (parsed is not None))


def to_pandas(results: ResultMemory, samples: str, row_index: Any, parsed: Any = None) -> Any:
    """See Results.to_pandas."""
    pandas = optional("pandas", "to_pandas")
    columns = {name: _values(results, name) for name in results.columns}
    if parsed is not None:
        columns["parsed"] = parsed
    index = row_index
    if _as_lists(samples):
        starts = _starts(results)
        failures = _first_failures(results, starts)
        for name, values in columns.items():
            if name in ("status", "error"):
                columns[name] = [values[i] for i in failures]
            elif name in _OF_PROMPT:
                columns[name] = [values[i] for i in starts[:-1]]
            else:
                columns[name] = [list(values[begin:end]) for begin, end in zip(starts, starts[1:])]
        del columns["sample"]
    elif row_index is not None:
        starts = _starts(results)
        index = row_index.repeat([end - begin for begin, end in zip(starts, starts[1:])])
    # pandas would turn arrays of equal length into one two-dimensional array.
    frame = pandas.DataFrame({name: _series(pandas, values) for name, values in columns.items()})
    return frame if index is None else frame.set_axis(index, axis=0)


def _series(pandas: Any, values: Sequence[Any]) -> Any:
    nested = isinstance(values, list) and any(hasattr(one, "__len__") and not isinstance(one, str) for one in values)
    return pandas.Series(values, dtype=object) if nested else pandas.Series(values)


def _values(results: ResultMemory, name: str) -> Any:
    """A column: a NumPy array of numbers, or a list."""
    numpy = import_module("numpy")  # which pandas needs
    numbers = {"tag": "tags", "sample": "samples", "status": "statuses"}
    if name in numbers or name in ("prompt_tokens", "shared_tokens"):
        return numpy.array(getattr(results, numbers.get(name, name)))
    lists = {
        "tokens": "token_offsets",
        "logprobs": "logprob_offsets",
        "prompt_logprobs": "prompt_logprob_offsets",
        "scores": "score_offsets",
        "label_logits": "label_offsets",
        "label_probabilities": "label_offsets",
    }
    if name in lists:
        return _slices(numpy.asarray(getattr(results, name)), getattr(results, lists[name]))
    if name == "embedding":
        return _slices(numpy.asarray(results.embeddings), results.embedding_offsets)
    if name == "score_logprobs":
        pieces = _slices(numpy.asarray(results.score_logprobs), results.score_token_offsets)
        return _slices(pieces, results.score_offsets)
    if name == "text":
        return results.texts
    if name == "error":
        return results.errors
    if name == "finish_reason":
        return [results.finish_reason_of(i) for i in range(len(results))]
    pairs = results.top_logprobs_of if name == "top_logprobs" else results.prompt_top_logprobs_of
    return [
        [[{"token": token, "logprob": logprob} for token, logprob in top] for top in pairs(i)]
        for i in range(len(results))
    ]


def _slices(items: Any, offsets: memoryview[int]) -> list[Any]:
    return [items[begin:end] for begin, end in zip(offsets, offsets[1:])]


def _as_lists(samples: str) -> bool:
    if samples not in ("rows", "lists"):
        raise ValueError(f"samples is {samples!r}: it is 'rows' or 'lists'")
    return samples == "lists"


def _starts(results: ResultMemory) -> list[int]:
    """Where the samples of each prompt begin, followed by the number of results. Equal tags are adjacent."""
    tags = results.tags.tolist()
    samples = results.samples.tolist()
    return [i for i in range(len(tags)) if i == 0 or tags[i] != tags[i - 1] or samples[i] == 0] + [len(tags)]


def _first_failures(results: ResultMemory, starts: Sequence[int]) -> list[int]:
    """For each prompt, the first of its results that failed, or else its first result."""
    statuses = results.statuses.tolist()
    return [next((i for i in range(a, b) if statuses[i]), a) for a, b in zip(starts, starts[1:])]
