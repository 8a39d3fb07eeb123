"""Constraints on the output of rows: `SamplingParams` -> the library's constraints, each made once per engine."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import json
import types
import typing
from array import array
from itertools import accumulate
from typing import Annotated, Any, Literal, Mapping, NamedTuple, Optional, Sequence, Union

from . import native
from .params import Params, SamplingParams, rows_of

_CHOICES, _REGEX, _JSON_SCHEMA, _GBNF, _LARK = range(1, 6)  # BATCHLLM_CONSTRAINT_
# Beside `properties`: what else there may be of members.
_SAY_MORE_OF_MEMBERS = ("additionalProperties", "unevaluatedProperties", "$ref", "allOf", "anyOf", "oneOf", "if")
_MOST = 4096  # constraints that are kept; beyond that all are dropped, except those that rows still use



class _Key(NamedTuple):
    """Identifies a constraint."""

    kind: int
    text: str
    choices: tuple[str, ...]
    start_after: str
    flexible_whitespace: bool
    any_member_order: bool
    any_numbers: bool
    loose_schema: bool



def schema_of(wanted: Any) -> str:
    """The text of a JSON schema, made from a mapping, a pydantic model or a dataclass, or given as text."""
    if isinstance(wanted, str):
        return wanted
    if isinstance(wanted, (Mapping, bool)):
        return json.dumps(wanted, ensure_ascii=False)
    if hasattr(wanted, "model_json_schema"):
        return json.dumps(_closed(wanted.model_json_schema()), ensure_ascii=False)
    if hasattr(wanted, "__pydantic_core_schema__"):
        return json.dumps(_pydantic_schema(wanted if isinstance(wanted, type) else type(wanted)), ensure_ascii=False)
    if dataclasses.is_dataclass(wanted):
        definitions: dict[str, Any] = {}
        schema = dict(_type_schema(wanted if isinstance(wanted, type) else type(wanted), definitions))
        schema["$defs"] = definitions
        return json.dumps(schema, ensure_ascii=False)
    raise TypeError(f"json_schema: a mapping, a pydantic model or a dataclass is expected, not {wanted!r}")


def _pydantic_schema(kind: Any, prefix: str = "") -> dict[str, Any]:
    """The schema of a pydantic model or dataclass: only pydantic knows the constraints of its fields. References point to
    its $defs, with the prefix before their names."""
    adapter = importlib.import_module("pydantic").TypeAdapter(kind)
    return dict(_closed(adapter.json_schema(ref_template=f"#/$defs/{prefix}{{model}}")))


def _closed(schema: Any) -> Any:
    """The same schema without members of other names. For a model that ignores these (its default) pydantic says nothing,
    which in JSON Schema allows them: a row would write them until max_tokens cut it off."""
    if not isinstance(schema, Mapping):
        return schema
    made = dict(schema)
    for word in ("properties", "patternProperties", "$defs"):
        if isinstance(made.get(word), Mapping):
            made[word] = {name: _closed(one) for name, one in made[word].items()}
    for word in ("anyOf", "oneOf", "prefixItems"):
        if isinstance(made.get(word), list):
            made[word] = [_closed(one) for one in made[word]]
    for word in ("items", "additionalProperties"):
        if word in made:
            made[word] = _closed(made[word])
    if "properties" in made and made.keys().isdisjoint(_SAY_MORE_OF_MEMBERS):
        made["additionalProperties"] = False
    return made


def _type_schema(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    plain = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null", None: "null"}
    if kind in plain:
        return {"type": plain[kind]}
    if kind is Any:
        return {}
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, getattr(types, "UnionType", Union)):
        return {"anyOf": [_type_schema(one, definitions) for one in arguments]}
    if kind is list or origin in (list, Sequence) or origin is typing.get_origin(Sequence[int]):
        return {"type": "array", "items": _type_schema(arguments[0], definitions)} if arguments else {"type": "array"}
    if kind is dict or origin is dict:
        if arguments and arguments[0] is not str:
            raise TypeError("json_schema: the keys of a dict must be str")
        values = _type_schema(arguments[1], definitions) if arguments else {}
        return {"type": "object", "additionalProperties": values}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {"enum": [one.value for one in kind]}
    if hasattr(kind, "__pydantic_core_schema__"):
        return _nested_pydantic_schema(kind, definitions)
    if dataclasses.is_dataclass(kind):
        return _dataclass_schema(kind, definitions)
    if origin is Annotated:
        raise TypeError(f"json_schema: what {kind!r} is annotated with is not understood in a plain dataclass; use pydantic")
    raise TypeError(f"json_schema: no schema is known for the type {kind!r}")


def _nested_pydantic_schema(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    name = f"{kind.__module__}.{kind.__qualname__}"
    if name not in definitions:
        prefix = f"pydantic{len(definitions)}."  # its definitions may have the same names as ours
        schema = _pydantic_schema(kind, prefix)
        own = schema.pop("$defs", {})
        definitions[name] = schema
        definitions.update({prefix + inner: what for inner, what in own.items()})
    return {"$ref": "#/$defs/" + name.replace("~", "~0").replace("/", "~1")}


def _dataclass_schema(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    name = f"{kind.__module__}.{kind.__qualname__}"
    reference = {"$ref": "#/$defs/" + name.replace("~", "~0").replace("/", "~1")}
    if name in definitions:
        return reference
    definitions[name] = {}  # it may refer to itself
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = [field for field in dataclasses.fields(kind) if field.init]
    missing = dataclasses.MISSING
    definitions[name] = {
        "type": "object",
        "properties": {field.name: _type_schema(hints[field.name], definitions) for field in fields},
        "required": [f.name for f in fields if f.default is missing and f.default_factory is missing],
        "additionalProperties": False,
    }
    return reference


def constraint_key(params: SamplingParams) -> Optional[_Key]:
    """The constraint that the parameters ask for; None if there is none."""
    named = ("choices", "regex", "json_schema", "grammar")
    given = [name for name in named if getattr(params, name) is not None]
    if len(given) > 1:
        raise ValueError(f"{given[0]} and {given[1]} both say what the output must look like")
    if not given:
        return None
    kind, text, choices = _wanted(params)
    for name, one in (*((given[0], one) for one in (text, *choices)), ("start_after", params.start_after)):
        if not isinstance(one, str):
            raise TypeError(f"{name}: a string is expected, not {one!r}")
    return _Key(
        kind,
        text,
        choices,
        params.start_after,
        bool(params.flexible_whitespace),
        bool(params.any_member_order),
        bool(params.any_numbers),
        bool(params.loose_schema),
    )


def _wanted(params: SamplingParams) -> tuple[int, str, tuple[str, ...]]:
    if params.choices is not None:
        if isinstance(params.choices, str):
            raise TypeError("choices: a list of strings is expected, not a string")
        return _CHOICES, "", tuple(params.choices)
    if params.regex is not None:
        return _REGEX, params.regex, ()
    if params.json_schema is not None:
        return _JSON_SCHEMA, schema_of(params.json_schema), ()
    if isinstance(params.grammar, Mapping):
        dialects = {"gbnf": _GBNF, "lark": _LARK}
        if len(params.grammar) != 1 or next(iter(params.grammar)) not in dialects:
            raise ValueError('grammar: a text, {"gbnf": text} or {"lark": text} is expected')
        dialect, text = next(iter(params.grammar.items()))
        return dialects[dialect], text, ()
    return _GBNF, typing.cast(str, params.grammar), ()


class Constraints:
    """The constraints of one engine. A column of parameters keeps its constraints alive until the rows have been added,
    and rows keep theirs."""

    def __init__(self) -> None:
        self._made: dict[_Key, native.batchllm_constraint] = {}

    def set(
        self, engine: native.batchllm_engine, column: Optional[native.batchllm_params_column], params: Params
    ) -> None:
        """Puts the constraints of params (one for all rows, or one for each) into their column."""
        if params is None or column is None:
            return
        column.constraints = []
        for key, rows in rows_of(params, constraint_key).items():
            column.constraints.append(self._get(engine, key))
            native.batchllm_params_set_constraint(column, rows, column.constraints[-1])

    def prepare(self, engine: native.batchllm_engine, key: _Key) -> None:
        """Raises if the constraint is invalid or the engine cannot enforce it."""
        self._get(engine, key)

    def _get(self, engine: native.batchllm_engine, key: _Key) -> native.batchllm_constraint:
        made = self._made.get(key)
        if made is None:
            texts = [choice.encode() + b"\0" for choice in key.choices]
            if any(one.find(b"\0") != len(one) - 1 for one in texts) or "\0" in key.start_after:
                raise ValueError("choices or start_after hold a zero byte")
            starts = array("q", accumulate(map(len, texts), initial=0))[:-1]
            made = native.batchllm_constraint_create_from(
                engine,
                key.kind,
                key.text.encode(),
                b"".join(texts),
                starts,
                key.start_after.encode(),
                key.flexible_whitespace,
                key.any_member_order,
                key.any_numbers,
                key.loose_schema,
            )
            if len(self._made) >= _MOST:
                self._made.clear()
            self._made[key] = made
        return made
