"""Tables in files: Parquet, CSV and Arrow IPC, read and written a piece at a time. Needs pyarrow.

Always: rows come in the order of the file, in pieces of the same size on every machine. Pieces have no dictionaries and
no views, so all pieces of a file have the same schema.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
from typing import Any, BinaryIO, Callable, Iterator, Mapping, Optional, Sequence, cast

from .errors import InvalidArgumentError
from .frames import optional

FORMATS = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".arrow": "arrow", ".arrows": "arrow", ".feather": "arrow",
           ".ipc": "arrow"}  # fmt: skip
_PIECE_ROWS = 8192
_PIECE_BYTES = 256 << 20  # about, of all columns of a Parquet file
_STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"
_CSV_BLOCK = 1 << 24  # a row is shorter than that
_MOST_BYTES = (1 << 31) - 1  # of an array with offsets of 32 bits
_KEPT_BYTES = 64 << 20  # of a CSV file that is kept once it is checked

Wanted = Callable[[int, int], bool]
"""Whether any row of [first, end) is needed."""


def source_of(given: Any) -> str:
    """The path of the input. Raises for what is not one file, and says how it becomes one."""
    made = "pyarrow.parquet.write_table(pyarrow.parquet.read_table({}), 'in.parquet') makes one of Parquet files (docs/files.md)"
    if not isinstance(given, (str, os.PathLike)):
        if hasattr(given, "columns") or hasattr(given, "column_names") or isinstance(given, Mapping):
            raise TypeError(
                f"input is one {type(given).__name__}, and a path is expected: Engine.generate_table runs a table in memory; or write it"
                " to a file first, as to_parquet does"
            )
        if isinstance(given, (list, tuple)):
            raise TypeError(f"input is a {type(given).__name__}, and one file is read: {made.format('paths')}")
    path: str = os.fspath(given)
    if not is_remote(path) and os.path.isdir(path):
        raise InvalidArgumentError(f"{path}: is a folder, and one file is read: {made.format(repr(path))}")
    if re.search(r"[*?\[]", path) and not is_remote(path) and not os.path.exists(path):
        raise InvalidArgumentError(f"{path}: there is no such file, and patterns are not expanded: {made.format(f'sorted(glob.glob({path!r}))')}")
    return path


def format_of(path: str, given: Optional[str], option: str) -> str:
    """The given format, or else the one that the path ends with. option: the argument that gives it."""
    if path == "-":
        raise InvalidArgumentError(
            f"{option.partition('_')[0]} is '-': tables are read from and written to files; lines of JSON go through the program,"
            " batchllm run --input - --output -"
        )
    if given is not None:
        if given not in FORMATS.values():
            raise InvalidArgumentError(f"{option} is {given!r}: it is 'parquet', 'csv' or 'arrow'")
        return given
    ending = os.path.splitext(path)[1].lower()
    if ending in (".jsonl", ".ndjson", ".json"):
        raise InvalidArgumentError(f"{path}: lines of JSON are for the program: batchllm run --input {path}")
    if ending not in FORMATS:
        raise InvalidArgumentError(
            f"{path}: which format? It does not end with {', '.join(FORMATS)}: {option} says 'parquet', 'csv' or 'arrow'"
        )
    return FORMATS[ending]


def is_remote(path: str) -> bool:
    """Whether the path is a URL, which needs fsspec."""
    return "://" in path


def filesystem(path: str, options: Optional[Mapping[str, Any]]) -> tuple[Any, str]:
    """fsspec's file system for a URL, and the path in it."""
    core = optional("fsspec", f"{path}: an address").core
    try:
        found = core.url_to_fs(path, **(options or {}))
    except (ImportError, ValueError, TypeError) as fault:  # no such protocol, no package for it, no such option
        raise InvalidArgumentError(f"{path}: {fault}") from None
    return found[0], str(found[1])


def open_input(path: str, options: Optional[Mapping[str, Any]]) -> BinaryIO:
    """Opens a file for reading, as bytes."""
    if is_remote(path):
        system, inside = filesystem(path, options)
        try:
            return cast(BinaryIO, system.open(inside, "rb"))
        except FileNotFoundError:  # does not name a file, or not the given one
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None
    return open(path, "rb")


def listed(names: Sequence[str]) -> str:
    """Names of columns, for an error message."""
    return ", ".join(map(repr, names)) if names else "none"


class Reader:
    """The rows of a file."""

    def __init__(self, path: str, options: Optional[Mapping[str, Any]], columns: Optional[Sequence[str]]) -> None:
        self.path = path
        self._arrow = optional("pyarrow", "run_files")
        self._file = open_input(path, options)
        self.rows: Optional[int] = None  # known if the file says so
        try:
            self._look(columns)
        except BaseException:
            self._file.close()
            raise

    def _look(self, columns: Optional[Sequence[str]]) -> None:
        path, names = self.path, self._open()
        for name in columns or ():
            if name not in names:
                raise InvalidArgumentError(f"{path}: there is no column {name!r}; it has {listed(names)}")
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InvalidArgumentError(f"{path}: the column {twice!r} is there twice")
        self.given = self._given()
        self.select(list(columns) if columns is not None else names)

    def select(self, columns: Sequence[str]) -> None:
        """Chooses the columns that are read, in this order."""
        self.columns = list(columns)
        self.schema = _plain_schema(self._arrow, [self.given.field(name) for name in self.columns])

    def pieces(self, wanted: Wanted) -> Iterator[tuple[int, Any]]:
        """Yields (number of its first row, table) for each piece that has wanted rows."""
        end = 0
        try:
            for first, table in self._pieces(wanted):
                end = first + table.num_rows
                yield first, self._decoded(table).cast(self.schema)
        except (self._arrow.ArrowException, OSError) as fault:
            if getattr(fault, "errno", None):  # an I/O error, not an invalid file
                raise
            where = "" if "Row #" in str(fault) else f"after row {end}: "
            raise InvalidArgumentError(f"{self.path}: {where}{self._explained(str(fault))}") from None

    def check(self) -> None:
        """Raises if the rows cannot be read, in formats where checking is cheap."""

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _open(self) -> list[str]:
        raise NotImplementedError

    def _given(self) -> Any:
        """The file's own schema."""
        raise NotImplementedError

    def _pieces(self, wanted: Wanted) -> Iterator[tuple[int, Any]]:
        raise NotImplementedError

    def _refuse(self, format_: str, fault: Exception) -> InvalidArgumentError:
        self._file.seek(0)
        begin = self._file.read(16)
        for magic, kind in ((b"PAR1", "Parquet"), (b"ARROW1", "Arrow")):
            if begin.startswith(magic) and kind != format_:
                return InvalidArgumentError(f"{self.path}: it is a file of {kind}, not of {format_}: say so by input_format")
        if begin.startswith((b"\xff\xfe", b"\xfe\xff")):
            return InvalidArgumentError(f"{self.path}: it is text in UTF-16: save it as UTF-8")
        if format_ == "Parquet" and begin.startswith(b"PAR1"):
            return InvalidArgumentError(f"{self.path}: its end is missing or damaged; was it copied completely? ({fault})")
        if "Row #" in str(fault):
            return InvalidArgumentError(f"{self.path}: {self._explained(str(fault))}")
        article = "an" if format_[0] in "AEIOU" else "a"
        return InvalidArgumentError(f"{self.path}: not {article} {format_} file: {fault} (it begins with {begin!r})")

    def _decoded(self, table: Any) -> Any:
        """With the values of dictionaries, which pyarrow's cast does not know of every layout, such as Polars' categories."""
        arrow = self._arrow
        for at, field in enumerate(self.schema):
            if arrow.types.is_dictionary(table.schema.field(at).type):
                values = [one.dictionary.cast(field.type).take(one.indices) for one in table.column(at).chunks]
                table = table.set_column(at, field.name, arrow.chunked_array(values, field.type))
        return table

    def _explained(self, fault: str) -> str:
        """pyarrow's message, with what it leaves out."""
        return fault


class _Parquet(Reader):
    def _open(self) -> list[str]:
        module = optional("pyarrow.parquet", "run_files")
        try:
            self._parquet = module.ParquetFile(self._file)
        except (self._arrow.ArrowInvalid, OSError) as fault:
            raise self._refuse("Parquet", fault) from None
        self.rows = self._parquet.metadata.num_rows
        return list(self._parquet.schema_arrow.names)

    def _given(self) -> Any:
        return self._parquet.schema_arrow

    def _pieces(self, wanted: Wanted) -> Iterator[tuple[int, Any]]:
        first = 0
        for group in range(self._parquet.num_row_groups):
            about = self._parquet.metadata.row_group(group)
            rows = about.num_rows
            if not wanted(first, first + rows):
                first += rows
                continue
            # pyarrow cannot read a piece whose structs or lists have more bytes than 32-bit offsets reach.
            piece = max(1, min(_PIECE_ROWS, rows * _PIECE_BYTES // max(1, about.total_byte_size)))
            for batch in self._parquet.iter_batches(piece, [group], self.columns):
                yield first, self._arrow.table(batch).select(self.columns)
                first += batch.num_rows


class _Csv(Reader):
    """Every column is text, exactly as in the file; an empty field without quotes is a null."""

    def _open(self) -> list[str]:
        self._csv = optional("pyarrow.csv", "run_files")
        self._kept: Optional[list[tuple[int, Any]]] = None
        try:
            names = self._reader({}).schema.names
        except (self._arrow.ArrowInvalid, self._arrow.ArrowKeyError) as fault:
            raise self._refuse("CSV", fault) from None
        self._names = list(names)
        return self._names

    def check(self) -> None:
        """Reads every row once. Otherwise an error in the last row would end a job that has run for hours. A small file
        is kept, and so not read again."""
        kept: Optional[list[tuple[int, Any]]] = []
        rows = size = 0
        for first, table in self.pieces(lambda *_: True):
            rows, size = first + table.num_rows, size + table.nbytes
            kept = None if kept is None or size > _KEPT_BYTES else [*kept, (first, table)]
        self.rows, self._kept = rows, kept

    def _explained(self, fault: str) -> str:
        column = re.match(r"In CSV column #(\d+): ", fault)
        if column is not None and int(column[1]) < len(self._names):
            fault = f"column {self._names[int(column[1])]!r}: {fault[column.end():]}"
        if re.search(r"Expected \d+ columns, got \d+: .*\n", fault) or "straddling" in fault:
            fault += " (is there a quote that is never closed?)"
        return fault

    def _given(self) -> Any:
        return self._arrow.schema([(name, self._arrow.large_string()) for name in self._names])

    def _reader(self, types: dict[str, Any]) -> Any:
        self._file.seek(0)
        return self._csv.open_csv(
            self._arrow.PythonFile(_Unclosed(self._file), mode="r"),
            # With threads, the error does not say which row cannot be read.
            read_options=self._csv.ReadOptions(block_size=_CSV_BLOCK, use_threads=False),
            parse_options=self._csv.ParseOptions(newlines_in_values=True),
            convert_options=self._csv.ConvertOptions(
                column_types=types,
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                include_columns=list(types),
            ),
        )

    def _pieces(self, wanted: Wanted) -> Iterator[tuple[int, Any]]:
        if self._kept is not None:
            yield from ((first, table.select(self.columns)) for first, table in self._kept if wanted(first, first + table.num_rows))
            return
        first, last = 0, None
        read = dict.fromkeys([*self.columns, self._names[-1]], self._arrow.large_string())
        for batch in self._reader(read):
            if wanted(first, first + batch.num_rows):
                yield first, self._arrow.table(batch).select(self.columns)
            first += batch.num_rows
            if batch.num_rows:
                last = batch.column(self._names[-1])[-1].as_py()
        if last is not None and self._ends_within_quotes(last):
            raise InvalidArgumentError(
                f"{self.path}: row {first}, the last one, has a quote that is never closed, before {last[:40]!r}"
            )

    def _ends_within_quotes(self, value: str) -> bool:
        """Whether the last value of the last row begins with a quote that is never closed. pyarrow then silently takes
        the rest of the file as that value."""
        opened = b'"' + value.encode().replace(b'"', b'""')
        size = self._file.seek(0, os.SEEK_END)
        self._file.seek(max(0, size - len(opened) - 3))  # a delimiter before it, a line end after it
        end = self._file.read()
        return any(end.removesuffix(line)[: -len(opened)][-1:] in (b",", b"\n", b"\r")
                   for line in (b"", b"\n", b"\r\n", b"\r") if end.endswith(opened + line))  # fmt: skip


class _Ipc(Reader):
    """A file or a stream."""

    def _open(self) -> list[str]:
        ipc = optional("pyarrow.ipc", "run_files")
        self._ipc, self._begun = ipc, False
        magic = self._file.read(6)
        self._file.seek(0)
        self._random = magic == b"ARROW1"
        try:
            self._reader = ipc.open_file(self._file) if self._random else ipc.open_stream(self._file)
        except (self._arrow.ArrowInvalid, OSError) as fault:
            raise self._refuse("Arrow", fault) from None
        return list(self._reader.schema.names)

    def _given(self) -> Any:
        return self._reader.schema

    def _batches(self) -> Iterator[Any]:
        if not self._random:
            if self._begun:
                self._file.seek(0)
                self._reader = self._ipc.open_stream(self._file)
            self._begun = True
            yield from self._reader
            # A stream that was cut between two messages looks complete.
            self._file.seek(self._file.tell() - len(_STREAM_END))
            if self._file.read(len(_STREAM_END)) != _STREAM_END:
                raise self._arrow.ArrowInvalid("the stream has no end: it was cut, or its writer was not closed")
            return
        for i in range(self._reader.num_record_batches):
            yield self._reader.get_batch(i)

    def _pieces(self, wanted: Wanted) -> Iterator[tuple[int, Any]]:
        first = 0
        for batch in self._batches():
            if wanted(first, first + batch.num_rows):
                yield first, self._arrow.table(batch).select(self.columns)
            first += batch.num_rows


class _Unclosed:
    """A file that its reader cannot close, because it is read again."""

    def __init__(self, file: BinaryIO) -> None:
        self.read = file.read
        self.seek, self.tell = file.seek, file.tell
        self.closed = False

    def readable(self) -> bool:
        """Always."""
        return True

    def close(self) -> None:
        """Does nothing."""


_READERS: dict[str, type[Reader]] = {"parquet": _Parquet, "csv": _Csv, "arrow": _Ipc}


def open_reader(
    path: str, format_: str, options: Optional[Mapping[str, Any]], columns: Optional[Sequence[str]] = None
) -> Reader:
    """columns: the columns to read, in this order; None: all."""
    return _READERS[format_](path, options, columns)


def _plain_schema(arrow: Any, fields: Sequence[Any]) -> Any:
    """Without dictionaries and views, and with 64-bit offsets, also within structs and lists, since a chunk may have more than
    2 GiB of text or pictures."""
    types = arrow.types

    def plain(kind: Any) -> Any:
        if types.is_dictionary(kind):
            return plain(kind.value_type)
        if types.is_string_view(kind):
            return arrow.large_string()
        return arrow.large_binary() if types.is_binary_view(kind) else wide(kind)

    def wide(kind: Any) -> Any:
        if types.is_string(kind):
            return arrow.large_string()
        if types.is_binary(kind):
            return arrow.large_binary()
        if types.is_struct(kind):
            return arrow.struct([one.with_type(wide(one.type)) for one in kind])
        if types.is_list(kind) or types.is_large_list(kind):
            made = arrow.list_ if types.is_list(kind) else arrow.large_list
            return made(kind.value_field.with_type(wide(kind.value_type)))
        return kind

    return arrow.schema([arrow.field(one.name, plain(one.type)) for one in fields])


# ---- Out ----


def check_writable(format_: str, schema: Any) -> None:
    """Raises if a column cannot be written in a format."""
    arrow = optional("pyarrow", "run_files")
    types = arrow.types
    for field in schema:  # of one of the results as written, or as it is in memory
        if format_ == "csv" and types.is_nested(field.type):
            raise InvalidArgumentError(
                f"the column {field.name!r} has lists ({field.type}), which CSV has not: write Parquet or Arrow, or name the columns to pass through"
            )
        if format_ == "csv" and (types.is_large_binary(field.type) or types.is_fixed_size_binary(field.type)):
            raise InvalidArgumentError(
                f"the column {field.name!r} has bytes ({field.type}), which CSV has not: write Parquet or Arrow, or name the columns to pass through"
            )
        # It is better to fail before the job than after it.
        try:
            _plain_schema(arrow, [field]).empty_table().take(arrow.array([], arrow.int64()))
            _try_to_write(format_, field)
        except arrow.ArrowException as fault:
            raise InvalidArgumentError(
                f"the column {field.name!r} ({field.type}) cannot be written as {format_}: {fault}; name the columns to pass through"
            ) from None


def written_type(format_: str, kind: Any) -> Any:
    """The type that a results' column has in a format: CSV has no lists, so they are text there, as JSON."""
    arrow = optional("pyarrow", "run_files")
    return arrow.large_string() if format_ == "csv" and arrow.types.is_nested(kind) else kind


def as_written(column: Any, kind: Any) -> Any:
    """A results' column in that type."""
    if column.type == kind:
        return column
    texts = [None if value is None else json.dumps(value, ensure_ascii=False) for value in column.to_pylist()]
    return optional("pyarrow", "run_files").array(texts, kind)


def _try_to_write(format_: str, field: Any) -> None:
    arrow = optional("pyarrow", "run_files")
    one = arrow.schema([field])
    writer = Writer(cast(BinaryIO, io.BytesIO()), format_, one)
    writer.write(one.empty_table())
    writer.close()


def can_write(format_: str, field: Any) -> bool:
    """Whether a column that passes through keeps its type. Dictionaries are written as their values."""
    arrow = optional("pyarrow", "run_files")
    if arrow.types.is_dictionary(field.type) or format_ == "csv":
        return False
    try:
        _try_to_write(format_, field)
    except arrow.ArrowException:
        return False
    return True


def taken(column: Any, rows: Any, kind: Any) -> Any:
    """Rows of a column in another type of texts or bytes, in pieces whose offsets fit."""
    found = column.take(rows)
    if found.type == kind:
        return found
    if len(rows) > 1 and found.nbytes > _MOST_BYTES:
        half = len(rows) // 2
        pieces = [taken(column, part, kind).chunks for part in (rows.slice(0, half), rows.slice(half))]
        return optional("pyarrow", "run_files").chunked_array([*pieces[0], *pieces[1]], kind)
    return found.cast(kind)


class Writer:
    """Writes tables of one schema to a file."""

    def __init__(self, file: BinaryIO, format_: str, schema: Any) -> None:
        if format_ == "parquet":
            self._writer = optional("pyarrow.parquet", "run_files").ParquetWriter(file, schema)
        elif format_ == "csv":
            self._writer = optional("pyarrow.csv", "run_files").CSVWriter(file, schema)
        else:
            self._writer = optional("pyarrow.ipc", "run_files").new_file(file, schema)

    def write(self, table: Any) -> None:
        """Writes a table, in Parquet as a row group."""
        self._writer.write_table(table)

    def close(self) -> None:
        """Writes the end of the file."""
        self._writer.close()
