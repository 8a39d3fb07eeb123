"""The parts of a column that are added to an engine in one call each: its rows, and its nulls."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any, Iterator, Optional, Sequence, TypeVar, Union

from . import native
from .columns import Chats, Column, Sparse, Texts, Tokens
from .pictures import PictureColumn
from .table import Table



@dataclass(frozen=True)
class Nulls:
    """Rows without a prompt."""

    rows: int

    def __len__(self) -> int:
        return self.rows


Part = Union[Texts, Tokens, Chats, Table, Nulls]
_Items = TypeVar("_Items", bound=Sequence[Any])


def parts_of(column: Union[Column, Table]) -> Iterator[tuple[Part, Optional[Sequence[int]]]]:
    """The parts of a column that are added in one call each, with the numbers of their rows; None: all rows."""
    if not isinstance(column, Sparse):
        yield column, None
        return
    if len(column.given):
        yield column.given, column.places()
    yield Nulls(len(column.nulls)), column.nulls


def picked(items: _Items, places: Optional[Sequence[int]]) -> _Items:
    if places is None:
        return items
    found = [items[i] for i in places]
    return array(items.typecode, found) if isinstance(items, array) else found  # type: ignore[return-value]


def add_part(
    engine: native.batchllm_engine,
    column: Part,
    tags: array[int],
    params: Optional[native.batchllm_params_column],
    pictures: Optional[PictureColumn] = None,
) -> None:
    if pictures is not None and isinstance(column, (Texts, Chats)):
        native.batchllm_add_picture_columns(
            engine,
            isinstance(column, Chats),
            column.data,
            column.offsets,
            pictures.rows,
            pictures.data,
            pictures.offsets,
            pictures.kinds,
            tags,
            params,
        )
    elif pictures is not None and isinstance(column, Table):
        native.batchllm_add_table_picture_rows(
            engine, column._native, pictures.rows, pictures.data, pictures.offsets, pictures.kinds, tags, params
        )
    elif pictures is not None and not isinstance(column, Nulls):
        raise TypeError("images: rows with pictures are texts, conversations or a table")
    elif isinstance(column, Nulls):
        native.batchllm_add_null_rows(engine, tags, params)
    elif isinstance(column, Table):
        native.batchllm_add_table_rows(engine, column._native, tags, params)
    elif isinstance(column, Texts):
        native.batchllm_add_text_column(engine, column.data, column.offsets, tags, params)
    elif isinstance(column, Tokens):
        native.batchllm_add_token_column(engine, column.tokens, column.offsets, tags, params)
    else:
        native.batchllm_add_chat_column(engine, column.data, column.offsets, tags, params)
