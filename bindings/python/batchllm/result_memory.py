"""Results as the library's memory holds them: columns."""

from __future__ import annotations

from typing import Any, Callable, Collection, Optional

from . import native
from .errors import status_name

FINISH_REASONS = {number: native.batchllm_finish_name(number) for number in range(1, 8)}


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


def _pairs(
    offsets: memoryview[int], tokens: memoryview[int], logprobs: memoryview[float]
) -> list[list[tuple[int, float]]]:
    return [[(tokens[j], logprobs[j]) for j in range(begin, end)] for begin, end in zip(offsets, offsets[1:])]


def _column(name: str, what: str) -> Any:
    getter: Callable[[native.batchllm_results], memoryview[Any]] = getattr(native, f"batchllm_results_column_{name}")
    slot = f"_{name}"

    def read(self: ResultMemory) -> memoryview[Any]:
        found: Optional[memoryview[Any]] = self.__dict__.get(slot)
        if found is None:
            found = self.__dict__[slot] = getter(self._native)
        return found

    return property(read, doc=what)


class ResultMemory:
    """A batch of results as columns.

    The columns are read-only memoryviews of the library's memory, which they keep alive. Item i of a column with offsets
    is column[offsets[i]:offsets[i + 1]].
    """

    def __init__(self, results: native.batchllm_results, asked: Collection[str] = ()) -> None:
        """asked: columns that there are even if no result has an item, as of prompts of one token."""
        self._native, self._asked = results, asked
        self._count = results.count
        self._columns: Optional[tuple[str, ...]] = None

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

    def finish_reason_of(self, index: int) -> str:
        """Why one result ended."""
        return FINISH_REASONS[self.finish_reasons[index]]

    def top_logprobs_of(self, index: int) -> list[list[tuple[int, float]]]:
        """For each of one result's tokens, the likeliest tokens as (token, logprob)."""
        first, last = self.logprob_offsets[index], self.logprob_offsets[index + 1]
        return _pairs(self.top_offsets[first : last + 1], self.top_tokens, self.top_logprobs)

    def prompt_top_logprobs_of(self, index: int) -> list[list[tuple[int, float]]]:
        """The same for one result's prompt."""
        first, last = self.prompt_logprob_offsets[index], self.prompt_logprob_offsets[index + 1]
        return _pairs(self.prompt_top_offsets[first : last + 1], self.prompt_top_tokens, self.prompt_top_logprobs)

    def text_of(self, index: int) -> Optional[str]:
        """One result's text; None for a row that failed."""
        if self.statuses[index] != 0:
            return None
        offsets = self.text_offsets
        return str(self.text[offsets[index] : offsets[index + 1]], "utf-8", "replace")

    def error_text(self, index: int) -> str:
        """One result's error text; "" if there is none."""
        offsets = self.error_offsets
        return str(self.error_bytes[offsets[index] : offsets[index + 1]], "utf-8", "replace")

    def error_of(self, index: int) -> Optional[str]:
        """One result's error, with its name; None if there is none."""
        status = self.statuses[index]
        return None if status == 0 else f"{status_name(status)}: {self.error_text(index)}"

    @property
    def texts(self) -> list[Optional[str]]:
        """Every result's text; None for a row that failed."""
        return [self.text_of(i) for i in range(self._count)]

    @property
    def errors(self) -> list[Optional[str]]:
        """Every result's error; None for a result without one."""
        return [self.error_of(i) for i in range(self._count)]

    @property
    def failed(self) -> list[int]:
        """The indices of the results that failed."""
        return [i for i, status in enumerate(self.statuses) if status]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of `to_pandas` and similar methods: those of all results, those of at least one, and
        those that were asked for."""
        if self._columns is None:
            self._columns = ALWAYS + tuple(
                name for name, within in ASKED.items() if name in self._asked or len(getattr(self, within))
            )
        return self._columns

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """Arrow's C data interface: a struct array of the columns `columns`."""
        asked = sum(1 << i for i, name in enumerate(ASKED) if name in self.columns)
        return native.batchllm_arrow_write(self._native, asked)
