"""Answers of a JSON schema as values: texts -> Python values, and the Arrow type that the schema gives them."""

from __future__ import annotations

import json
from typing import Any, Mapping, Optional, Sequence

from .constraints import schema_of
from .frames import optional
from .params import SamplingParams
from .result_memory import ResultMemory

_STOP = 1  # BATCHLLM_FINISH_STOP


class Parser:
    """Reads the texts of rows with this schema."""

    def __init__(self, schema: Any, start_after: str = "") -> None:
        self._schema: Any = json.loads(schema_of(schema))
        self._start_after = start_after

    def value_of(self, results: ResultMemory, index: int) -> Any:
        """One result's value; None if the row failed, was cancelled or was cut off."""
        text = results.text_of(index)
        if text is None or results.finish_reasons[index] != _STOP:
            return None
        if self._start_after:
            _, found, text = text.partition(self._start_after)
            if not found:
                return None
        try:
            return json.loads(text)
        except ValueError:  # a stop string may have cut it
            return None

    def values(self, results: ResultMemory) -> list[Any]:
        """Every result's value."""
        return [self.value_of(results, i) for i in range(len(results))]

    def arrow_type(self) -> Any:
        """The values' type: structs, lists, maps of text to one type, text, int64, float64 and booleans. What has no one
        type, such as a value of either text or number, is the text of its JSON. A value that does not fit its type, such as
        a whole number beyond int64, is null, alone."""
        return _type_of(self._schema, self._schema, ())

    def array(self, results: ResultMemory) -> Any:
        """Every result's value, as an Arrow array."""
        arrow = optional("pyarrow", "a column of parsed values")
        kind = self.arrow_type()
        return arrow.array([_fitted(value, kind) for value in self.values(results)], kind)


def parser_of(params: Any) -> Optional[Parser]:
    """For rows that all have the same schema; None for others."""
    if not isinstance(params, SamplingParams) or params.json_schema is None:
        return None
    return Parser(params.json_schema, params.start_after)


def _type_of(schema: Any, root: Any, refs: Sequence[str]) -> Any:
    arrow = optional("pyarrow", "a column of parsed values")
    text = arrow.large_string()
    if not isinstance(schema, Mapping):
        return text
    reference = schema.get("$ref")
    if isinstance(reference, str):
        if reference in refs:  # a type that contains itself
            return text
        return _type_of(_target(reference, root), root, (*refs, reference))
    if "enum" in schema or "const" in schema:
        return _type_of_values(schema["enum"] if "enum" in schema else [schema["const"]])
    for word in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(word), list) and "properties" not in schema:
            found = [_type_of(one, root, refs) for one in schema[word] if one != {"type": "null"}]
            return found[0] if found and all(one == found[0] for one in found) else text
    names = schema.get("type")
    kinds = [one for one in (names if isinstance(names, list) else [names]) if one != "null"]
    kind = kinds[0] if len(kinds) == 1 else None
    if kind == "array" and isinstance(schema.get("items"), Mapping) and "prefixItems" not in schema:
        return arrow.list_(_type_of(schema["items"], root, refs))
    if kind == "object" or (kind is None and not kinds and "properties" in schema):
        properties = schema.get("properties")
        if properties:
            return arrow.struct([(name, _type_of(one, root, refs)) for name, one in properties.items()])
        if isinstance(schema.get("additionalProperties"), Mapping):
            return arrow.map_(arrow.large_string(), _type_of(schema["additionalProperties"], root, refs))
    plain = {"integer": arrow.int64(), "number": arrow.float64(), "boolean": arrow.bool_()}
    return plain.get(str(kind), text)


def _type_of_values(values: Sequence[Any]) -> Any:
    arrow = optional("pyarrow", "a column of parsed values")
    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return arrow.bool_()
    if kinds == {int}:
        return arrow.int64()
    return arrow.float64() if kinds and kinds <= {int, float} else arrow.large_string()


def _target(reference: str, root: Any) -> Any:
    """What a reference within the schema points to; None if it is not there."""
    if not reference.startswith("#"):
        return None
    found = root
    for part in reference[1:].strip("/").split("/") if reference != "#" else ():
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        elif isinstance(found, Mapping) and name in found:
            found = found[name]
        else:
            return None
    return found


def _fitted(value: Any, kind: Any) -> Any:
    """A value in the form that Arrow needs for the type."""
    types = optional("pyarrow", "a column of parsed values").types
    if value is None:
        return None
    if types.is_large_string(kind):
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if types.is_struct(kind):
        return {field.name: _fitted(value.get(field.name), field.type) for field in kind} if isinstance(value, dict) else None
    if types.is_list(kind):
        return [_fitted(one, kind.value_type) for one in value] if isinstance(value, list) else None
    if types.is_map(kind):
        return [(name, _fitted(one, kind.item_type)) for name, one in value.items()] if isinstance(value, dict) else None
    if isinstance(value, bool) or types.is_boolean(kind):
        return value if isinstance(value, bool) and types.is_boolean(kind) else None
    if not isinstance(value, (int, float)):
        return None
    if types.is_integer(kind):  # it may be written as 12.0, or be infinite
        return int(value) if -(2**63) <= value < 2**63 and value == int(value) else None
    return float(str(value))  # an int may be larger than any float
