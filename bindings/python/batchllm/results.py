"""Results: columns in the library's own memory, and a view of each row."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Callable, Iterator, Mapping, NoReturn, Optional, Sequence, Union, overload

from . import frames, native
from .errors import status_name

if TYPE_CHECKING:
    from .report import Report

FINISH_REASONS = {1: "stop", 2: "length", 3: "cancelled", 4: "error", 5: "scored", 6: "embedded", 7: "classified"}


ALWAYS = ("tag", "sample", "text", "tokens", "finish_reason", "status", "error", "prompt_tokens", "shared_tokens")
"""Columns of every result, as `Results.to_arrow` has them."""

ASKED = {
    "logprobs": "logprobs",
    "top_logprobs": "top_tokens",
    "prompt_logprobs": "prompt_logprobs",
    "prompt_top_logprobs": "prompt_top_tokens",
    "scores": "scores",
    "score_logprobs": "score_logprobs",
    "embedding": "embeddings",
    "label_logits": "label_logits",
    "label_probabilities": "label_probabilities",
}
"""Columns that results have where it was asked for, and what then has items."""


def refuse_pickle(self: object, protocol: object = None) -> NoReturn:
    """Objects that refer to the library's memory cannot be sent to another process."""
    raise TypeError(
        f"{type(self).__module__}.{type(self).__name__} holds memory of the native library and cannot be pickled"
        + ("; results.to_pylist() can" if isinstance(self, (Results, Result)) else "; make one in each process")
    )


def _pairs(
    offsets: memoryview[int], tokens: memoryview[int], logprobs: memoryview[float]
) -> list[list[tuple[int, float]]]:
    return [[(tokens[j], logprobs[j]) for j in range(begin, end)] for begin, end in zip(offsets, offsets[1:])]


class Result(Mapping[str, Any]):
    """One result: a row of `Results`, read on access. Also a mapping, with the items of `to_dict`."""

    __slots__ = ("_results", "_index")

    __hash__ = object.__hash__
    __eq__ = object.__eq__

    def __init__(self, results: Results, index: int) -> None:
        self._results = results
        self._index = index

    @property
    def tag(self) -> int:
        """The row's number, or the tag that it was added with."""
        return self._results.tags[self._index]

    @property
    def status(self) -> int:
        """0, or one of the library's ROW error numbers."""
        return self._results.statuses[self._index]

    @property
    def ok(self) -> bool:
        """Whether the row succeeded."""
        return self.status == 0

    @property
    def error(self) -> Optional[str]:
        """Why the row failed; None if it did not."""
        if self.ok:
            return None
        return f"{status_name(self.status)}: {self._results.error_text(self._index)}"

    @property
    def finish_reason(self) -> str:
        """ "stop", "length", "cancelled", "error", "scored", "embedded" or "classified"."""
        return FINISH_REASONS[self._results.finish_reasons[self._index]]

    @property
    def text(self) -> str:
        """The generated text. Bytes that are not UTF-8 become U+FFFD: a row may end in the middle of a character."""
        return self._results.text_of(self._index)

    @property
    def tokens(self) -> memoryview[int]:
        """The generated token ids, in the library's memory."""
        offsets = self._results.token_offsets
        return self._results.tokens[offsets[self._index] : offsets[self._index + 1]]

    @property
    def sample(self) -> int:
        """The number of this sample among those of its row."""
        return self._results.samples[self._index]

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return self._results.prompt_tokens[self._index]

    @property
    def shared_tokens(self) -> int:
        """How many of the prompt's tokens were not computed for this result alone."""
        return self._results.shared_tokens[self._index]

    @property
    def logprobs(self) -> memoryview[float]:
        """The log-probabilities of the chosen tokens, if requested."""
        offsets = self._results.logprob_offsets
        return self._results.logprobs[offsets[self._index] : offsets[self._index + 1]]

    @property
    def top_logprobs(self) -> list[list[tuple[int, float]]]:
        """For each token, the likeliest tokens as (token, logprob), if requested."""
        results = self._results
        first, last = results.logprob_offsets[self._index], results.logprob_offsets[self._index + 1]
        return _pairs(results.top_offsets[first : last + 1], results.top_tokens, results.top_logprobs)

    @property
    def prompt_logprobs(self) -> memoryview[float]:
        """The log-probabilities of the prompt's tokens from the second on, if requested; only the row's first sample
        has them."""
        offsets = self._results.prompt_logprob_offsets
        return self._results.prompt_logprobs[offsets[self._index] : offsets[self._index + 1]]

    @property
    def prompt_top_logprobs(self) -> list[list[tuple[int, float]]]:
        """For each of `prompt_logprobs`, the likeliest tokens at its position as (token, logprob), if requested."""
        results = self._results
        first, last = results.prompt_logprob_offsets[self._index], results.prompt_logprob_offsets[self._index + 1]
        return _pairs(results.prompt_top_offsets[first : last + 1], results.prompt_top_tokens, results.prompt_top_logprobs)

    @property
    def scores(self) -> memoryview[float]:
        """For a scored row, the log-probability of each continuation."""
        offsets = self._results.score_offsets
        return self._results.scores[offsets[self._index] : offsets[self._index + 1]]

    @property
    def score_logprobs(self) -> list[memoryview[float]]:
        """For a scored row, the log-probability of each token of each continuation."""
        results = self._results
        first, last = results.score_offsets[self._index], results.score_offsets[self._index + 1]
        return [
            results.score_logprobs[results.score_token_offsets[i] : results.score_token_offsets[i + 1]]
            for i in range(first, last)
        ]

    @property
    def embedding(self) -> memoryview[float]:
        """For an embedded row, its vector, in the library's memory."""
        offsets = self._results.embedding_offsets
        return self._results.embeddings[offsets[self._index] : offsets[self._index + 1]]

    @property
    def label_logits(self) -> memoryview[float]:
        """For a classified row, the logit of each label, in the order of `Engine.labels`."""
        offsets = self._results.label_offsets
        return self._results.label_logits[offsets[self._index] : offsets[self._index + 1]]

    @property
    def label_probabilities(self) -> memoryview[float]:
        """For a classified row, the probability of each label, computed as the model's problem_type says."""
        offsets = self._results.label_offsets
        return self._results.label_probabilities[offsets[self._index] : offsets[self._index + 1]]

    def to_dict(self) -> dict[str, Any]:
        """Plain Python values; what was not requested is left out."""
        return {name: self[name] for name in self._results.columns}

    def __getitem__(self, name: str) -> Any:
        if name not in self._results.columns:
            raise KeyError(name)
        value = getattr(self, name)
        if name in ("top_logprobs", "prompt_top_logprobs"):
            return [[{"token": token, "logprob": logprob} for token, logprob in top] for top in value]
        if name == "score_logprobs":
            return [one.tolist() for one in value]
        return value.tolist() if isinstance(value, memoryview) else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._results.columns)

    def __len__(self) -> int:
        return len(self._results.columns)

    def __repr__(self) -> str:
        if not self.ok:
            return f"Result(tag={self.tag}, error={self.error!r})"
        if self.finish_reason == "scored":
            return f"Result(tag={self.tag}, scores={self.scores.tolist()})"
        if self.finish_reason == "embedded":
            return f"Result(tag={self.tag}, dimensions={len(self.embedding)})"
        if self.finish_reason == "classified":
            return f"Result(tag={self.tag}, label_probabilities={self.label_probabilities.tolist()})"
        text = json.dumps(self.text if len(self.text) <= 60 else self.text[:57] + "...", ensure_ascii=False)
        return f"Result(tag={self.tag}, text={text}, tokens={len(self.tokens)}, finish_reason={self.finish_reason!r})"

    __reduce_ex__ = refuse_pickle


def _column(name: str, what: str) -> Any:
    getter: Callable[[native.batchllm_results], memoryview[Any]] = getattr(native, f"batchllm_results_column_{name}")
    slot = f"_{name}"

    def read(self: Results) -> memoryview[Any]:
        found: Optional[memoryview[Any]] = self.__dict__.get(slot)
        if found is None:
            found = self.__dict__[slot] = getter(self._native)
        return found

    return property(read, doc=what)


class Results(Sequence[Result]):
    """A batch of results as columns; `results[i]` and iteration give `Result`s.

    The columns are read-only memoryviews of the library's memory, which they keep alive:
    `numpy.asarray(results.tokens)` copies nothing. Item i of a column with offsets is
    column[offsets[i]:offsets[i + 1]].
    """

    def __init__(self, results: native.batchllm_results) -> None:
        self._native = results
        self._count = results.count
        self._columns: Optional[tuple[str, ...]] = None
        self._report: Optional[Report] = None

    tags: memoryview[int] = _column("tags", "[count] uint64")
    statuses: memoryview[int] = _column("statuses", "[count] int32: 0 or a ROW error number")
    finish_reasons: memoryview[int] = _column("finish_reasons", "[count] int32, see FINISH_REASONS")
    samples: memoryview[int] = _column("samples", "[count] int32: which of the row's samples")
    prompt_tokens: memoryview[int] = _column("prompt_tokens", "[count] int64")
    shared_tokens: memoryview[int] = _column("shared_tokens", "[count] int64")
    token_offsets: memoryview[int] = _column("token_offsets", "[count + 1] int64")
    tokens: memoryview[int] = _column("tokens", "int32: the generated tokens of all results")
    text_offsets: memoryview[int] = _column("text_offsets", "[count + 1] int64, bytes")
    text: memoryview[int] = _column("text", "UTF-8: the generated text of all results")
    error_offsets: memoryview[int] = _column("error_offsets", "[count + 1] int64, bytes")
    error_bytes: memoryview[int] = _column("errors", "UTF-8: the error texts of all results")
    logprob_offsets: memoryview[int] = _column("logprob_offsets", "[count + 1] int64")
    logprobs: memoryview[float] = _column("logprobs", "float32: of the chosen tokens")
    top_offsets: memoryview[int] = _column("top_offsets", "int64: a range for each item of logprobs")
    top_tokens: memoryview[int] = _column("top_tokens", "int32: likeliest first")
    top_logprobs: memoryview[float] = _column("top_logprobs", "float32")
    prompt_logprob_offsets: memoryview[int] = _column("prompt_logprob_offsets", "[count + 1] int64")
    prompt_logprobs: memoryview[float] = _column("prompt_logprobs", "float32: of prompts' tokens from the second on")
    prompt_top_offsets: memoryview[int] = _column("prompt_top_offsets", "int64: a range for each of prompt_logprobs")
    prompt_top_tokens: memoryview[int] = _column("prompt_top_tokens", "int32, likeliest first")
    prompt_top_logprobs: memoryview[float] = _column("prompt_top_logprobs", "float32")
    score_offsets: memoryview[int] = _column("score_offsets", "[count + 1] int64")
    scores: memoryview[float] = _column("scores", "float64: one a continuation")
    score_token_offsets: memoryview[int] = _column("score_token_offsets", "int64: a range for each of scores")
    score_logprobs: memoryview[float] = _column("score_logprobs", "float32: one a token of a continuation")
    embedding_offsets: memoryview[int] = _column("embedding_offsets", "[count + 1] int64")
    embeddings: memoryview[float] = _column("embeddings", "float32: the vectors of all results")
    label_offsets: memoryview[int] = _column("label_offsets", "[count + 1] int64")
    label_logits: memoryview[float] = _column("label_logits", "float32: in the order of Engine.labels")
    label_probabilities: memoryview[float] = _column("label_probabilities", "float32: the same")

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Result: ...

    @overload
    def __getitem__(self, index: slice) -> list[Result]: ...

    def __getitem__(self, index: Union[int, slice]) -> Union[Result, list[Result]]:
        if isinstance(index, slice):
            return [Result(self, i) for i in range(*index.indices(self._count))]
        if not hasattr(index, "__index__"):
            raise TypeError(f"results[{index!r}]: a number or a slice is expected; a column is an attribute, as results.texts")
        if not -self._count <= index < self._count:
            raise IndexError(f"result {index} of {self._count}")
        return Result(self, index % self._count)

    def __iter__(self) -> Iterator[Result]:
        return (Result(self, i) for i in range(self._count))

    def text_of(self, index: int) -> str:
        """One result's text."""
        offsets = self.text_offsets
        return str(self.text[offsets[index] : offsets[index + 1]], "utf-8", "replace")

    def error_text(self, index: int) -> str:
        """One result's error text; "" if there is none."""
        offsets = self.error_offsets
        return str(self.error_bytes[offsets[index] : offsets[index + 1]], "utf-8", "replace")

    @property
    def texts(self) -> list[str]:
        """Every result's text."""
        return [self.text_of(i) for i in range(self._count)]

    @property
    def errors(self) -> list[Optional[str]]:
        """Every result's error; None for a result without one."""
        return [None if status == 0 else Result(self, i).error for i, status in enumerate(self.statuses)]

    @property
    def failed(self) -> list[int]:
        """The indices of the results that failed."""
        return [i for i, status in enumerate(self.statuses) if status]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of `to_pandas` and similar methods: those of all results, and those of at least one."""
        if self._columns is None:
            self._columns = ALWAYS + tuple(name for name, within in ASKED.items() if len(getattr(self, within)))
        return self._columns

    def report(self) -> Report:
        """The page of a call made with `report=True`: what was shared, and how long everything took."""
        if self._report is None:
            raise ValueError("there is no report: make these results with report=True")
        return self._report

    def to_pylist(self) -> list[dict[str, Any]]:
        """Plain Python values, which can be pickled."""
        return [result.to_dict() for result in self]

    def to_arrow(self, *, samples: str = "rows") -> Any:
        """A pyarrow.RecordBatch of the columns `columns`, which shares the library's memory, except for `finish_reason`
        and `error`.

        samples: "rows": a row for each sample; "lists": a row for each prompt, with lists of its samples' values.
        """
        return frames.to_arrow(self, samples)

    def to_pandas(self, *, samples: str = "rows") -> Any:
        """A pandas DataFrame of the columns `columns`; lists of numbers are read-only NumPy arrays over the library's
        memory.

        samples: as in `to_arrow`.
        """
        return frames.to_pandas(self, samples)

    def to_polars(self, *, samples: str = "rows") -> Any:
        """A Polars DataFrame of the columns `columns`.

        samples: as in `to_arrow`.
        """
        return frames.to_polars(self, samples)

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """Arrow's C data interface: a struct array of the columns `columns`."""
        return native.batchllm_arrow_write(self._native)

    def __repr__(self) -> str:
        return f"Results({self._count} results, {len(self.failed)} failed)"

    __reduce_ex__ = refuse_pickle
