"""Continuations to be scored: as columns, and added to an engine."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Optional, Sequence, Union

from . import native
from .columns import Chats, Texts, Tokens, from_texts, from_tokens, offsets_of
from .pictures import PictureColumn, picture_column


@dataclass(frozen=True)
class Continuations:
    """items with their offsets. Row i has the items [rows[i], rows[i + 1])."""

    items: Any
    offsets: array[int]
    rows: array[int]
    left: int
    """How many lists are left for rows that follow."""


def continuation_columns(
    column: Union[Texts, Chats, Tokens], continuations: Sequence[Any], first: int, n: int, places: Optional[Sequence[int]]
) -> Continuations:
    """The continuations of a column's rows, which are rows first to first + n of all rows. places: which of these n
    rows the column has, if not all."""
    text = not isinstance(column, Tokens)
    if isinstance(continuations, (str, bytes)):
        raise TypeError("continuations is one text: put it into a list")
    if len(continuations) == 0:
        raise ValueError("continuations is empty: each row has at least one")
    one = continuations[0]
    if not text and (mistake := _mistake_in([one], text)):
        raise TypeError(f"continuations: {mistake}")
    # A continuation is a str or a list of ids. If the items are lists of continuations, each item is for one row.
    per_row = not isinstance(one, (str, bytes)) if text else len(one) > 0 and not isinstance(one[0], Integral)
    if per_row:
        lists = continuations[first : first + n]
        if len(lists) < n:
            raise ValueError(f"continuations of {len(continuations)} rows for {first + n} rows or more")
        if places is not None:
            lists = [lists[i] for i in places]
    else:
        lists = [continuations] * len(column)
    left = len(continuations) - first - n if per_row else 0
    for i, row in enumerate(lists if per_row else lists[:1]):
        if mistake := _mistake_in(row, text):
            of = f" of row {first + (i if places is None else places[i])}" if per_row else ""
            raise TypeError(f"continuations{of}: {mistake}")
    flat = [item for row in lists for item in row]
    if text:
        texts = from_texts(flat)
        return Continuations(texts.data, texts.offsets, offsets_of(map(len, lists)), left)
    tokens = from_tokens(flat)
    return Continuations(tokens.tokens, tokens.offsets, offsets_of(map(len, lists)), left)


def _mistake_in(row: Any, text: bool) -> Optional[str]:
    """What is wrong with the list of one row; None: nothing."""
    if isinstance(row, (str, bytes)) or not hasattr(row, "__iter__"):
        return f"{_named(row)} in place of a list"
    for item in row:
        if isinstance(item, (str, bytes)) != text or not hasattr(item, "__iter__"):
            return f"{_named(item)} among {'texts' if text else 'lists of token ids'}"
    return None


def _named(item: Any) -> str:
    return "None" if item is None else "one text" if isinstance(item, (str, bytes)) else f"one {type(item).__name__}"


def add_scored_part(
    engine: native.batchllm_engine,
    part: Union[Texts, Chats, Tokens],
    tags: array[int],
    scored: Continuations,
    special: Optional[native.batchllm_params_column],
    pictures: Optional[PictureColumn] = None,
) -> None:
    """Adds rows with their continuations. special: how texts are tokenized, and the rows' adapter."""
    items, offsets, rows = scored.items, scored.offsets, scored.rows
    if pictures is not None and isinstance(part, Tokens):
        raise TypeError("images: rows with pictures are texts or conversations")
    if pictures is not None or isinstance(part, Chats):
        pictures = pictures or picture_column([None] * len(part))
        native.batchllm_add_score_picture_columns(
            engine,
            isinstance(part, Chats),
            part.data,  # type: ignore[union-attr]
            part.offsets,
            pictures.rows,
            pictures.data,
            pictures.offsets,
            pictures.kinds,
            items,
            offsets,
            rows,
            tags,
            special,
        )
    elif isinstance(part, Texts):
        native.batchllm_add_score_text_columns(
            engine, part.data, part.offsets, items, offsets, rows, tags, special
        )
    else:
        native.batchllm_add_score_columns(engine, part.tokens, part.offsets, items, offsets, rows, tags, special)
