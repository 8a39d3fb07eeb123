"""Makes prompts from the columns of a table and a template, optionally with the fields in the order that lets rows
share most.

Frames are a dict of columns; a pandas or Polars DataFrame; a pyarrow Table or RecordBatch; a DuckDB relation; or any
object whose `__arrow_c_stream__` has a struct type. Columns are text, numbers, booleans or categories of these.
"""

from __future__ import annotations

import re
from array import array
from ctypes import c_float
from typing import Any, Iterator, Literal, Mapping, Optional, Sequence, Union

from . import native
from .columns import ArrowStream, Pandas, _is_null, from_texts
from .errors import no_column
from .plan import named

FIELDS = {"given": 0, "reorder": 1}

Fields = Literal["given", "reorder"]

Frame = Union[Mapping[Any, Any], ArrowStream, Pandas]
"""Described at the top of this module."""

_FIELD = re.compile(r"\{\{|\}\}|\{([^{}\n]+)\}")


class Table:
    """The prompts of a frame's rows.

        table = batchllm.Table(frame, "Is this review kind?\\nTitle: {title}\\nReview: {text}\\nAnswer:")
        print(table[0], table.hit_rate)

    frame: a dict of columns, a pandas or Polars DataFrame, a pyarrow Table or a DuckDB relation.
    template: {name} stands for the row's value in the column of that name; {{ and }} write a brace.
    fields: "given" keeps the template's order. "reorder" puts each row's fields, and the rows, in the order that lets
    rows share most: whole lines move, so each line from the first field's to the last field's must have exactly one
    field.
    chat: prompts become conversations with the template's text as the user's message.
    system: with chat, the system message before it.
    pictures: with chat, how many pictures each row has, which come before the template's text.
    """

    def __init__(
        self,
        frame: Frame,
        template: str,
        *,
        fields: Fields = "given",
        chat: bool = False,
        system: Optional[str] = None,
        pictures: Optional[Sequence[int]] = None,
    ) -> None:
        if not isinstance(template, str):
            raise TypeError(f"template is one {type(template).__name__}: a str is expected")
        number = named("fields", FIELDS, fields)
        names = fields_of(template)
        self.columns: list[str] = names
        """The template's fields, as `field_orders` numbers them."""
        filled = native.batchllm_frame_create(len(names))
        for i, name in enumerate(names):
            native.batchllm_frame_name(filled, i, name.encode())
        _fill(filled, frame, names)
        if pictures is not None:
            native.batchllm_frame_pictures(filled, array("i", pictures))
        self._row_index = index_of(frame)
        self._native = native.batchllm_table_create_from(
            filled, template.encode("utf-8", "surrogatepass"), number, int(chat), (system or "").encode("utf-8", "surrogatepass")
        )

    def __len__(self) -> int:
        return native.batchllm_table_rows(self._native)

    def __getitem__(self, row: int) -> Optional[str]:
        """A row's prompt (with `chat`, the JSON of its conversation); None if a value is missing."""
        prompt = self._prompt(row)
        return None if prompt is None else prompt.decode("utf-8", "replace")

    def _prompt(self, row: int) -> Optional[bytes]:
        """The same as bytes, since cells need not be UTF-8."""
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        row %= len(self)
        if native.batchllm_table_column_statuses(self._native)[row] != native.BATCHLLM_OK:
            return None
        offsets = native.batchllm_table_column_offsets(self._native)
        text = native.batchllm_table_column_text(self._native)
        return bytes(text[offsets[row] : offsets[row + 1]])

    def field_order(self, row: int) -> list[str]:
        """The row's fields in the order of its prompt."""
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        first = row % len(self) * len(self.columns)
        order = native.batchllm_table_column_field_orders(self._native)[first : first + len(self.columns)]
        return [self.columns[i] for i in order]

    @property
    def row_order(self) -> memoryview[int]:
        """Row numbers in the order that lets neighbours share most. Results still come in the order of rows."""
        return native.batchllm_table_column_row_order(self._native)

    @property
    def given_hit_rate(self) -> float:
        """Share of the fields' bytes that a row has in common with the beginning of the row before it, in the given order."""
        return native.batchllm_table_hit_rate(self._native, 0)

    @property
    def sorted_hit_rate(self) -> float:
        """The same with rows sorted, which an engine achieves without moving fields."""
        return native.batchllm_table_hit_rate(self._native, 1)

    @property
    def hit_rate(self) -> float:
        """The same for the order that was found. All three rates are 0 with `fields="given"`."""
        return native.batchllm_table_hit_rate(self._native, 2)


def fields_of(template: str) -> list[str]:
    """The fields of a template, each once, in the order in which they first appear."""
    return list(dict.fromkeys(name for name in _FIELD.findall(template) if name))


class TableSlices:
    """A frame's prompts, made a slice of rows at a time, so that memory holds only one slice. Only for fields in the
    given order, since reordering looks at all rows."""

    rows_each = 65_536

    def __init__(
        self, frame: Frame, template: str, chat: bool, system: Optional[str], pictures: Optional[Sequence[int]] = None
    ) -> None:
        self._frame, self._template, self._chat, self._system = frame, template, chat, system
        self._pictures = pictures

    def __iter__(self) -> Iterator[Table]:
        rows = _rows_of(self._frame)
        for begin in range(0, max(1, rows), self.rows_each):
            end = min(rows, begin + self.rows_each)
            some = self._frame if rows <= self.rows_each else _sliced(self._frame, begin, end)
            counts = None if self._pictures is None else self._pictures[begin:end] if rows else self._pictures
            yield Table(some, self._template, chat=self._chat, system=self._system, pictures=counts)


def index_of(rows: Any) -> Any:
    """The index of rows that come from pandas; None for others."""
    if isinstance(rows, Table):
        return rows._row_index
    frame = rows._frame if isinstance(rows, TableSlices) else rows
    return frame.index if hasattr(frame, "iloc") and hasattr(frame, "index") else None


def _rows_of(frame: Any) -> int:
    """Number of rows; 0 if the frame cannot be sliced."""
    if isinstance(frame, dict):
        lengths = [len(cells) if hasattr(cells, "__len__") and hasattr(cells, "__getitem__") else 0 for cells in frame.values()]
        # Columns of different lengths are reported for the whole table.
        return lengths[0] if lengths and min(lengths) == max(lengths) else 0
    if hasattr(frame, "iloc") and hasattr(frame, "columns"):
        return len(frame)
    if hasattr(frame, "__arrow_c_stream__") and hasattr(frame, "slice") and hasattr(frame, "__len__"):
        return len(frame)
    return int(getattr(frame, "num_rows", 0)) if hasattr(frame, "slice") else 0


def _sliced(frame: Any, begin: int, end: int) -> Any:
    if isinstance(frame, dict):
        return {name: cells.iloc[begin:end] if hasattr(cells, "iloc") else cells[begin:end] for name, cells in frame.items()}
    return frame.iloc[begin:end] if hasattr(frame, "iloc") else frame.slice(begin, end - begin)


def prompts_of(
    frame: Union[Frame, Table],
    template: Optional[str],
    fields: Fields,
    chat: bool,
    system: Optional[str],
    pictures: Optional[Sequence[int]] = None,
) -> Union[Table, TableSlices]:
    """The prompts of a frame, as a whole or in slices."""
    if isinstance(frame, Table) or template is None or fields != "given":
        return table_of(frame, template, fields, chat, system, pictures)
    if not isinstance(template, str):
        raise TypeError(f"template is one {type(template).__name__}: a str is expected")
    return TableSlices(frame, template, chat, system, pictures)


def table_of(
    frame: Union[Frame, Table],
    template: Optional[str],
    fields: Fields,
    chat: bool,
    system: Optional[str],
    pictures: Optional[Sequence[int]] = None,
) -> Table:
    """The table of a frame, or the frame itself if it is a table."""
    if isinstance(frame, Table):
        if template is not None:
            raise TypeError("template: a Table has its own")
        return frame
    if template is None:
        raise TypeError("template is missing")
    return Table(frame, template, fields=fields, chat=chat, system=system, pictures=pictures)


def _fill(filled: native.batchllm_frame, frame: Frame, names: Sequence[str]) -> None:
    if isinstance(frame, dict):
        for name in names:
            if name not in frame:
                raise no_column(name, list(map(str, frame)))
        _fill_from_lists(filled, {name: frame[name] for name in names}, names)
        return
    if hasattr(frame, "iloc") and hasattr(frame, "columns"):  # pandas, which needs pyarrow for its stream
        written = [str(column) for column in frame.columns]  # pandas' names may be numbers: {0}
        missing = [name for name in names if name not in written]
        if missing:
            raise no_column(missing[0], written)
        twice = [name for name in names if written.count(name) > 1]
        if twice:
            raise ValueError(f"template: the table has two columns {twice[0]!r}")
        places = {name: written.index(name) for name in names}
        _fill_from_lists(filled, {name: frame.iloc[:, at] for name, at in places.items()}, names)
        return
    if type(frame).__name__ == "LazyFrame":
        raise TypeError("frame is one LazyFrame of Polars: collect() makes its rows")
    if hasattr(frame, "__arrow_c_stream__"):
        native.batchllm_arrow_fill_frame(filled, frame.__arrow_c_stream__())
        return
    raise TypeError(f"frame is one {type(frame).__name__}: a table of named columns is expected")


def _fill_from_lists(filled: native.batchllm_frame, columns: dict[str, Any], names: Sequence[str]) -> None:
    rows = -1
    for i, name in enumerate(names):
        cells = columns[name]
        if isinstance(cells, (str, bytes)):
            raise TypeError(f"column {name!r} is one {type(cells).__name__}: a list of cells is expected")
        single = _is_single(cells)
        to_list = next((method for method in ("to_list", "tolist", "to_pylist") if hasattr(cells, method)), None)
        cells = list(cells) if to_list is None else getattr(cells, to_list)()
        if rows >= 0 and len(cells) != rows:
            raise ValueError(f"column {name!r} has {len(cells)} rows and those before it have {rows}")
        rows = len(cells)
        valid = bytes(not _is_null(cell) for cell in cells)
        written = _text_of_single if single else _text
        texts = from_texts([written(cell) if good else "" for cell, good in zip(cells, valid)])
        native.batchllm_frame_extend(filled, i, texts.data, texts.offsets, valid)


def _text(cell: Any) -> Any:
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if type(cell).__name__ == "float32":  # of NumPy
        return _text_of_single(float(cell))
    return cell if isinstance(cell, (str, bytes)) else str(cell)


def _is_single(cells: Any) -> bool:
    """Whether a column has floats of 32 bits: of pandas, NumPy, Polars or Arrow, or an array or memoryview."""
    kind = getattr(cells, "dtype", getattr(cells, "type", ""))
    if str(kind) == "category" and hasattr(cells, "cat"):
        kind = cells.cat.categories.dtype
    item = getattr(cells, "typecode", getattr(cells, "format", ""))
    return str(kind).lower() in ("float32", ">f4", "float[pyarrow]", "float") or item == "f"


def _text_of_single(value: Any) -> Any:
    """A float of 32 bits by the fewest digits that read back the same, as in columns of Arrow."""
    if not isinstance(value, float):
        return _text(value)
    fewest = 1 if abs(value) < 2e-38 else 6  # zeros that are not needed are not written
    for digits in range(fewest, 9):
        fewer = float(f"{value:.{digits}g}")
        if c_float(fewer).value == value:
            return str(fewer)
    return str(float(f"{value:.9g}"))
