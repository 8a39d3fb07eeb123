"""Answers of a JSON schema as values: texts -> Python values, and the Arrow type that the schema gives them."""

from __future__ import annotations

import json
import re
from typing import Any, Callable, Mapping, Optional, Sequence

from .constraints import schema_of
from .frames import optional
from .params import SamplingParams
from .result_memory import ResultMemory

_STOP = 1  # BATCHLLM_FINISH_STOP
_NUMBER = re.compile(r"(-?)(\d+)(?:\.(\d+))?(?:[eE]([-+]?\d+))?", re.ASCII)
_INT64_DIGITS = 19


class _Written(str):
    """A number as it is written, until its type is known: one of any length or size does no harm, and a value without a
    type has it as it was written."""


class Parser:
    """Reads the texts of rows with this schema."""

    def __init__(self, schema: Any, start_after: str = "") -> None:
        self._schema: Any = json.loads(schema_of(schema))
        self._start_after = start_after

    def _json_of(self, results: ResultMemory, index: int) -> Optional[str]:
        """None if the row failed, was cancelled or was cut off."""
        text = results.text_of(index)
        if text is None or results.finish_reasons[index] != _STOP:
            return None
        if self._start_after:
            _, found, text = text.partition(self._start_after)
            if not found:
                return None
        return text

    def value_of(self, results: ResultMemory, index: int) -> Any:
        """One result's value; None if the row failed, was cancelled or was cut off. A whole number of more digits than
        Python reads (sys.get_int_max_str_digits) is None, alone."""
        return _read(self._json_of(results, index), float, _int)

    def values(self, results: ResultMemory) -> list[Any]:
        """Every result's value."""
        return [self.value_of(results, i) for i in range(len(results))]

    def arrow_type(self) -> Any:
        """The values' type: structs, lists, maps of text to one type, text, int64, float64 and booleans. What has no one
        type, such as a value of either text or number, is the text of its JSON, in which numbers are as they were written.
        A value that does not fit its type, such as a whole number beyond int64, is null, alone. Spark's column `parsed` has
        the same rules (JsonValues.java)."""
        return _type_of(self._schema, self._schema, ())

    def array(self, results: ResultMemory) -> Any:
        """Every result's value, as an Arrow array."""
        arrow = optional("pyarrow", "a column of parsed values")
        kind = self.arrow_type()
        texts = (self._json_of(results, i) for i in range(len(results)))
        return arrow.array([_fitted_of(text, kind) for text in texts], kind)


def parser_of(params: Any) -> Optional[Parser]:
    """For rows that all have the same schema; None for others."""
    if not isinstance(params, SamplingParams) or params.json_schema is None:
        return None
    return Parser(params.json_schema, params.start_after)


def _read(text: Optional[str], number: Callable[[str], Any], whole: Callable[[str], Any]) -> Any:
    """The value of a JSON text; None if it is no JSON. number, whole: from the text of a number with or without a point
    or an exponent."""
    if text is None:
        return None
    try:
        return json.loads(text, parse_float=number, parse_int=whole, parse_constant=_refuse)
    except (ValueError, RecursionError):  # a stop string may have cut it, or its lists are too deep
        return None


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _int(text: str) -> Optional[int]:
    try:
        return int(text)
    except ValueError:  # too many digits
        return None


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


def _fitted_of(text: Optional[str], kind: Any) -> Any:
    """The value of a JSON text, in the form that Arrow needs for the type."""
    try:
        return _fitted(_read(text, _Written, _Written), kind)
    except RecursionError:  # it could be read, just so
        return None


def _fitted(value: Any, kind: Any) -> Any:
    """A value whose numbers are as written, in the form that Arrow needs for the type."""
    types = optional("pyarrow", "a column of parsed values").types
    if value is None:
        return None
    if types.is_large_string(kind):
        text = value if isinstance(value, str) else _json(value)
        return text.encode("utf-8", "replace").decode()  # half of a surrogate pair is no UTF-8
    if types.is_struct(kind):
        return {field.name: _fitted(value.get(field.name), field.type) for field in kind} if isinstance(value, dict) else None
    if types.is_list(kind):
        return [_fitted(one, kind.value_type) for one in value] if isinstance(value, list) else None
    if types.is_map(kind):
        if not isinstance(value, dict):
            return None
        return [(_fitted(name, kind.key_type), _fitted(one, kind.item_type)) for name, one in value.items()]
    if types.is_boolean(kind):
        return value if isinstance(value, bool) else None
    if not isinstance(value, _Written):
        return None
    return _int64(value) if types.is_integer(kind) else float(value)


def _json(value: Any) -> str:
    if isinstance(value, _Written):
        return str(value)
    if isinstance(value, list):
        return "[" + ",".join(map(_json, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(_json(name) + ":" + _json(one) for name, one in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


def _int64(number: str) -> Optional[int]:
    """3 for 3.0 too; None for what has a fraction or more than 64 bits. No digits of 1e999999999 are written for it."""
    parts = _NUMBER.fullmatch(number)
    assert parts is not None
    sign, before, fraction, power = (part or "" for part in parts.groups())
    digits = (before + fraction).rstrip("0")
    zeros_behind = len(before) - len(digits)  # to the point; negative: so many digits are behind it
    digits = digits.lstrip("0")
    if not digits:
        return 0
    least = power.lstrip("+-").lstrip("0")
    if len(least) > _INT64_DIGITS:
        return None  # no text is so long that it makes up for this
    zeros = (-1 if power.startswith("-") else 1) * int(least or "0") + zeros_behind
    if zeros < 0 or len(digits) + zeros > _INT64_DIGITS:
        return None
    value = int(sign + digits + "0" * zeros)
    return value if -(2**63) <= value < 2**63 else None
