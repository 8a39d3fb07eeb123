"""Continuations to be scored -> columns."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Sequence

from .columns import Column, Texts, from_texts, from_tokens, offsets_of


@dataclass(frozen=True)
class Continuations:
    """items with offsets, and which of them are row i's: [rows[i], rows[i + 1])."""

    items: Any
    offsets: array[int]
    rows: array[int]
    left: int
    """Lists that are of no row so far."""


def continuation_columns(column: Column, continuations: Sequence[Any], first: int) -> Continuations:
    """For the rows of a column, which begins with row `first` of all."""
    n = len(column)
    text = isinstance(column, Texts)
    if isinstance(continuations, (str, bytes)):
        raise TypeError("continuations is one text: put it into a list")
    if len(continuations) == 0:
        raise ValueError("continuations is empty: each row has at least one")
    one = continuations[0]
    # A continuation is a str or a list of ids; a list of those is one row's.
    per_row = not isinstance(one, (str, bytes)) if text else len(one) > 0 and not isinstance(one[0], Integral)
    if per_row:
        lists = continuations[first : first + n]
        if len(lists) < n:
            raise ValueError(f"continuations of {len(continuations)} rows for more rows")
    else:
        lists = [continuations] * n
    left = len(continuations) - first - n if per_row else 0
    flat = [item for row in lists for item in row]
    if text:
        texts = from_texts(flat)
        return Continuations(texts.data, texts.offsets, offsets_of(map(len, lists)), left)
    tokens = from_tokens(flat)
    return Continuations(tokens.tokens, tokens.offsets, offsets_of(map(len, lists)), left)
