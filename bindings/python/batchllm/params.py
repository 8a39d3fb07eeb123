"""Sampling parameters: for all rows, or for each."""

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
    """How a row is continued. The defaults are the library's: greedy, up to 128 tokens.

    One for all rows whose value is out of its range fails the call; where each row has its own, it fails its row
    (`ROW_INVALID_PARAMETER`). A value of another type, or beyond 32 bits (64 for `seed`), fails the call.

    max_tokens: most tokens generated, at least 1; the row ends earlier at an end-of-sequence token or where `stop`
    says.
    temperature: 0: greedy, the likeliest token each time; otherwise logits are divided by it, so that above 1 is more
    random.
    top_p: only the likeliest tokens that together have this probability can be chosen; above 0, 1: all.
    min_p: only tokens at least this many times as likely as the likeliest can be chosen; below 1, 0: all.
    top_k: only so many of the likeliest tokens can be chosen; 0 or -1: all.
    repetition_penalty: above 1: tokens that prompt or output have already become less likely (CTRL); 1: off.
    presence_penalty: from -2 to 2, taken off the logit of a token that the output has already.
    frequency_penalty: from -2 to 2, taken off the logit of a token once for each time that the output has it.
    samples: results for this row, which share its prompt; `Result.sample` says which one a result is.
    seed: with the engine's seed, the row's number and the position it fixes the random numbers: the same job gives
    the same tokens. None is 0.
    ignore_eos: the model's end-of-sequence tokens do not end the row.
    logprobs: -1 or None: none; 0: of the chosen tokens (`Result.logprobs`); n: and of the n likeliest
    (`top_logprobs`), up to 20.
    parse_special: False: special tokens written in the text are plain text (for text from strangers).
    add_special: the tokenizer's template adds BOS and the like.
    stop_tokens: token ids that end the row, besides the model's end-of-sequence tokens.
    stop: the text is cut before the first of these found; a str is one of them.
    logit_bias: added to the logits of these token ids; -inf: never chosen.
    choices: the output is one of these. At most one of choices, regex, json_schema and grammar is given; a wrong one
    fails the call.
    regex: all of the output matches this regular expression.
    json_schema: the output is JSON of this schema: a mapping, a text, a pydantic model or a dataclass.
    grammar: the output is a text of this grammar: GBNF, or `{"lark": text}`.
    start_after: those four hold only behind this text in the output, such as `</think>`.
    flexible_whitespace: JSON may have a space, or a line end and an indent, between its parts; else it has none.
    any_member_order: members of JSON objects come in any order; else in the order in which the schema names them.
    any_numbers: JSON numbers may be 12.0 for 12, and have exponents; else they are plain.
    loose_schema: what a schema asks that cannot be enforced exactly is passed over, and a warning in the log says
    what, by keyword and place; else it fails the call.
    n: the same as samples.
    stop_token_ids: the same as stop_tokens.
    min_tokens: none of the first so many tokens is an end-of-sequence token or of stop_token_ids, and `stop` counts
    only behind them; at most max_tokens.
    bad_words: texts that are not generated, each tokenized with a space before it and without. Another spelling, or
    the same text in other tokens, is another word.
    prompt_logprobs: -1 or None: none; 0: of the prompt's own tokens from the second on (`Result.prompt_logprobs`); n:
    and of the n likeliest in their places (`prompt_top_logprobs`), up to 20. Such a row computes its whole prompt for
    itself: it shares no prefix with other rows.
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
        if isinstance(bad_words, str):  # whose letters would be the words
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
    """Of two names for one parameter the one that is given."""
    if other is None:
        return default if value is None else value
    if value is not None and value != default and value != other:
        raise ValueError(f"{name} is {value!r} and {other_name} is {other!r}: they are the same parameter, give one")
    return other


def asked_logprobs(params: SamplingParams) -> list[tuple[str, bool]]:
    """The columns of log-probabilities that results then have, and whether each lists the likeliest."""
    found = []
    for name, top_name in (("logprobs", "top_logprobs"), ("prompt_logprobs", "prompt_top_logprobs")):
        asked = _or(getattr(params, name), -1)
        found += [(name, False)] * (asked >= 0) + [(top_name, True)] * (asked > 0)
    return found


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


def _or(value: Optional[int], none: int) -> int:
    return none if value is None else value


# What stands for a number in the C struct.
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
    """Puts the field's name before what is wrong with its type or size."""
    try:
        yield
    except OverflowError as fault:
        raise OverflowError(f"{field}: {fault}") from None
    except (TypeError, AttributeError) as fault:  # such as a list where a mapping is expected
        raise TypeError(f"{field}: {fault}") from None


def _texts(what: str, lists: Sequence[Sequence[str]]) -> tuple[bytes, array[int], array[int]]:
    """Texts that end in a zero byte, where each begins, and which are whose."""
    texts = [text.encode() + b"\0" for text in chain.from_iterable(lists)]
    if any(text.find(b"\0") != len(text) - 1 for text in texts):
        raise ValueError(f"{what} holds a zero byte")
    return b"".join(texts), _offsets(map(len, texts))[:-1], _offsets(map(len, lists))
