"""Sampling parameters: for all rows, or for each."""

from __future__ import annotations

import operator
from array import array
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Any, Iterable, Iterator, Mapping, Optional, Sequence, Union

from . import native

_INTEGERS = ("max_tokens", "top_k", "samples", "seed", "ignore_eos", "logprobs", "parse_special", "add_special")
_NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


@dataclass(frozen=True)
class SamplingParams:
    """How a row is continued. The defaults are the library's: greedy, up to 128 tokens.

    A value out of its range fails its row (`ROW_INVALID_PARAMETER`), not the call; one of another type, or beyond 32
    bits (64 for `seed`), fails the call.
    """

    max_tokens: int = 128
    """Most tokens generated."""
    temperature: float = 0.0
    """0: greedy; otherwise logits are divided by it."""
    top_p: float = 1.0
    min_p: float = 0.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    samples: int = 1
    """Results for this row."""
    seed: int = 0
    ignore_eos: bool = False
    logprobs: int = -1
    """-1: none; 0: of the chosen tokens; n: and of the n likeliest."""
    parse_special: bool = True
    """False: special tokens written in the text are plain text (for text from strangers)."""
    add_special: bool = True
    """The tokenizer's template adds BOS and the like."""
    stop_tokens: Sequence[int] = ()
    stop: Sequence[str] = ()
    """The text is cut before the first of these found."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    choices: Optional[Sequence[str]] = None
    """The output is one of these. At most one of the four is given; a wrong one fails the call."""
    regex: Optional[str] = None
    """All of the output matches."""
    json_schema: Any = None
    """The output is JSON of this schema: a mapping, a text, a pydantic model or a dataclass."""
    grammar: Union[str, Mapping[str, str], None] = None
    """The output is a text of this grammar: GBNF, or `{"lark": text}`."""
    start_after: str = ""
    """The four hold only behind this text in the output, such as `</think>`."""
    flexible_whitespace: bool = False
    """JSON may have a space, or a line end and an indent, between its parts; else it has none."""
    any_member_order: bool = False
    """Members of JSON objects come in any order; else in the order in which the schema names them."""
    any_numbers: bool = False
    """JSON numbers may be 12.0 for 12, and have exponents; else they are plain."""
    loose_schema: bool = False
    """What a schema asks that cannot be enforced exactly is passed over, and a warning in the log says what, by keyword
    and place; else it fails the call."""


Params = Union[SamplingParams, Sequence[SamplingParams], None]


def params_column(params: Params, rows: int) -> Optional[native.batchllm_params_column]:
    """The native column: None for defaults, of one item for all rows or of one for each."""
    if params is None:
        return None
    if isinstance(params, SamplingParams):
        return _column([params])
    if len(params) != rows:
        raise ValueError(f"{len(params)} params for {rows} rows")
    if rows == 0:
        return None
    for i, one in enumerate(params):
        if not isinstance(one, SamplingParams):
            raise TypeError(f"params {i} is {one!r}: SamplingParams are expected")
    if all(one is params[0] for one in params):
        return _column(params[:1])
    return _column(params)


def _offsets(lengths: Iterable[int]) -> array[int]:
    return array("q", accumulate(lengths, initial=0))


def _column(params: Sequence[SamplingParams]) -> native.batchllm_params_column:
    column = native.batchllm_params_column_create(len(params))
    default = SamplingParams()
    for name in _INTEGERS:
        get = operator.attrgetter(name)
        with _named(name):
            if any(get(one) != getattr(default, name) for one in params):
                if name == "seed":
                    values = array("q", array("Q", map(get, params)).tobytes())
                else:
                    values = array("q", map(get, params))
                native.batchllm_params_set_integers(column, name, values)
    for name in _NUMBERS:
        get = operator.attrgetter(name)
        with _named(name):
            if any(get(one) != getattr(default, name) for one in params):
                native.batchllm_params_set_numbers(column, name, array("d", map(get, params)))
    with _named("stop_tokens"):
        if any(len(one.stop_tokens) for one in params):
            tokens = array("i", chain.from_iterable(one.stop_tokens for one in params))
            native.batchllm_params_set_stop_tokens(column, tokens, _offsets(len(one.stop_tokens) for one in params))
    with _named("stop"):
        if any(len(one.stop) for one in params):
            _set_stop_strings(column, params)
    with _named("logit_bias"):
        if any(one.logit_bias for one in params):
            tokens = array("i", chain.from_iterable(one.logit_bias.keys() for one in params))
            biases = array("f", chain.from_iterable(one.logit_bias.values() for one in params))
            native.batchllm_params_set_biases(column, tokens, biases, _offsets(len(one.logit_bias) for one in params))
    return column


@contextmanager
def _named(field: str) -> Iterator[None]:
    """Puts the field's name before what is wrong with its type or size."""
    try:
        yield
    except OverflowError as fault:
        raise OverflowError(f"{field}: {fault}") from None
    except (TypeError, AttributeError) as fault:  # such as a list where a mapping is expected
        raise TypeError(f"{field}: {fault}") from None


def _set_stop_strings(column: native.batchllm_params_column, params: Sequence[SamplingParams]) -> None:
    for one in params:
        if isinstance(one.stop, str):
            raise TypeError("a list of strings is expected, not a string")
    texts = [text.encode() + b"\0" for text in chain.from_iterable(one.stop for one in params)]
    if any(text.find(b"\0") != len(text) - 1 for text in texts):
        raise ValueError("a stop string holds a zero byte")
    starts = _offsets(map(len, texts))[:-1]
    native.batchllm_params_set_stop_strings(column, b"".join(texts), starts, _offsets(len(one.stop) for one in params))
