"""Rows that are embedded or classified: their parameters, and their results as arrays."""

from __future__ import annotations

import math
import warnings
from array import array
from importlib import import_module
from operator import index
from typing import Any, Literal, Optional

from . import native
from .results import Results

# Of two answers of a reranker together; below it they are probably not what the model answers with.
_LEAST_PROBABILITY = 0.05

_EMBED, _CLASSIFY = 1, 2  # BATCHLLM_TASK_
Pooling = Literal["last", "mean", "first"]
_POOLINGS = {None: 0, "last": 1, "mean": 2, "first": 3}


def _column(**fields: int) -> native.batchllm_params_column:
    column = native.batchllm_params_column_create(1)
    for name, value in fields.items():
        native.batchllm_params_set_integers(column, name, array("q", [index(value)]))
    return column


def embedding_params(
    pooling: Optional[str], normalize: Optional[bool], dimensions: int, add_special: bool, parse_special: bool
) -> native.batchllm_params_column:
    """Parameters for all rows that are embedded."""
    if pooling not in _POOLINGS:
        raise ValueError(f"pooling is {pooling!r}: it is 'last', 'mean', 'first' or None, as the model's files say")
    return _column(
        task=_EMBED,
        pooling=_POOLINGS[pooling],
        normalize=0 if normalize is None else 1 if normalize else -1,
        dimensions=dimensions,
        add_special=add_special,
        parse_special=parse_special,
    )


def label_params(add_special: bool, parse_special: bool) -> native.batchllm_params_column:
    """Parameters for all rows that are classified."""
    return _column(task=_CLASSIFY, add_special=add_special, parse_special=parse_special)


def embedding_array(results: Results, dimensions: int) -> Any:
    """A NumPy array [rows, dimensions] of float32: a read-only view of the results' own memory, or if rows failed, a
    copy in which those rows are NaN."""
    numpy = import_module("numpy")
    values = numpy.asarray(results.embeddings)
    offsets = numpy.asarray(results.embedding_offsets)
    lengths = numpy.diff(offsets)
    if (lengths == dimensions).all():
        return values.reshape(len(results), dimensions)
    _warn_of_failed(results)
    filled = numpy.full((len(results), dimensions), math.nan, dtype=numpy.float32)
    filled[lengths == dimensions] = values.reshape(-1, dimensions)
    return filled


def share_of_first(results: Results) -> list[float]:
    """For rows scored with two continuations: the probability of the first relative to both; NaN if a row failed."""
    _warn_of_lengths(results)
    _warn_of_failed(results)
    return [
        1 / (1 + math.exp(min(700.0, result.scores[1] - result.scores[0]))) if result.ok else math.nan
        for result in results
    ]


def _warn_of_lengths(results: Results) -> None:
    """Warns if one of two continuations has more tokens than the other."""
    first = next((result for result in results if result.ok), None)
    lengths = [len(one) for one in first.score_logprobs] if first is not None else []
    if len(set(lengths)) > 1:
        warnings.warn(
            f"rerank: positive is {lengths[0]} token(s) of this model and negative {lengths[1]}: a word of more tokens is less"
            " likely for that alone; choose two words of equally many",
            stacklevel=5,
        )


def _warn_of_failed(results: Results) -> None:
    """Says why values are NaN."""
    failed = results.failed
    if failed:
        first = results[failed[0]]
        warnings.warn(
            f"{len(failed)} of {len(results)} rows failed, so their values are NaN; row {first.tag}: {first.error}", stacklevel=5
        )


def warn_of_other_words(results: Results, positive: Any, negative: Any) -> None:
    """Warns if the model expects neither of two continuations."""
    both = [math.exp(result.scores[0]) + math.exp(result.scores[1]) for result in results if result.ok]
    if not both or sum(both) / len(both) >= _LEAST_PROBABILITY:
        return
    hint = "It may need a space before them, or other words"
    if isinstance(positive, str):
        bare = positive.strip(), negative.strip()
        spaced = positive.startswith(" ") and negative.startswith(" ")
        others = bare if spaced else tuple(" " + word for word in bare)
        hint = f"It may need {'no' if spaced else 'a'} space before them, such as {others[0]!r} and {others[1]!r}, or other words"
    warnings.warn(
        f"rerank: the model expects neither {positive!r} nor {negative!r} after these prompts: together they have a probability"
        f" of {sum(both) / len(both):.2g}. {hint}",
        stacklevel=4,
    )
