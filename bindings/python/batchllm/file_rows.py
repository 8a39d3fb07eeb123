"""Rows of files -> prompts, and results -> columns of files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

from .columns import Chats, Sparse, Texts, from_texts
from .frames import optional, samples_as_lists
from .params import SamplingParams
from .results import Results
from .table import Table


@dataclass
class Prompts:
    """How rows become prompts."""

    column: str
    template: Optional[str]
    fields: str
    chat: bool
    system: Optional[str]

    def table(self, rows: Any) -> Optional[Table]:
        """A table's prompts, where a template makes them."""
        if self.template is None and not self.chat:
            return None
        template = self.template if self.template is not None else "{" + self.column + "}"
        return Table(rows, template, fields=self.fields, chat=self.chat, system=self.system)

    def rows(self, chunk: Any, open_rows: Optional[list[int]]) -> Any:
        """What is added of a chunk; open_rows: those that are wanted, None: all."""
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
                return without_nulls(prompts.to_pylist())
            return prompts
        if open_rows is None:
            return table
        # The order of fields is that of the whole chunk.
        texts = [table._prompt(i) for i in open_rows]
        given = from_texts([text for text in texts if text is not None])
        column = Chats(given.data, given.offsets) if self.chat else Texts(given.data, given.offsets)
        nulls = [i for i, text in enumerate(texts) if text is None]
        return Sparse(column, nulls) if nulls else column


def without_nulls(value: Any) -> Any:
    """Members of messages that a file has for some rows only are null in the others."""
    if isinstance(value, dict):
        return {name: without_nulls(one) for name, one in value.items() if one is not None}
    return [without_nulls(one) for one in value] if isinstance(value, list) else value


@dataclass
class ResultColumns:
    """What is written of results."""

    params: SamplingParams
    prefix: str
    lists: bool

    def fields(self) -> list[tuple[str, str, Any]]:
        """(name in the output, name in `Results.to_arrow`, type) of each."""
        arrow = optional("pyarrow", "run_files")
        long, text = arrow.int64(), arrow.large_string()
        found = [("text", "text", text), ("finish_reason", "finish_reason", text), ("error", "error", text),
                 ("prompt_tokens", "prompt_tokens", long), ("shared_tokens", "shared_tokens", long),
                 ("completion_tokens", "completion_tokens", long)]  # fmt: skip
        if self.params.samples > 1 and not self.lists:
            found.insert(0, ("sample", "sample", arrow.int32()))
        logprobs = -1 if self.params.logprobs is None else self.params.logprobs
        if logprobs >= 0:
            found.append(("logprobs", "logprobs", arrow.large_list(arrow.float32())))
        if logprobs > 0:
            pair = arrow.struct([("token", arrow.int32()), ("logprob", arrow.float32())])
            found.append(("top_logprobs", "top_logprobs", arrow.large_list(arrow.large_list(pair))))
        if self.lists:
            once = ("error", "prompt_tokens")
            found = [(name, of, kind if name in once else arrow.large_list(kind)) for name, of, kind in found]
        return [(self.prefix + name, of, kind) for name, of, kind in found]

    def schema(self) -> Any:
        """Of what is kept of results: with the row's number."""
        arrow = optional("pyarrow", "run_files")
        return arrow.schema([("tag", arrow.int64())] + [(name, kind) for name, _, kind in self.fields()])

    def batch(self, results: Results) -> Any:
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
        schema, columns = self.schema(), []
        for field, (_, of, kind) in zip(schema, [("", "tag", arrow.int64()), *self.fields()]):
            if of in batch.schema.names:
                columns.append(batch.column(of).cast(kind))
            else:  # no row of these has any
                columns.append(arrow.array([[[]] * count if self.lists else [] for count in counts], kind))
        return arrow.record_batch(columns, schema=schema)
