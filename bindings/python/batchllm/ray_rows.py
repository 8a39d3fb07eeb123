"""Blocks of a Ray dataset -> prompts, keys and parameters of rows; results -> columns of answers."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from array import array
from dataclasses import dataclass
from typing import Any, Optional, Sequence, Union

from .columns import Chats, Sparse, Texts, Tokens, from_texts
from .file_rows import Images, Prompts, holds_pictures, without_nulls
from .frames import optional
from .params import SamplingParams, asked_logprobs
from .prefix_ranges import TOKEN_BYTES
from .results import Results
from .task_rows import Task, with_labels

CONSTRAINTS = ("choices", "regex", "json_schema", "grammar", "lark_grammar")
"""Constraints that rows may have in a column of their own."""

_WHAT = "batchllm.ray"

def arrow() -> Any:
    """pyarrow, which Ray Data needs too."""
    return optional("pyarrow", _WHAT)


@dataclass
class RayRows:
    """Which columns hold the prompts, keys and parameters of rows. Sent to every worker."""

    prompts: Prompts
    key_column: Optional[str]
    continuations_column: Optional[str]
    param_columns: dict[str, str]
    """Parameter -> its column; where that is null, `params` applies."""
    params: SamplingParams
    task: str
    prefix: str
    kind: str = ""
    """What prompts are: "text", "tokens" or "chat"."""

    def check(self, schema: Any) -> None:
        """Raises for columns that are missing or cannot be used; sets `kind`."""
        names = list(schema.names)
        named = {"key_column": self.key_column, "continuations_column": self.continuations_column, **self.param_columns}
        if self.prompts.template is None:
            named["prompt_column"] = self.prompts.column
        named["image_column"] = self.prompts.images
        for option, name in named.items():
            if name is not None and name not in names:
                raise ValueError(f"{option}: there is no column {name!r}; there are {', '.join(map(repr, names))}")
        for name, _ in self.result_fields():
            if name in names:
                raise ValueError(f"the rows have a column {name!r}, and so have the results: give a result_prefix")
        if self.key_column is not None and not arrow().types.is_integer(schema.field(self.key_column).type):
            raise TypeError(f"column {self.key_column!r}: {schema.field(self.key_column).type} is no integer")
        if self.prompts.images is not None and not holds_pictures(schema.field(self.prompts.images).type):
            raise TypeError(
                f"column {self.prompts.images!r}: {schema.field(self.prompts.images).type}: pictures are bytes of files, paths,"
                " arrays, or lists of these"
            )
        if not self.generates and "adapter" in self.param_columns:
            raise ValueError("adapter_column: only for rows that generate text; other rows have the adapter in params")
        self.kind = self._kind(schema)
        if self.prompts.images is not None and self.kind == "tokens":
            raise ValueError("image_column: rows with pictures are texts or conversations")

    def _kind(self, schema: Any) -> str:
        if self.prompts.template is not None or self.prompts.chat:
            self.prompts.table(schema.empty_table())  # raises if the template is wrong
            return "chat" if self.prompts.chat else "text"
        types, name = arrow().types, self.prompts.column
        given = _plain_type(schema.field(name).type)
        if types.is_dictionary(given):
            given = given.value_type
        if types.is_string(given) or types.is_large_string(given) or types.is_string_view(given):
            return "text"
        inside = given.value_type if _is_list(given) else given
        if types.is_struct(inside):
            return "chat"
        if _is_list(given) and (types.is_integer(inside) or types.is_null(inside)):
            return "tokens"
        raise TypeError(
            f"column {name!r}: {schema.field(name).type} is neither text, nor a list of token ids or of chat messages"
        )

    # ---- In ----

    def bytes_of(self, block: Any) -> list[Optional[bytes]]:
        """The prompts as bytes that sort as prompts do: UTF-8, big-endian tokens, or the JSON of a conversation."""
        table = self.prompts.table(block)
        if table is not None:
            texts = (table[i] for i in range(len(table)))
            return [None if text is None else text.encode("utf-8", "surrogatepass") for text in texts]
        column = block.column(self.prompts.column)
        if self.kind == "chat":
            return [None if one is None else _json(without_nulls(one)) for one in column.to_pylist()]
        if self.kind == "text":
            pa = arrow()
            if pa.types.is_dictionary(column.type):
                column = column.cast(column.type.value_type)
            found: list[Optional[bytes]] = column.cast(pa.large_string()).cast(pa.large_binary()).to_pylist()
            return found
        return _token_bytes(column)

    def images_of(self, block: Any) -> Optional[list[Images]]:
        """The pictures of rows; None: they have none."""
        return self.prompts.images_of(block)

    def column_of(self, rows: Sequence[Optional[bytes]]) -> Any:
        """The engine's input, made from such bytes."""
        nulls = [i for i, row in enumerate(rows) if row is None]
        given = [row for row in rows if row is not None]
        column: Any
        if self.kind == "tokens":
            numpy = optional("numpy", _WHAT)
            tokens = numpy.frombuffer(b"".join(given), ">i4").astype("=i4")
            lengths = (len(row) // TOKEN_BYTES for row in given)
            column = Tokens(tokens, _offsets(lengths))
        else:
            texts = from_texts(given)
            column = Chats(texts.data, texts.offsets) if self.kind == "chat" else Texts(texts.data, texts.offsets)
        return Sparse(column, nulls) if nulls else column

    def keys_of(self, block: Any) -> Optional[list[int]]:
        """The keys of rows; None without a key column. Raises if a row has no key."""
        if self.key_column is None:
            return None
        column = block.column(self.key_column)
        if column.null_count:
            raise ValueError(f"column {self.key_column!r}: a row has no key")
        keys: list[int] = column.to_pylist()
        return keys

    def params_of(self, block: Any) -> list[SamplingParams]:
        """Parameters of each row; equal ones are the same object."""
        if not self.param_columns:
            return [self.params] * block.num_rows
        names = list(self.param_columns)
        made: dict[str, SamplingParams] = {}
        found = []
        for values in zip(*(block.column(self.param_columns[name]).to_pylist() for name in names)):
            key = repr(values)
            if key not in made:
                made[key] = self._params(dict(zip(names, values)))
            found.append(made[key])
        return found

    def _params(self, values: dict[str, Any]) -> SamplingParams:
        given = {name: value for name, value in values.items() if value is not None}
        if "lark_grammar" in given:
            given["grammar"] = {"lark": given.pop("lark_grammar")}
        if any(name in CONSTRAINTS for name in given):
            given = {**dict.fromkeys(("choices", "regex", "json_schema", "grammar")), **given}
        return dataclasses.replace(self.params, **given)

    def continuations_of(self, block: Any) -> Optional[list[Any]]:
        """Lists of texts or of token ids, one for each row; None for a row without one."""
        if self.continuations_column is None:
            return None
        return [one if one else None for one in block.column(self.continuations_column).to_pylist()]

    # ---- Out ----

    def result_fields(self) -> list[tuple[str, Any]]:
        """(name, type) of every column that is added."""
        pa = arrow()
        found: list[tuple[str, Any]] = []
        if self.generates and self.params.samples > 1:
            found.append(("sample", pa.int32()))
        task = Task(self.task, continuations_column=self.continuations_column)
        if not task.generates:
            found += task.columns(pa, pa.list_)
        else:
            found += [("text", pa.string()), ("tokens", pa.list_(pa.int32()))]
            pair = pa.struct([("token", pa.int32()), ("logprob", pa.float32())])
            found += [(name, pa.list_(pa.list_(pair) if top else pa.float32())) for name, top in asked_logprobs(self.params)]
        found += [("finish_reason", pa.string()), ("error", pa.string())]
        found += [(name, pa.int64()) for name in ("prompt_tokens", "shared_tokens", "completion_tokens")]
        return [(self.prefix + name, kind) for name, kind in found]

    @property
    def generates(self) -> bool:
        """Whether text is generated; otherwise rows are scored, embedded or classified."""
        return self.task == "generate" and self.continuations_column is None

    def batch(self, results: Results, labels: Sequence[str]) -> Any:
        """Results in those columns."""
        pa = arrow()
        whole = pa.record_batch(results)
        columns = {name: whole.column(name) for name in whole.schema.names}
        compute = optional("pyarrow.compute", _WHAT)
        columns["finish_reason"] = columns["finish_reason"].dictionary_decode()
        columns["completion_tokens"] = compute.list_value_length(columns["tokens"])
        columns = with_labels(columns, labels)
        good = columns["error"].is_null()
        made = []
        for name, kind in self.result_fields():
            column = columns.get(name[len(self.prefix) :])
            if column is None:  # none of these rows has one; empty lists are those of prompts of one token
                asked = name[len(self.prefix) :] in dict(asked_logprobs(self.params)) and self.generates
                made.append(pa.array([[] if asked and one else None for one in good.to_pylist()], kind))
            elif pa.types.is_integer(kind) or name[len(self.prefix) :] in ("finish_reason", "error"):
                made.append(column.cast(kind))
            else:
                made.append(compute.if_else(good, column.cast(kind), pa.scalar(None, kind)))
        return pa.record_batch(made, schema=pa.schema(self.result_fields()))


def identities(keys: Optional[Sequence[int]], prompts: Sequence[Optional[bytes]], repeated: bool) -> list[int]:
    """64 bits for each row that determine its random numbers: the key, a hash of key and prompt if keys repeat, or a hash
    of the prompt if there are no keys."""
    if keys is not None and not repeated:
        return [key & 0xFFFFFFFFFFFFFFFF for key in keys]
    return places(keys, prompts)


def sort_keys(prompts: Sequence[Optional[bytes]], images: Optional[Sequence[Images]]) -> Sequence[Optional[bytes]]:
    """Bytes that put rows together that share a beginning: the prompts, behind hashes of their pictures if they have some.
    Rows with equal bytes are equal."""
    if images is None:
        return prompts
    return [
        None if prompt is None else b"".join(map(_picture_hash, own)) + prompt for prompt, own in zip(prompts, images)
    ]


def _picture_hash(picture: Union[bytes, str]) -> bytes:
    data, kind = (picture.encode(), b"name") if isinstance(picture, str) else (picture, b"bytes")
    return hashlib.blake2b(data, digest_size=16, person=kind).digest()


def places(keys: Optional[Sequence[int]], prompts: Sequence[Optional[bytes]]) -> list[int]:
    """A hash of 64 bits of each key and prompt."""
    if keys is None:
        return [_hash(b"", prompt) for prompt in prompts]
    return [_hash(b"%d" % key, prompt) for key, prompt in zip(keys, prompts)]


def _hash(key: bytes, prompt: Optional[bytes]) -> int:
    made = hashlib.blake2b(prompt or b"", digest_size=8, salt=b"null" if prompt is None else b"", key=key)
    return int.from_bytes(made.digest(), "little")


def _json(messages: Any) -> bytes:
    return json.dumps(messages, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _offsets(lengths: Any) -> array[int]:
    offsets = array("q", [0])
    for length in lengths:
        offsets.append(offsets[-1] + length)
    return offsets


def _is_list(kind: Any) -> bool:
    types = arrow().types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _plain_type(kind: Any) -> Any:
    """The list inside Ray's own tensor type."""
    storage = getattr(kind, "storage_type", kind)
    types = arrow().types
    if storage is not kind and types.is_struct(storage) and storage.get_field_index("data") >= 0:
        return storage.field("data").type
    return storage


def _token_bytes(column: Any) -> list[Optional[bytes]]:
    """Lists of integers -> four big-endian bytes each. A number that cannot be a token id becomes -1, and its row gets an
    error."""
    pa, numpy = arrow(), optional("numpy", _WHAT)
    found: list[Optional[bytes]] = []
    for chunk in column.chunks:
        chunk = getattr(chunk, "storage", chunk)
        if pa.types.is_struct(chunk.type):
            chunk = chunk.field("data")
        lengths = [one or 0 for one in optional("pyarrow.compute", _WHAT).list_value_length(chunk).to_pylist()]
        values = chunk.flatten().cast(pa.int64(), safe=False).fill_null(-1).to_numpy(zero_copy_only=False)
        inside = (values >= -(1 << 31)) & (values < 1 << 31)
        packed = numpy.where(inside, values, -1).astype(">i4").tobytes()
        ends = [TOKEN_BYTES * end for end in _offsets(lengths)]
        valid = chunk.is_valid().to_pylist()
        found += [packed[begin:end] if good else None for begin, end, good in zip(ends, ends[1:], valid)]
    return found
