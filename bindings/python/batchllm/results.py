"""Results: a sequence of rows, a set of columns, and tables of other packages."""

from __future__ import annotations

import json
from typing import Any, Collection, Iterator, Literal, Mapping, Optional, Sequence, Union, overload

from . import frames, native
from .errors import Error, refuse_pickle
from .parsed import Parser
from .report import Report
from .result_memory import ResultMemory

Samples = Literal["rows", "lists"]


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
        return self._results.error_of(self._index)

    @property
    def finish_reason(self) -> str:
        """ "stop", "length", "cancelled", "error", "scored", "embedded" or "classified"."""
        return self._results.finish_reason_of(self._index)

    @property
    def text(self) -> Optional[str]:
        """The generated text; None if the row failed. Bytes that are not UTF-8 become U+FFFD: a row may end in the middle of a character."""
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
        return self._results.top_logprobs_of(self._index)

    @property
    def prompt_logprobs(self) -> memoryview[float]:
        """The log-probabilities of the prompt's tokens from the second on, if requested; only the row's first sample
        has them."""
        offsets = self._results.prompt_logprob_offsets
        return self._results.prompt_logprobs[offsets[self._index] : offsets[self._index + 1]]

    @property
    def prompt_top_logprobs(self) -> list[list[tuple[int, float]]]:
        """For each of `prompt_logprobs`, the likeliest tokens at its position as (token, logprob), if requested."""
        return self._results.prompt_top_logprobs_of(self._index)

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
        whole = self.text or ""
        text = json.dumps(whole if len(whole) <= 60 else whole[:57] + "...", ensure_ascii=False)
        return f"Result(tag={self.tag}, text={text}, tokens={len(self.tokens)}, finish_reason={self.finish_reason!r})"

    __reduce_ex__ = refuse_pickle


class Results(ResultMemory, Sequence[Result]):
    """A batch of results as columns; `results[i]` and iteration give `Result`s.

    The columns are read-only memoryviews of the library's memory, which they keep alive:
    `numpy.asarray(results.tokens)` copies nothing. Item i of a column with offsets is
    column[offsets[i]:offsets[i + 1]].
    """

    def __init__(self, results: native.batchllm_results, row_index: Any = None, asked: Collection[str] = ()) -> None:
        super().__init__(results, asked)
        self._row_index = row_index  # the pandas index of the rows that were given, in their order
        self._report: Optional[Report] = None
        self._parser: Optional[Parser] = None  # of the JSON schema that all rows have

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

    @property
    def parsed(self) -> list[Any]:
        """Every result's value by the JSON schema that all rows had; None for a row that failed or was cut off."""
        return self._parser_for(True).values(self)

    def _parser_for(self, parsed: Any) -> Parser:
        if parsed is not True:
            return Parser(parsed)
        if self._parser is None:
            raise ValueError("parsed: these rows had no json_schema in common: give the schema")
        return self._parser

    def _parsed_array(self, parsed: Any) -> Any:
        return self._parser_for(parsed).array(self) if parsed else None

    def report(self) -> Report:
        """The page of a call made with `report=True`: what was shared, and how long everything took."""
        if self._report is None:
            raise ValueError("there is no report: make these results with report=True")
        return self._report

    def to_pylist(self) -> list[dict[str, Any]]:
        """Plain Python values, which can be pickled."""
        return [result.to_dict() for result in self]

    def to_arrow(self, *, samples: Samples = "rows", parsed: Any = False) -> Any:
        """A pyarrow.RecordBatch of the columns `columns`, which shares the library's memory, except for `finish_reason`
        and `error`.

        samples: "rows": a row for each sample; "lists": a row for each prompt, with lists of its samples' values.
        parsed: True adds a column `parsed` with the values of answers by the JSON schema that all rows had, as the Arrow
        type that the schema gives; a schema: by this one.
        """
        return frames.to_arrow(self, samples, self._parsed_array(parsed))

    def to_pandas(self, *, samples: Samples = "rows", parsed: Any = False) -> Any:
        """A pandas DataFrame of the columns `columns`; lists of numbers are read-only NumPy arrays over the library's
        memory. If the rows came from pandas, it has their index.

        samples, parsed: as in `to_arrow`.
        """
        values = self._parser_for(parsed).values(self) if parsed else None
        return frames.to_pandas(self, samples, self._row_index, values)

    def to_polars(self, *, samples: Samples = "rows", parsed: Any = False) -> Any:
        """A Polars DataFrame of the columns `columns`.

        samples, parsed: as in `to_arrow`.
        """
        return frames.to_polars(self, samples, self._parsed_array(parsed))

    def __repr__(self) -> str:
        return f"Results({self._count} results, {len(self.failed)} failed)"

    __reduce_ex__ = refuse_pickle


class RowError(Error):
    """A row failed and the call was told to raise. `results` has all rows, `row` is the first that failed."""

    def __init__(self, message: str, status: int = 0, row: int = 0, results: Results | None = None) -> None:
        super().__init__(message, status)
        self.row = row
        self.results = results

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.status, self.row)
