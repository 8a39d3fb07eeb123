"""Turns rows in the forms that callers have into columns, which the library reads in place.

Accepted as rows: a list of str; a list of lists of token ids; a list of conversations (lists of
{"role": .., "content": ..}, or dicts with "messages", "tools" and other members that batchllm_add_chat accepts); a list
of {"prompt": text} or {"prompt_token_ids": ids}; `Texts` or `Tokens` over buffers such as NumPy arrays; a 2-d int32
array; a pandas Series of any of these; any object with `__arrow_c_array__` or `__arrow_c_stream__` (pyarrow, Polars,
DuckDB ..) that holds texts (utf8, large_utf8, string_view, dictionaries of them), lists of integers, or a table with
one such column. A row that is null (None, NaN, NA, an Arrow null) has an error as its result.
"""

from __future__ import annotations

import json
import sys
from array import array
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Iterable, Iterator, Mapping, Optional, Protocol, Sequence, Union

from . import native


@dataclass(frozen=True)
class Texts:
    """Texts in one buffer of UTF-8 bytes; text i is data[offsets[i]:offsets[i + 1]].

    Any contiguous buffers will do: bytes, memoryview, NumPy arrays of uint8 and int64.
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
    """Conversations, each as JSON: a list of {"role": .., "content": ..}, or an object as in batchllm_add_chat."""

    data: Any
    offsets: Any

    def __len__(self) -> int:
        return len(self.offsets) - 1


@dataclass(frozen=True)
class Sparse:
    """Rows, some of which are null."""

    given: Union[Texts, Tokens, Chats]
    """The rows that are not null."""
    nulls: Sequence[int]
    """The numbers of the null rows, rising."""

    def __len__(self) -> int:
        return len(self.given) + len(self.nulls)

    def places(self) -> list[int]:
        """The numbers of the rows that are not null."""
        null = set(self.nulls)
        return [i for i in range(len(self)) if i not in null]


Column = Union[Texts, Tokens, Chats, Sparse]


class ArrowStream(Protocol):
    """An object with Arrow's stream of columns: Polars, pyarrow, DuckDB .."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...


class ArrowArray(Protocol):
    """An object with an Arrow array."""

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any: ...


class Pandas(Protocol):
    """A pandas Series or DataFrame."""

    @property
    def iloc(self) -> Any: ...


class NumPy(Protocol):
    """A NumPy array."""

    @property
    def dtype(self) -> Any: ...

    def tolist(self) -> Any: ...


Row = Union[str, bytes, Sequence[int], Mapping[str, Any], Sequence[Mapping[str, Any]], None]
Rows = Union[Iterable[Row], Texts, Tokens, Chats, Sparse, ArrowArray, ArrowStream, Pandas, NumPy]
"""Described at the top of this module."""


def columns(rows: Any) -> Iterator[Column]:
    """One column; from an Arrow stream one for each chunk."""
    if isinstance(rows, (Texts, Tokens, Chats)):
        if getattr(rows.offsets, "ndim", 1) != 1 or len(rows.offsets) == 0:
            raise ValueError("offsets have one dimension and, for n rows, n + 1 items")
        for name in rows.__dataclass_fields__:
            _check_mask(name, getattr(rows, name))
        yield rows
    elif isinstance(rows, Sparse):  # a class of this package
        yield rows
    elif isinstance(rows, (str, bytes, dict)):
        raise TypeError(f"rows is one {type(rows).__name__}: put it into a list")
    elif type(rows).__name__ == "LazyFrame":
        raise TypeError("rows is one LazyFrame of Polars: collect() makes its rows")
    elif hasattr(rows, "iloc") and hasattr(rows, "columns"):  # pandas, which needs pyarrow for its stream
        if len(rows.columns) != 1:
            raise TypeError(
                f"a table of {len(rows.columns)} columns: pass the one with the prompts, or use generate_table with a template"
            )
        yield from _series(rows[rows.columns[0]])
    elif hasattr(rows, "dtype") and hasattr(rows, "to_list"):
        yield from _series(rows)
    elif hasattr(rows, "__arrow_c_array__"):
        yield _arrow(native.batchllm_arrow_read(*rows.__arrow_c_array__()))
    elif hasattr(rows, "__arrow_c_stream__"):
        yield from _arrow_stream(rows)
    elif hasattr(rows, "dtype") and hasattr(rows, "tolist"):
        yield _numpy(rows)
    else:
        yield from_list(rows if isinstance(rows, (list, tuple)) else _listed(rows))


def _listed(rows: Any) -> list[Any]:
    if isinstance(rows, (set, frozenset)):
        raise TypeError(f"rows is one {type(rows).__name__}, which has no order: put the rows into a list")
    try:
        items = iter(rows)
    except TypeError:
        raise TypeError(f"rows is one {type(rows).__name__}: a list of prompts, or a column of them, is expected") from None
    return list(items)


def _whole(rows: Rows) -> list[Column]:
    """Columns for calls in which a null fails the whole call."""
    found = list(columns(rows))
    before = 0
    for column in found:
        if isinstance(column, Sparse):
            raise ValueError(f"row {before + column.nulls[0]} is null: leave it out or fill it in")
        before += len(column)
    return found


def text_column(rows: Rows) -> Texts:
    """Rows that must be text, as one column."""
    found = _whole(rows)
    if len(found) == 1 and isinstance(found[0], Texts):
        return found[0]
    if found and all(isinstance(column, Texts) for column in found):
        return from_texts(_bytes_rows(found))
    if not found or all(len(column) == 0 for column in found):
        return Texts(b"", array("q", [0]))
    raise TypeError("texts are expected")


def token_column(rows: Rows) -> Tokens:
    """Rows that must be token ids, as one column."""
    found = _whole(rows)
    if len(found) == 1 and isinstance(found[0], Tokens):
        return found[0]
    if found and all(isinstance(column, Tokens) for column in found):
        return from_tokens(_token_rows(found))
    if not found or all(len(column) == 0 for column in found):
        return Tokens(array("i"), array("q", [0]))
    raise TypeError("rows of token ids are expected")


def chat_column(rows: Rows) -> Chats:
    """Rows that must be conversations, as one column."""
    found = _whole(rows)
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
    """The n + 1 offsets of items of these lengths."""
    return array("q", accumulate(lengths, initial=0))


def from_texts(rows: Sequence[Union[str, bytes]]) -> Texts:
    """A list of str (or of UTF-8 bytes)."""
    try:
        joined = "".join(rows)  # type: ignore[arg-type]
    except TypeError:
        joined = ""
    if joined.isascii() and joined:
        return Texts(joined.encode("ascii"), offsets_of(map(len, rows)))
    # A lone surrogate has no UTF-8. Passed on as it is, it fails only its own row.
    encoded = [row.encode("utf-8", "surrogatepass") if isinstance(row, str) else bytes(memoryview(row)) for row in rows]
    return Texts(b"".join(encoded), offsets_of(map(len, encoded)))


def from_tokens(rows: Sequence[Iterable[int]], places: Optional[Sequence[int]] = None) -> Tokens:
    """A list of lists of token ids. places: the numbers of the rows, for errors."""
    tokens = array("i")
    offsets = array("q", [0])
    for i, row in zip(range(len(rows)) if places is None else places, rows):
        try:
            # An array is extended by an array of its own type or by any iterable that is not an array.
            tokens.extend(iter(row) if isinstance(row, array) and row.typecode != "i" else row)
        except OverflowError:
            raise ValueError(f"row {i}: a token id is beyond 32 bits") from None
        except TypeError as fault:
            raise TypeError(f"row {i}: {fault}") from None
        offsets.append(len(tokens))
    return Tokens(tokens, offsets)


def from_conversations(rows: Sequence[Any]) -> Chats:
    """A list of lists of messages, or of dicts with "messages" and more."""
    encoded = [json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogatepass") for row in rows]
    return Chats(b"".join(encoded), offsets_of(map(len, encoded)))


def conversations_with(rows: Any, keys: Mapping[str, Any]) -> list[Any]:
    """Conversations as dicts that have these keys. One of its own counts."""
    if isinstance(rows, (Texts, Tokens, Chats)) or hasattr(rows, "__arrow_c_stream__") and not hasattr(rows, "to_list"):
        raise TypeError(f"{next(iter(keys))}: needs a list of conversations, not a column: put it into each conversation")
    found = rows.to_list() if hasattr(rows, "to_list") else rows.tolist() if hasattr(rows, "tolist") else _listed(rows)
    found = [{"messages": row} if isinstance(row, (list, tuple)) else row for row in found]
    for i, row in enumerate(found):
        if row is not None and not (isinstance(row, dict) and "messages" in row):
            raise TypeError(f"{next(iter(keys))}: row {i} is no conversation: a list of messages, or a dict with them")
    return [row if row is None else {**keys, **row} for row in found]


def from_list(rows: Sequence[Any]) -> Column:
    """A list of rows, all of the same kind as the first. A list of token ids that holds a null is a null row."""
    nulls = [i for i, row in enumerate(rows) if _is_null(row) or isinstance(row, dict) and _is_null_prompt(row)]
    try:
        return _with_nulls(rows, nulls)
    except TypeError:  # a null among token ids too; to look for it in every row before would take longer than all else
        holding = [i for i, row in enumerate(rows) if _holds_null(row)]
        if not holding:
            raise
        return _with_nulls(rows, sorted(nulls + holding))


def _with_nulls(rows: Sequence[Any], nulls: Sequence[int]) -> Column:
    """A list of rows of which these are null."""
    if nulls:
        null = set(nulls)
        places = [i for i in range(len(rows)) if i not in null]
        return Sparse(_from_list([rows[i] for i in places], places), nulls)
    return _from_list(rows, range(len(rows)))


def _from_list(rows: Sequence[Any], places: Sequence[int]) -> Union[Texts, Tokens, Chats]:
    """Rows without nulls. places: their numbers."""
    if any(isinstance(row, dict) for row in rows):
        rows = _unwrapped(rows, places)
    for place, row in zip(places, rows):
        if not isinstance(row, (str, bytes)) and not hasattr(row, "__len__"):
            raise TypeError(f"row {place} is one {type(row).__name__}: rows are texts or lists")
    first = next((row for row in rows if isinstance(row, (str, bytes)) or len(row) > 0), None)
    if first is None:  # no rows, or only empty rows
        return from_tokens(rows, places) if len(rows) else from_texts(rows)
    if isinstance(first, (str, bytes)):
        if not all(isinstance(row, (str, bytes)) for row in rows):
            _refuse_mixed(rows, places)
        return from_texts(rows)
    if isinstance(first, dict) or isinstance(first[0], dict):
        _refuse_mixed(rows, places)
        return from_conversations(rows)
    if isinstance(first[0], str):
        place = next(i for i, row in zip(places, rows) if row is first)
        raise TypeError(f"row {place} is a list of texts: a row is one text, or a list of token ids or messages")
    try:
        return from_tokens(rows, places)
    except TypeError:
        _refuse_mixed(rows, places)
        raise


def _kind(row: Any) -> str:
    if isinstance(row, (str, bytes)):
        return "a text"
    if isinstance(row, dict) or isinstance(row, (list, tuple)) and row and isinstance(row[0], dict):
        return "a conversation"
    return "a list of token ids" if len(row) else ""


def _refuse_mixed(rows: Sequence[Any], places: Sequence[int]) -> None:
    """Raises if rows are of several kinds."""
    kinds = [(place, kind) for place, row in zip(places, rows) if (kind := _kind(row))]
    place, kind = kinds[0]
    for other, another in kinds:
        if another != kind:
            raise TypeError(
                f"row {other} is {another} and row {place} is {kind}: the rows of a call are of one kind. Make a call for each, or"
                " turn all into token ids (batchllm.Tokenizer: encode, apply_chat_template)"
            )


_PROMPT_KEYS = {"prompt", "prompt_token_ids"}


def _unwrapped(rows: Sequence[Any], places: Sequence[int]) -> list[Any]:
    """Takes prompts out of {"prompt": text} and {"prompt_token_ids": ids}. Conversations stay as they are."""
    found = []
    for place, row in zip(places, rows):
        if isinstance(row, dict) and "messages" not in row:
            inside = [row[name] for name in ("prompt_token_ids", "prompt") if not _is_null(row.get(name))]
            if not inside:
                if "role" in row:
                    raise TypeError("rows is one conversation: put it into a list")
                raise TypeError(
                    f"row {place} is a dict without 'messages' or 'prompt', and neither conversation nor prompt"
                )
            other = sorted(row.keys() - _PROMPT_KEYS)
            if other:
                raise TypeError(f"row {place}: {other[0]!r} beside 'prompt' is not understood")
            row = inside[0]
        found.append(row)
    return found


def _is_null(row: Any) -> bool:
    if row is None:
        return True
    if isinstance(row, float):
        return row != row
    name = type(row).__name__
    return name in ("NAType", "NaTType") or name in ("float32", "float16") and bool(row != row)


def _is_null_prompt(row: Mapping[str, Any]) -> bool:
    """Whether a row is {"prompt": None} or the like."""
    return len(row) > 0 and row.keys() <= _PROMPT_KEYS and all(map(_is_null, row.values()))


def _holds_null(row: Any) -> bool:
    """Whether a row is token ids with a null among them."""
    if isinstance(row, dict):
        row = next((row[name] for name in ("prompt_token_ids", "prompt") if row.get(name) is not None), None)
    if isinstance(row, (str, bytes, dict)) or not hasattr(row, "__len__"):
        return False
    items = list(row)
    return any(map(_is_null, items)) and all(_is_null(item) or hasattr(item, "__index__") for item in items)


def _check_mask(name: str, buffer: Any) -> None:
    """Raises for masked items: the buffer of a NumPy array does not show its mask."""
    ma = sys.modules.get("numpy.ma")  # if it was not imported, there are no masked arrays
    if ma is not None and ma.is_masked(buffer):
        where = tuple(map(int, next(zip(*ma.getmaskarray(buffer).nonzero()))))
        raise ValueError(
            f"{name}: item {where if len(where) > 1 else where[0]} is masked: fill or leave out masked items"
        )


def _arrow(parts: native.ArrowColumns) -> Column:
    kind, data, offsets, nulls = parts
    given = Texts(data, offsets) if kind == "text" else Tokens(data, offsets)
    return given if nulls is None else Sparse(given, nulls)


def _arrow_stream(rows: Any) -> Iterator[Column]:
    stream = native.batchllm_arrow_open(rows.__arrow_c_stream__())
    while (parts := native.batchllm_arrow_next(stream)) is not None:
        yield _arrow(parts)


def _series(rows: Any) -> Iterator[Column]:
    """A pandas (or Polars) Series. One of Python objects is read row by row, not through Arrow."""
    floats = hasattr(rows, "iloc") and str(rows.dtype).lower().startswith(("float", "double"))  # of pandas: perhaps nulls alone
    if str(rows.dtype) != "object" and not floats and hasattr(rows, "__arrow_c_stream__"):
        try:
            stream = rows.__arrow_c_stream__()
        except ImportError:  # pandas needs pyarrow for this
            pass
        else:
            opened = native.batchllm_arrow_open(stream)
            while (parts := native.batchllm_arrow_next(opened)) is not None:
                yield _arrow(parts)
            return
    yield from_list(rows.to_list())


def _numpy(rows: Any) -> Column:
    """An array. Objects and texts are read row by row; two dimensions of integers are rows of equal length."""
    if rows.size == 0:
        return Tokens(array("i"), offsets_of([0] * rows.shape[0]))
    if rows.ndim == 2 and rows.dtype.kind in "iu":
        _check_mask("rows", rows)
        if rows.dtype.kind != "i" or rows.dtype.itemsize != 4 or not rows.dtype.isnative:
            raise TypeError(f"an array of {rows.dtype}: token ids are int32; use rows.astype('int32')")
        # In one dimension: the same memory, or a copy if the rows are not adjacent.
        return Tokens(rows.ravel(), offsets_of([rows.shape[1]] * rows.shape[0]))
    if rows.ndim == 1 and rows.dtype.kind in "OUST":
        return from_list(rows.tolist())
    if rows.dtype.kind not in "iu":
        raise TypeError(f"an array of {rows.ndim} dimensions of {rows.dtype}: rows are texts, or token ids of int32")
    raise TypeError(f"an array of {rows.ndim} dimensions of {rows.dtype}: use batchllm.Tokens(tokens, offsets)")
