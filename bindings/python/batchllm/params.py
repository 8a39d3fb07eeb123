"""Sampling parameters: one set for all rows, or one for each row."""

from __future__ import annotations

import operator
from array import array
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from itertools import accumulate, chain
from typing import Any, Callable, Iterable, Iterator, Mapping, Optional, Sequence, Union

from . import native

_INTEGERS = ("max_tokens", "top_k", "samples", "seed", "ignore_eos", "logprobs", "parse_special", "add_special",
             "min_tokens", "prompt_logprobs")
_NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


@dataclass(frozen=True, init=False)
class SamplingParams:
    """How text is generated for a row. The defaults are the library's: greedy, up to 128 tokens.

    A value out of range fails the call if all rows have the same parameters; if each row has its own, it only fails
    that row (`ROW_INVALID_PARAMETER`). A value of the wrong type, or beyond 32 bits (64 for `seed`), fails the call.

    max_tokens: maximum tokens generated, at least 1. A row ends earlier at an end-of-sequence token or at `stop`.
    temperature: 0: greedy, always the likeliest token. Otherwise logits are divided by it: values above 1 make the
    output more random.
    top_p: only the likeliest tokens that together have this probability can be chosen; above 0; 1: all.
    min_p: only tokens with at least this share of the likeliest token's probability can be chosen; below 1; 0: all.
    top_k: only this many of the likeliest tokens can be chosen; 0 or -1: all.
    repetition_penalty: above 1: tokens that are already in the prompt or the output become less likely (CTRL); 1: off.
    presence_penalty: from -2 to 2: subtracted from the logit of each token that is already in the output.
    frequency_penalty: from -2 to 2: subtracted from a token's logit once for each time it is in the output.
    samples: number of results for this row. They share its prompt; `Result.sample` numbers them.
    seed: determines the random numbers, together with the engine's seed, the row's number and the position. The same
    job always gives the same tokens. None means 0.
    ignore_eos: the model's end-of-sequence tokens do not end the row.
    logprobs: -1 or None: none; 0: those of the chosen tokens (`Result.logprobs`); n: also those of the n likeliest
    tokens (`top_logprobs`), up to 20.
    parse_special: False: special tokens spelled out in the text are plain text (for untrusted text).
    add_special: whether BOS and the like are added, as the tokenizer says.
    stop_tokens: token ids that end the row, in addition to the model's end-of-sequence tokens.
    stop: a str or a list of them; the row ends where the first one appears, and its text is cut before it.
    logit_bias: numbers that are added to the logits of token ids; -inf: never chosen.
    choices: the output is one of these. At most one of choices, regex, json_schema and grammar may be given; an invalid
    one fails the call.
    regex: the whole output matches this regular expression.
    json_schema: the output is JSON that matches this schema: a mapping, a str, a pydantic model or a dataclass.
    grammar: the output is a text of this grammar: GBNF, or `{"lark": text}`.
    start_after: these four apply only after this text has appeared in the output, such as `</think>`.
    flexible_whitespace: JSON may have a space, or a line break with an indent, between its parts; otherwise none.
    any_member_order: members of JSON objects may come in any order; otherwise in the schema's order.
    any_numbers: JSON numbers may be written as 12.0 for 12, and with exponents; otherwise in their plain form.
    loose_schema: requirements of a schema that cannot be enforced exactly are ignored, and a warning in the log lists
    them by keyword and place; otherwise they fail the call.
    n: the same as samples.
    stop_token_ids: the same as stop_tokens.
    min_tokens: this many tokens are generated before an end-of-sequence token or one of stop_token_ids can be chosen,
    and `stop` applies only after them; at most max_tokens.
    bad_words: texts that are never generated. Each is tokenized with and without a space before it; another spelling,
    or the same text as other tokens, is not covered.
    prompt_logprobs: -1 or None: none; 0: those of the prompt's tokens from the second on (`Result.prompt_logprobs`); n:
    also those of the n likeliest tokens at each position (`prompt_top_logprobs`), up to 20. Such a row shares no
    prefix: its whole prompt is computed for this row alone.
    """

    max_tokens: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    min_p: float = 0.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    samples: int = 1
    seed: Optional[int] = 0
    ignore_eos: bool = False
    logprobs: Optional[int] = -1
    parse_special: bool = True
    add_special: bool = True
    stop_tokens: Sequence[int] = ()
    stop: Union[str, Sequence[str]] = ()
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    choices: Optional[Sequence[str]] = None
    regex: Optional[str] = None
    json_schema: Any = None
    grammar: Union[str, Mapping[str, str], None] = None
    start_after: str = ""
    flexible_whitespace: bool = False
    any_member_order: bool = False
    any_numbers: bool = False
    loose_schema: bool = False
    min_tokens: int = 0
    bad_words: Sequence[str] = ()
    prompt_logprobs: Optional[int] = -1

    def __init__(
        self,
        max_tokens: int = 128,
        temperature: float = 0.0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        top_k: int = 0,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        samples: Optional[int] = None,
        seed: Optional[int] = 0,
        ignore_eos: bool = False,
        logprobs: Optional[int] = -1,
        parse_special: bool = True,
        add_special: bool = True,
        stop_tokens: Optional[Sequence[int]] = None,
        stop: Union[str, Sequence[str], None] = (),
        logit_bias: Optional[Mapping[int, float]] = None,
        choices: Optional[Sequence[str]] = None,
        regex: Optional[str] = None,
        json_schema: Any = None,
        grammar: Union[str, Mapping[str, str], None] = None,
        start_after: str = "",
        flexible_whitespace: bool = False,
        any_member_order: bool = False,
        any_numbers: bool = False,
        loose_schema: bool = False,
        *,
        min_tokens: int = 0,
        bad_words: Optional[Sequence[str]] = None,
        prompt_logprobs: Optional[int] = -1,
        n: Optional[int] = None,
        stop_token_ids: Optional[Sequence[int]] = None,
    ) -> None:
        given = dict(locals())
        if isinstance(bad_words, str):  # each of its letters would be taken as a word
            raise TypeError(f"bad_words: {bad_words!r} is a str: a list of them is expected")
        given["bad_words"] = () if bad_words is None else bad_words
        given["samples"] = _same("samples", samples, "n", n, 1)
        given["stop_tokens"] = _same("stop_tokens", stop_tokens, "stop_token_ids", stop_token_ids, ())
        given["stop"] = () if stop is None else stop
        given["logit_bias"] = {} if logit_bias is None else logit_bias
        for one in fields(self):
            object.__setattr__(self, one.name, given[one.name])

    @property
    def n(self) -> int:
        """The same as `samples`."""
        return self.samples

    @property
    def stop_token_ids(self) -> Sequence[int]:
        """The same as `stop_tokens`."""
        return self.stop_tokens


def _same(name: str, value: Any, other_name: str, other: Any, default: Any) -> Any:
    """The value of a parameter that has two names."""
    if other is None:
        return default if value is None else value
    if value is not None and value != default and value != other:
        raise ValueError(f"{name} is {value!r} and {other_name} is {other!r}: they are the same parameter, give one")
    return other


def asked_logprobs(params: SamplingParams) -> list[tuple[str, bool]]:
    """The columns of log-probabilities that the results have, and whether each lists the likeliest tokens."""
    found = []
    for name, top_name in (("logprobs", "top_logprobs"), ("prompt_logprobs", "prompt_top_logprobs")):
        asked = _or(getattr(params, name), -1)
        found += [(name, False)] * (asked >= 0) + [(top_name, True)] * (asked > 0)
    return found


Params = Union[SamplingParams, Sequence[SamplingParams], None]


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


def _or(value: Optional[int], none: int) -> int:
    return none if value is None else value


# Values that the C struct spells differently.
_WORDS: dict[str, Callable[[SamplingParams], int]] = {
    "top_k": lambda one: 0 if one.top_k == -1 else one.top_k,
    "seed": lambda one: _or(one.seed, 0),
    "logprobs": lambda one: _or(one.logprobs, -1),
    "prompt_logprobs": lambda one: _or(one.prompt_logprobs, -1),
}


def _offsets(lengths: Iterable[int]) -> array[int]:
    return array("q", accumulate(lengths, initial=0))


def _column(params: Sequence[SamplingParams]) -> native.batchllm_params_column:
    column = native.batchllm_params_column_create(len(params))
    default = SamplingParams()
    for name in _INTEGERS:
        get = _WORDS.get(name) or operator.attrgetter(name)
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
            lists = [[one.stop] if isinstance(one.stop, str) else one.stop for one in params]
            native.batchllm_params_set_stop_strings(column, *_texts("a stop string", lists))
    with _named("bad_words"):
        if any(len(one.bad_words) for one in params):
            bad = [one.bad_words for one in params]
            native.batchllm_params_set_bad_words(column, *_texts("a bad word", bad))
    with _named("logit_bias"):
        if any(one.logit_bias for one in params):
            tokens = array("i", chain.from_iterable(one.logit_bias.keys() for one in params))
            biases = array("f", chain.from_iterable(one.logit_bias.values() for one in params))
            native.batchllm_params_set_biases(column, tokens, biases, _offsets(len(one.logit_bias) for one in params))
    return column


@contextmanager
def _named(field: str) -> Iterator[None]:
    """Puts the field's name before an error about its type or size."""
    try:
        yield
    except OverflowError as fault:
        raise OverflowError(f"{field}: {fault}") from None
    except (TypeError, AttributeError) as fault:  # such as a list where a mapping is expected
        raise TypeError(f"{field}: {fault}") from None


def _texts(what: str, lists: Sequence[Sequence[str]]) -> tuple[bytes, array[int], array[int]]:
    """Zero-terminated texts, the offset of each, and the offsets of each row's texts."""
    texts = [text.encode() + b"\0" for text in chain.from_iterable(lists)]
    if any(text.find(b"\0") != len(text) - 1 for text in texts):
        raise ValueError(f"{what} holds a zero byte")
    return b"".join(texts), _offsets(map(len, texts))[:-1], _offsets(map(len, lists))
