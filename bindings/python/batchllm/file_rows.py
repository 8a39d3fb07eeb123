"""Turns rows of files into prompts, and results into columns of files."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from itertools import islice
from typing import Any, Optional, Sequence, Union

from .columns import Chats, Sparse, Texts, from_texts
from .constraints import constraint_key
from .errors import InvalidArgumentError, no_column
from .file_formats import Reader, listed
from .frames import optional, samples_as_lists
from .params import SamplingParams, asked_logprobs
from .parsed import Parser, parser_of
from .pictures import picture_items
from .results import Results
from .table import Fields, Table, fields_of
from .task_rows import Task, with_labels


Images = tuple[Union[bytes, str], ...]
"""The pictures of a row."""


@dataclass
class Prompts:
    """How rows become prompts."""

    column: str
    template: Optional[str]
    fields: Fields
    chat: bool
    system: Optional[str]
    images: Optional[str] = None
    """The column of pictures."""

    def check(self, reader: Reader) -> set[str]:
        """The columns that prompts are made from. Raises if they are missing or have another type."""
        return self._prompt_columns(reader) | self._image_columns(reader)

    def _image_columns(self, reader: Reader) -> set[str]:
        if self.images is None:
            return set()
        if self.images not in reader.columns:
            raise InvalidArgumentError(
                f"image_column: {reader.path} has no column {self.images!r}; it has {listed(reader.columns)}"
            )
        kind = reader.schema.field(self.images).type
        if not holds_pictures(kind):
            raise InvalidArgumentError(
                f"image_column: {reader.path}: column {self.images!r} is {kind}: pictures are bytes of files, paths, structs"
                " with bytes, or lists of these"
            )
        return {self.images}

    def _prompt_columns(self, reader: Reader) -> set[str]:
        if self.template is None and self.column not in reader.columns:
            raise InvalidArgumentError(
                f"prompt_column: {reader.path} has no column {self.column!r}; it has {listed(reader.columns)}"
            )
        if self.template is None and not self.chat:
            _check_prompts(reader, self.column)
            return {self.column}
        names = fields_of(self.template if self.template is not None else "{" + self.column + "}")
        for name in names:
            if name not in reader.columns:
                raise no_column(name, reader.columns, reader.path)
            kind = reader.schema.field(name).type
            if not _is_cell(kind):
                zone = getattr(kind, "tz", None)
                way = "convert it to 'UTC', or cast it to text first" if zone else "cast it to text first"
                raise InvalidArgumentError(f"template: {reader.path}: column {name!r} is {kind}: {way}")
        self.table(reader.schema.empty_table())  # raises if the template is wrong
        return set(names)

    def table(self, rows: Any) -> Optional[Table]:
        """The prompts as a table if a template makes them, else None."""
        if self.template is None and not self.chat:
            return None
        template = self.template if self.template is not None else "{" + self.column + "}"
        counts = _picture_counts(rows.column(self.images)) if self.chat and self.images is not None else None
        return Table(rows, template, fields=self.fields, chat=self.chat, system=self.system, pictures=counts)

    def images_of(self, chunk: Any, open_rows: Optional[list[int]] = None) -> Optional[list[Images]]:
        """The pictures of a chunk's rows, or of the open ones; None: the rows have none."""
        if self.images is None:
            return None
        column = chunk.column(self.images)
        return [picture_items(row.as_py()) for row in (column if open_rows is None else column.take(open_rows))]

    def rows(self, chunk: Any, open_rows: Optional[list[int]], texts: bool = False) -> Any:
        """The engine's input for a chunk. open_rows: only these rows; None: all. texts: texts, not a table."""
        if open_rows is not None and self.fields == "given":
            chunk, open_rows = chunk.take(open_rows), None
        table = self.table(chunk)
        if table is None:
            prompts = chunk.column(self.column)
            types = optional("pyarrow", "run_files").types
            if (
                types.is_struct(prompts.type)
                or (types.is_list(prompts.type) or types.is_large_list(prompts.type))
                and types.is_struct(prompts.type.value_type)
            ):
                # A struct without a value is a null; a list without one is an empty conversation.
                return [None if row == {} else row for row in without_nulls(prompts.to_pylist())]
            return prompts
        if open_rows is None and not texts:
            return table
        # The order of fields depends on every row of the chunk.
        made = [table._prompt(i) for i in (range(len(table)) if open_rows is None else open_rows)]
        given = from_texts([text for text in made if text is not None])
        column = Chats(given.data, given.offsets) if self.chat else Texts(given.data, given.offsets)
        nulls = [i for i, text in enumerate(made) if text is None]
        return Sparse(column, nulls) if nulls else column


def holds_pictures(kind: Any) -> bool:
    """Whether a column of this type can hold the pictures of rows."""
    types = optional("pyarrow", "run_files").types
    one = _items(kind) or kind
    if types.is_struct(one):
        names = [field.name for field in one]
        return names.count("bytes") == 1 and _is_plain(one.field("bytes").type)
    return _is_plain(one) or _is_tensor(one)


def _is_tensor(kind: Any) -> bool:
    """Whether values are arrays of uint8: Ray's tensors, but not pyarrow's, whose values are flat lists."""
    types, storage = optional("pyarrow", "run_files").types, getattr(kind, "storage_type", None)
    if storage is None or not kind.extension_name.startswith("ray."):
        return False
    if types.is_struct(storage):  # of different shapes
        storage = storage.field("data").type
    return bool(getattr(storage, "value_type", None) == optional("pyarrow", "run_files").uint8())


def _is_plain(kind: Any) -> bool:
    types = optional("pyarrow", "run_files").types
    text = types.is_string(kind) or types.is_string_view(kind) or types.is_binary(kind) or types.is_binary_view(kind)
    return bool(text or _is_text(kind))


def _picture_counts(column: Any) -> array[int]:
    """How many pictures each row of a column has, as `picture_items` counts them, without looking at the pictures."""
    if _items(column.type) is None:
        return array("i", column.is_valid().to_pylist())
    counts = array("i")
    for chunk in column.chunks:
        lengths = (one or 0 for one in optional("pyarrow.compute", "run_files").list_value_length(chunk).to_pylist())
        valid = iter(chunk.flatten().is_valid().to_pylist())
        counts.extend(sum(islice(valid, length)) for length in lengths)
    return counts


def _is_text(kind: Any) -> bool:
    types = optional("pyarrow", "run_files").types
    return bool(types.is_large_string(kind) or types.is_large_binary(kind) or types.is_null(kind))


def _is_cell(kind: Any) -> bool:
    """Whether a template can insert a value of this type."""
    types = optional("pyarrow", "run_files").types
    number = types.is_integer(kind) or types.is_float32(kind) or types.is_float64(kind) or types.is_boolean(kind)
    date = types.is_date(kind) or types.is_timestamp(kind) and kind.tz in (None, "UTC", "+00:00")
    return bool(_is_text(kind) or number or date)


def _items(kind: Any) -> Any:
    """The type of a list's items; None if it is not a list."""
    types = optional("pyarrow", "run_files").types
    return kind.value_type if types.is_list(kind) or types.is_large_list(kind) else None


def _check_prompts(reader: Reader, column: str) -> None:
    """Raises if rows of such a column cannot be prompts."""
    types, kind = optional("pyarrow", "run_files").types, reader.schema.field(column).type
    if _is_text(kind):
        return
    items = _items(kind)
    if items is not None and (types.is_integer(items) or types.is_struct(items)):
        return
    if types.is_struct(kind) and {field.name for field in kind} & {"messages", "prompt", "prompt_token_ids"}:
        return
    hint = f'; template="{{{column}}}" writes them as text' if _is_cell(kind) else ""
    raise InvalidArgumentError(
        f"prompt_column: {reader.path}: column {column!r} is {kind}: prompts are texts, lists of token ids or lists of chat"
        f" messages{hint}"
    )


def check_continuations(reader: Reader, column: str) -> None:
    """Raises if a column does not hold lists of texts or of lists of token ids."""
    if column not in reader.columns:
        raise InvalidArgumentError(
            f"continuations_column: {reader.path} has no column {column!r}; it has {listed(reader.columns)}"
        )
    types, kind = optional("pyarrow", "run_files").types, reader.schema.field(column).type
    items = _items(kind)
    tokens = items is not None and _items(items) is not None and types.is_integer(_items(items))
    if items is None or not (types.is_string(items) or types.is_string_view(items) or _is_text(items) or tokens):
        raise InvalidArgumentError(
            f"continuations_column: {reader.path}: column {column!r} is {kind}: each row has a list of texts, or of lists of"
            " token ids"
        )


def check_adapters(reader: Reader, column: str) -> None:
    """Raises if a column cannot hold names of adapters."""
    if column not in reader.columns:
        raise InvalidArgumentError(
            f"adapter_column: {reader.path} has no column {column!r}; it has {listed(reader.columns)}"
        )
    kind = reader.schema.field(column).type
    if not _is_text(kind):
        raise InvalidArgumentError(f"adapter_column: {reader.path}: column {column!r} is {kind}: names of adapters are texts")


def without_nulls(value: Any) -> Any:
    """Drops null members: in a file, a member that only some messages have is null in all others."""
    if isinstance(value, dict):
        return {name: without_nulls(one) for name, one in value.items() if one is not None}
    return [without_nulls(one) for one in value] if isinstance(value, list) else value


@dataclass
class ResultColumns:
    """The columns that are written for results."""

    params: SamplingParams
    prefix: str
    lists: bool
    task: Task = Task()
    parsed: bool = False

    def fields(self) -> list[tuple[str, str, Any]]:
        """(name in the output, name in `Results.to_arrow`, type) of each."""
        arrow = optional("pyarrow", "run_files")
        long, text = arrow.int64(), arrow.large_string()
        found = [("finish_reason", text), ("error", text), ("prompt_tokens", long), ("shared_tokens", long)]
        if not self.task.generates:
            made = self.task.columns(arrow, arrow.large_list) + found
            return [(self.prefix + name, name, kind) for name, kind in made]
        found = [("text", text), *found, ("completion_tokens", long)]
        if self.params.samples > 1 and not self.lists:
            found.insert(0, ("sample", arrow.int32()))
        if self.parsed:
            found.append(("parsed", self.parser().arrow_type()))
        pair = arrow.struct([("token", arrow.int32()), ("logprob", arrow.float32())])
        for name, top in asked_logprobs(self.params):
            found.append((name, arrow.large_list(arrow.large_list(pair) if top else arrow.float32())))
        if self.lists:
            once = ("error", "prompt_tokens")
            found = [(name, kind if name in once else arrow.large_list(kind)) for name, kind in found]
        return [(self.prefix + name, name, kind) for name, kind in found]

    @property
    def constrained(self) -> bool:
        """Whether answers have a form that max_tokens may cut."""
        return self.task.generates and constraint_key(self.params) is not None

    def parser(self) -> Parser:
        """What reads the values of answers."""
        parser = parser_of(self.params)
        if parser is None or self.lists or not self.task.generates:
            raise ValueError("parsed: it needs rows that are continued with a json_schema, and samples='rows'")
        return parser

    def schema(self) -> Any:
        """The schema of results that are kept: these columns and the row's number."""
        arrow = optional("pyarrow", "run_files")
        return arrow.schema([("tag", arrow.int64())] + [(name, kind) for name, _, kind in self.fields()])

    def failed(self, tags: Sequence[int], error: str) -> Any:
        """Results of rows with this error, in that schema."""
        arrow = optional("pyarrow", "run_files")
        known = {"tag": tags, self.prefix + "error": [error] * len(tags), self.prefix + "prompt_tokens": [0] * len(tags)}
        if not self.lists:
            known[self.prefix + "finish_reason"] = ["error"] * len(tags)
            known |= {self.prefix + name: [0] * len(tags) for name in ("sample", "shared_tokens", "completion_tokens")}
        return arrow.record_batch(
            [arrow.array(known.get(field.name, [None] * len(tags)), field.type) for field in self.schema()],
            schema=self.schema(),
        )

    def batch(self, results: Results, labels: Sequence[str]) -> Any:
        """Results in that schema."""
        arrow = optional("pyarrow", "run_files")
        batch = arrow.record_batch(results)
        lengths = optional("pyarrow.compute", "run_files").list_value_length(batch.column("tokens"))
        batch = batch.append_column("completion_tokens", lengths)
        reasons = batch.schema.get_field_index("finish_reason")
        batch = batch.set_column(reasons, "finish_reason", batch.column(reasons).dictionary_decode())
        counts = [1] * batch.num_rows
        if self.lists:
            batch = samples_as_lists(results, batch)
            counts = [len(one) for one in batch.column("text")]
        if self.parsed:
            batch = batch.append_column("parsed", self.parser().array(results))
        schema, columns = self.schema(), []
        given = with_labels({name: batch.column(name) for name in batch.schema.names}, labels)
        good = given["error"].is_null()
        own = [] if self.task.generates else [name for name, _ in self.task.columns(arrow, arrow.large_list)]
        for field, (_, of, kind) in zip(schema, [("", "tag", arrow.int64()), *self.fields()]):
            if of in own:  # a row that failed has no vector, rather than an empty one
                column = given[of].cast(kind) if of in given else arrow.nulls(batch.num_rows, kind)
                columns.append(optional("pyarrow.compute", "run_files").if_else(good, column, arrow.scalar(None, kind)))
            elif of in given:
                columns.append(given[of].cast(kind))
            else:  # none of these rows has any
                columns.append(arrow.array([[[]] * count if self.lists else [] for count in counts], kind))
        return arrow.record_batch(columns, schema=schema)
