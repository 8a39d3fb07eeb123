"""Sampling parameters, one set for all rows or one for each row -> a native column of them."""

from __future__ import annotations

from array import array
from contextlib import contextmanager
from itertools import accumulate, chain
from operator import attrgetter
from typing import Any, Callable, Iterable, Iterator, Mapping, Optional, Sequence, TypeVar, Union

from . import native
from .errors import InvalidArgumentError
from .sampling_params import PARAMETERS, Parameter, SamplingParams

__all__ = ["Params", "SamplingParams", "asked_columns", "asked_logprobs", "params_column", "rows_of"]


def asked_logprobs(params: SamplingParams) -> list[tuple[str, bool]]:
    """The columns of log-probabilities that the results have, and whether each lists the likeliest tokens."""
    found = []
    for name, top_name in (("logprobs", "top_logprobs"), ("prompt_logprobs", "prompt_top_logprobs")):
        asked = -1 if getattr(params, name) is None else getattr(params, name)
        found += [(name, False)] * (asked >= 0) + [(top_name, True)] * (asked > 0)
    return found


Params = Union[SamplingParams, Sequence[SamplingParams], None]


def asked_columns(params: Params) -> frozenset[str]:
    """The columns of log-probabilities that at least one of the rows asks for."""
    return frozenset(name for names in rows_of(params, lambda one: tuple(asked_logprobs(one))) for name, _ in names)


_Asked = TypeVar("_Asked")


def params_column(params: Params, rows: int) -> Optional[native.batchllm_params_column]:
    """The native column: None for the defaults, else with one item for all rows or one for each row."""
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


def rows_of(params: Params, asked: Callable[[SamplingParams], Optional[_Asked]]) -> dict[_Asked, array[int]]:
    """{what parameters ask for: the numbers of these in their column}. asked: what one asks for; None: nothing."""
    rows = [] if params is None else [params] if isinstance(params, SamplingParams) else params
    if all(one is rows[0] for one in rows):
        rows = rows[:1]  # as in the column
    known: dict[int, Optional[_Asked]] = {}  # the same object always asks for the same
    found: dict[_Asked, array[int]] = {}
    for row, one in enumerate(rows):
        if id(one) not in known:
            known[id(one)] = asked(one)
        key = known[id(one)]
        if key is not None:
            found.setdefault(key, array("q")).append(row)
    return found


def _offsets(lengths: Iterable[int]) -> array[int]:
    return array("q", accumulate(lengths, initial=0))


def _column(params: Sequence[SamplingParams]) -> native.batchllm_params_column:
    column = native.batchllm_params_column_create(len(params))
    default = SamplingParams()
    for one in PARAMETERS:
        if not hasattr(default, one.python_name):  # of embedded rows
            continue
        values = list(map(attrgetter(one.python_name), params))
        usual = getattr(default, one.python_name)
        with _named(one, values):
            if one.kind in _LIST_SETTERS:
                if any(map(len, values)):
                    _LIST_SETTERS[one.kind](column, one, values)
            elif values.count(usual) < len(values):
                if one.kind in ("Seed", "Likeliest"):
                    values = [usual if value is None else value for value in values]
                _SETTERS[one.kind](column, one.name, values)
    return column


def _set_integers(column: native.batchllm_params_column, name: str, values: list[int]) -> None:
    native.batchllm_params_set_integers(column, name, array("q", array("i", values)))


def _set_seeds(column: native.batchllm_params_column, name: str, values: list[int]) -> None:
    native.batchllm_params_set_integers(column, name, array("q", array("Q", values).tobytes()))


def _set_numbers(column: native.batchllm_params_column, name: str, values: list[float]) -> None:
    native.batchllm_params_set_numbers(column, name, array("d", values))


_SETTERS: dict[str, Callable[[native.batchllm_params_column, str, list[Any]], None]] = {
    "Whole": _set_integers,
    "Flag": _set_integers,
    "Likeliest": _set_integers,
    "Seed": _set_seeds,
    "Number": _set_numbers,
}


def _set_tokens(column: native.batchllm_params_column, one: Parameter, lists: list[Sequence[int]]) -> None:
    native.batchllm_params_set_tokens(column, one.name, array("i", chain.from_iterable(lists)), _offsets(map(len, lists)))


def _set_texts(column: native.batchllm_params_column, one: Parameter, values: list[Union[str, Sequence[str]]]) -> None:
    """Each text is followed by a zero byte."""
    lists = [[value] if isinstance(value, str) else value for value in values]
    texts = [text.encode() + b"\0" for text in chain.from_iterable(lists)]
    if any(text.find(b"\0") != len(text) - 1 for text in texts):
        raise ValueError(f"{one.python_name}: a text holds a zero byte")
    starts = _offsets(map(len, texts))[:-1]
    native.batchllm_params_set_texts(column, one.name, b"".join(texts), starts, _offsets(map(len, lists)))


def _set_biases(column: native.batchllm_params_column, one: Parameter, values: list[Mapping[int, float]]) -> None:
    tokens = array("i", chain.from_iterable(value.keys() for value in values))
    biases = array("f", chain.from_iterable(value.values() for value in values))
    native.batchllm_params_set_biases(column, one.name, tokens, biases, _offsets(map(len, values)))


_LIST_SETTERS: dict[str, Callable[[native.batchllm_params_column, Parameter, list[Any]], None]] = {
    "Tokens": _set_tokens,
    "Texts": _set_texts,
    "Biases": _set_biases,
}


_INSTEAD_OF_NONE = {"max_tokens": "; 1 << 30 lets a row go on to the engine's max_request_tokens"}
"""What None means elsewhere (docs/coming-from-vllm.md)."""


@contextmanager
def _named(one: Parameter, values: Sequence[Any]) -> Iterator[None]:
    """Makes an error about a field's type or size name the field, and the value and the range."""
    field = one.python_name
    try:
        yield
    except OverflowError as fault:
        items = values if one.kind in _SETTERS else chain.from_iterable(values)
        low, high = (0, (1 << 64) - 1) if one.kind == "Seed" else (-(1 << 31), (1 << 31) - 1)
        beyond = next((item for item in items if isinstance(item, int) and not low <= item <= high), None)
        if beyond is None or one.kind == "Number":
            raise InvalidArgumentError(f"{field}: {fault}") from None
        wanted = f"{one.range}, of 32 bits" if one.kind in ("Whole", "Likeliest") else f"from 0 to {high}"
        raise InvalidArgumentError(f"{field} is {beyond}: must be {wanted}") from None
    except (TypeError, AttributeError) as fault:  # such as a list where a mapping is expected
        if one.kind in _SETTERS and any(value is None for value in values):
            raise TypeError(f"{field} is None: must be {one.range}{_INSTEAD_OF_NONE.get(field, '')}") from None
        raise TypeError(f"{field}: {fault}") from None

