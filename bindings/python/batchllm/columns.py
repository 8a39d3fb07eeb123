"""Rows as a caller has them -> columns, which the library reads in place.

Accepted as rows: a list of str; a list of lists of token ids; a list of conversations (lists of
{"role": .., "content": ..}, or dicts with "messages", "tools" and what else batchllm_add_chat takes); `Texts` or `Tokens` over buffers such as NumPy arrays; a 2-d int32
array; a pandas Series of any of these; whatever has `__arrow_c_array__` or `__arrow_c_stream__`
(pyarrow, polars, DuckDB ..) of type utf8, large_utf8, list<int32> or large_list<int32>.
"""

from __future__ import annotations

import json
import sys
from array import array
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, Iterable, Iterator, Sequence, Union

from . import native


@dataclass(frozen=True)
class Texts:
    """Texts in one buffer of UTF-8 bytes; text i is data[offsets[i]:offsets[i + 1]].

    Any contiguous buffers: bytes, memoryview, NumPy arrays of uint8 and of int64.
    """

    data: Any
    offsets: Any

    def __len__(self) -> int:
        return len(self.offsets) - 1


@dataclass(frozen=True)
class Tokens:
    """Token ids in one buffer of int32; row i is tokens[offsets[i]:offsets[i + 1]], offsets int64."""

    tokens: Any
    offsets: Any

    def __len__(self) -> int:
        return len(self.offsets) - 1


@dataclass(frozen=True)
class Chats:
    """Conversations, each as JSON: a list of {"role": .., "content": ..}, or an object as batchllm_add_chat has it."""

    data: Any
    offsets: Any

    def __len__(self) -> int:
        return len(self.offsets) - 1


Column = Union[Texts, Tokens, Chats]
Rows = Any
"""See the module's text."""


def columns(rows: Rows) -> Iterator[Column]:
    """One column or, from an Arrow stream, one a chunk."""
    if isinstance(rows, (Texts, Tokens, Chats)):
        if getattr(rows.offsets, "ndim", 1) != 1 or len(rows.offsets) == 0:
            raise ValueError("offsets have one dimension and, for n rows, n + 1 items")
        for name in rows.__dataclass_fields__:
            _check_mask(name, getattr(rows, name))
        yield rows
    elif isinstance(rows, (str, bytes, dict)):
        raise TypeError(f"rows is one {type(rows).__name__}: put it into a list")
    elif hasattr(rows, "dtype") and hasattr(rows, "to_list"):
        yield from _series(rows)
    elif hasattr(rows, "__arrow_c_array__"):
        yield _arrow(native.batchllm_arrow_read(*rows.__arrow_c_array__()))
    elif hasattr(rows, "__arrow_c_stream__"):
        yield from _arrow_stream(rows)
    elif hasattr(rows, "dtype") and hasattr(rows, "tolist"):
        yield _numpy(rows)
    else:
        yield from_list(rows if isinstance(rows, (list, tuple)) else list(rows))


def text_column(rows: Rows) -> Texts:
    """Rows that must be text, as one column."""
    found = list(columns(rows))
    if len(found) == 1 and isinstance(found[0], Texts):
        return found[0]
    if found and all(isinstance(column, Texts) for column in found):
        return from_texts(_bytes_rows(found))
    if not found or all(len(column) == 0 for column in found):
        return Texts(b"", array("q", [0]))
    raise TypeError("texts are expected")


def token_column(rows: Rows) -> Tokens:
    """Rows that must be token ids, as one column."""
    found = list(columns(rows))
    if len(found) == 1 and isinstance(found[0], Tokens):
        return found[0]
    if found and all(isinstance(column, Tokens) for column in found):
        return from_tokens(_token_rows(found))
    if not found or all(len(column) == 0 for column in found):
        return Tokens(array("i"), array("q", [0]))
    raise TypeError("rows of token ids are expected")


def chat_column(rows: Rows) -> Chats:
    """Rows that must be conversations, as one column."""
    found = list(columns(rows))
    if len(found) == 1 and isinstance(found[0], Chats):
        return found[0]
    if not found or all(len(column) == 0 for column in found):
        return Chats(b"", array("q", [0]))
    raise TypeError("conversations are expected: lists of {'role': .., 'content': ..}")


def _token_rows(found: Iterable[Column]) -> list[memoryview[int]]:
    return [
        memoryview(column.tokens)[start:end]
        for column in found
        if isinstance(column, Tokens)
        for start, end in zip(column.offsets, column.offsets[1:])
    ]


def _bytes_rows(found: Iterable[Column]) -> list[bytes]:
    return [
        bytes(memoryview(column.data)[start:end])
        for column in found
        if isinstance(column, Texts)
        for start, end in zip(column.offsets, column.offsets[1:])
    ]


def offsets_of(lengths: Iterable[int]) -> array[int]:
    """Lengths -> n + 1 offsets."""
    return array("q", accumulate(lengths, initial=0))


def from_texts(rows: Sequence[Union[str, bytes]]) -> Texts:
    """A list of str (or of UTF-8 bytes)."""
    try:
        joined = "".join(rows)  # type: ignore[arg-type]
    except TypeError:
        joined = ""
    if joined.isascii() and joined:
        return Texts(joined.encode("ascii"), offsets_of(map(len, rows)))
    # A lone surrogate has no UTF-8; passed on as it is, it fails its row and no other.
    encoded = [row.encode("utf-8", "surrogatepass") if isinstance(row, str) else bytes(row) for row in rows]
    return Texts(b"".join(encoded), offsets_of(map(len, encoded)))


def from_tokens(rows: Sequence[Iterable[int]]) -> Tokens:
    """A list of lists of token ids."""
    tokens = array("i")
    offsets = array("q", [0])
    for i, row in enumerate(rows):
        try:
            # An array takes another of its own type alone, and anything that can be iterated.
            tokens.extend(iter(row) if isinstance(row, array) and row.typecode != "i" else row)
        except OverflowError:
            raise ValueError(f"row {i}: a token id is beyond 32 bits") from None
        except TypeError as fault:
            raise TypeError(f"row {i}: {fault}") from None
        offsets.append(len(tokens))
    return Tokens(tokens, offsets)


def from_conversations(rows: Sequence[Any]) -> Chats:
    """A list of lists of messages, or of dicts with "messages" and more."""
    for i, row in enumerate(rows):
        if isinstance(row, dict) and "messages" not in row:
            if "role" in row:
                raise TypeError("rows is one conversation: put it into a list")
            raise TypeError(f"row {i} is a dict without 'messages', and no conversation")
    encoded = [json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogatepass") for row in rows]
    return Chats(b"".join(encoded), offsets_of(map(len, encoded)))


def from_list(rows: Sequence[Any]) -> Column:
    """A list, of what its first row shows."""
    for i, row in enumerate(rows):
        if _is_null(row):
            raise ValueError(f"row {i} is null")
        if not isinstance(row, (str, bytes)) and not hasattr(row, "__len__"):
            raise TypeError(f"row {i} is one {type(row).__name__}: rows are texts or lists")
    first = next((row for row in rows if isinstance(row, (str, bytes)) or len(row) > 0), "")
    if isinstance(first, (str, bytes)):
        if not all(isinstance(row, (str, bytes)) for row in rows):
            other = next(i for i, row in enumerate(rows) if not isinstance(row, (str, bytes)))
            raise TypeError(f"row {other} is no text, as the rows before it are")
        return from_texts(rows)
    if isinstance(first, dict) or isinstance(first[0], dict):
        return from_conversations(rows)
    return from_tokens(rows)


def _is_null(row: Any) -> bool:
    return row is None or type(row).__name__ in ("NAType", "NaTType") or (isinstance(row, float) and row != row)


def _check_mask(name: str, buffer: Any) -> None:
    """A NumPy array with a mask hands out its buffer as if it had none."""
    ma = sys.modules.get("numpy.ma")  # where nobody has imported it, there is no such array
    if ma is not None and ma.is_masked(buffer):
        where = tuple(map(int, next(zip(*ma.getmaskarray(buffer).nonzero()))))
        raise ValueError(f"{name}: item {where if len(where) > 1 else where[0]} is masked: fill or leave out masked items")


def _arrow(parts: tuple[str, memoryview, memoryview]) -> Column:
    kind, data, offsets = parts
    return Texts(data, offsets) if kind == "text" else Tokens(data, offsets)


def _arrow_stream(rows: Any) -> Iterator[Column]:
    stream = native.batchllm_arrow_open(rows.__arrow_c_stream__())
    while (parts := native.batchllm_arrow_next(stream)) is not None:
        yield _arrow(parts)


def _series(rows: Any) -> Iterator[Column]:
    """A pandas (or polars) Series. A column of Python objects has nothing to share with Arrow."""
    if str(rows.dtype) != "object" and hasattr(rows, "__arrow_c_stream__"):
        try:
            stream = rows.__arrow_c_stream__()
        except ImportError:  # pandas hands out Arrow through pyarrow alone
            pass
        else:
            opened = native.batchllm_arrow_open(stream)
            while (parts := native.batchllm_arrow_next(opened)) is not None:
                yield _arrow(parts)
            return
    yield from_list(rows.to_list())


def _numpy(rows: Any) -> Column:
    """An array: of objects or of texts row by row; two dimensions of int32 are rows of equal length."""
    if rows.size == 0:
        return Tokens(array("i"), offsets_of([0] * rows.shape[0]))
    if rows.ndim == 2 and rows.dtype.kind in "iu":
        _check_mask("rows", rows)
        # One dimension of the same memory; of a copy, where its rows do not lie one after the other.
        return Tokens(rows.ravel(), offsets_of([rows.shape[1]] * rows.shape[0]))
    if rows.ndim == 1 and rows.dtype.kind in "OUST":
        return from_list(rows.tolist())
    raise TypeError(f"an array of {rows.ndim} dimensions of {rows.dtype}: use batchllm.Tokens(tokens, offsets)")
